"""An optimizer step as one CUDA graph: its kernels are recorded once, and then started together by one call.

A small step has more than a thousand kernels. To start them one by one takes longer than they run.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from data.loader import LoadedBatch

_N_WARM_UP = 3  # calls before the recording: torch.compile, cuBLAS and autograd prepare themselves in the first ones

# From the micro-batches of a step to tensors that describe it.
StepFunction = Callable[[Sequence[LoadedBatch]], tuple[Tensor, Tensor]]


class StepGraph:
    """A function of batches, recorded with the tensors that it reads and writes. Every call finds them at one place.

    The function must not wait for the device, and must change its tensors in place. On a CPU nothing is recorded: a
    call copies the batches in the same way, and then calls the function.
    """

    def __init__(self, step: StepFunction, batches: Sequence[LoadedBatch]) -> None:
        """Record `step` after warm-up calls, whose changes the caller must undo. Calls copy inputs to `batches`."""
        self._step = step
        self._batches = batches
        self._graph: torch.cuda.CUDAGraph | None = None
        if not batches[0].targets.is_cuda:
            self._warm_up()
            return

        # Not on the default stream, where nothing can be recorded.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._warm_up()
        torch.cuda.current_stream().wait_stream(stream)

        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._results = step(batches)

    def _warm_up(self) -> None:
        for _ in range(_N_WARM_UP):
            self._step(self._batches)

    def __call__(self, batches: Sequence[LoadedBatch]) -> tuple[Tensor, Tensor]:
        """Run the function on `batches`, each of the shape of those that were recorded; return its results."""
        for own, batch in zip(self._batches, batches, strict=True):
            for tensor, value in zip(own.tensors(), batch.tensors(), strict=True):
                tensor.copy_(value, non_blocking=True)
        if self._graph is None:
            self._results = self._step(self._batches)
        else:
            self._graph.replay()
        first, second = self._results
        return first.clone(), second.clone()  # the next call writes to the same places
