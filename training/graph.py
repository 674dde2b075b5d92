"""An optimizer step as one CUDA graph: its kernels are recorded once; later steps start them all by one call.

A small step has more than a thousand kernels. To start them one by one takes longer than they run.
"""

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from data.loader import LoadedBatch
from settings.errors import UserError, one_line

_N_WARM_UP = 3  # calls before the recording: torch.compile, cuBLAS and autograd prepare themselves in the first ones

StepFunction = Callable[[Sequence[LoadedBatch]], tuple[Tensor, Tensor]]  # the results describe the step


class StepGraph:
    """A function of batches, recorded with the tensors that it reads and writes. Every call finds them at one place.

    The function must not wait for the device, and must change its tensors in place. It is not kept, so that a trainer
    with a graph is in no reference cycle. On a CPU nothing is recorded.
    """

    def __init__(self, step: StepFunction, batches: Sequence[LoadedBatch], changed: Sequence[Tensor]) -> None:
        """Record `step`, keep its tensors `changed` and the random generators; calls copy their inputs to `batches`."""
        self._batches = batches
        self._graph: torch.cuda.CUDAGraph | None = None
        try:
            self._record(step, changed)
        except RuntimeError as error:
            # The end of a recording that has failed raises a second error.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            remedy = "fewer tokens_per_batch" if isinstance(cause, torch.OutOfMemoryError) else "device=cpu"
            raise UserError(f"the training step cannot be recorded ({one_line(cause)}); try {remedy}") from error

    def _record(self, step: StepFunction, changed: Sequence[Tensor]) -> None:
        device = self._batches[0].targets.device
        before = [tensor.detach().to("cpu", copy=True) for tensor in changed]
        # Not on the default stream, where nothing can be recorded; and to free another graph would end the recording.
        stream = torch.cuda.Stream() if device.type == "cuda" else None
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        with torch.random.fork_rng([device] if stream else []), torch.cuda.stream(stream):
            try:
                for _ in range(_N_WARM_UP):
                    step(self._batches)
                if stream:
                    self._graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(self._graph, stream=stream):
                        self._results = step(self._batches)
            finally:
                if collects:
                    gc.enable()
                with torch.no_grad():
                    for tensor, value in zip(changed, before, strict=True):
                        tensor.copy_(value)  # waits for the stream

    def __call__(self, step: StepFunction, batches: Sequence[LoadedBatch]) -> tuple[Tensor, Tensor]:
        """Return the results of the step on `batches` of the recorded shapes; on a CPU `step` is called."""
        for own, batch in zip(self._batches, batches, strict=True):
            for tensor, value in zip(own.tensors(), batch.tensors(), strict=True):
                tensor.copy_(value, non_blocking=True)
        if self._graph:
            self._graph.replay()
        results = self._results if self._graph else step(self._batches)
        return results[0].clone(), results[1].clone()  # the next call writes to the same places
