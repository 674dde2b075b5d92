"""An optimizer step as one CUDA graph: its kernels are recorded once; later steps start them all by one call.

A small step has more than a thousand kernels. To start them one by one takes longer than they run.
"""

import gc
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from data.loader import LoadedBatch
from settings.errors import one_line
from training.trainer import Update

_COMPARED = ("loss", "gradient norm", "change along the eager one", "squared length of the change")
_N_WARM_UP = 3  # calls before the recording: torch.compile, cuBLAS and autograd prepare themselves in the first ones

Tensors = Sequence[Tensor]
Results = tuple[Tensor, Tensor]  # loss [] and gradient norm []
Step = Callable[[], Results]
# Runs a step once on a stream, and returns what repeats it, with the tensors that then hold its results
Record = Callable[[Step, "torch.cuda.Stream | None"], tuple[Callable[[], None], Results]]


class CannotRecordError(Exception):
    """A step cannot be recorded, or its record does something else; the message is one line."""


def record_cuda_graph(step: Step, stream: "torch.cuda.Stream | None") -> tuple[Callable[[], None], Results]:
    """Record `step` as a CUDA graph; see `Record`."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    return graph.replay, results


def record_step(
    step: Update,
    batches: Sequence[LoadedBatch],
    changed: Tensors,
    tolerance: float,
    record: Record = record_cuda_graph,
) -> "StepGraph | None":
    """Return the record of `step`, see `StepGraph`; None, after a line that says why, if it cannot be recorded."""
    try:
        return StepGraph(step, batches, changed, record, tolerance)
    except CannotRecordError as problem:
        print(f"warning: the training step {problem}; its kernels are started one by one", file=sys.stderr)
        return None


class StepGraph:
    """A function of batches, recorded with the tensors that it reads and writes. Every call finds them at one place.

    The function must not wait for the device, and must change its tensors in place. It is not kept, so that a trainer
    with a graph is in no reference cycle.
    """

    def __init__(
        self,
        step: Update,
        batches: Sequence[LoadedBatch],
        changed: Tensors,
        record: Record,
        tolerance: float,
    ) -> None:
        """Record `step`; its tensors `changed` and the random generators stay as they are.

        Calls copy their inputs to `batches`. CannotRecordError if the recording fails for any reason, or if a call
        differs from a step without it by more than the relative `tolerance`.
        """
        self._batches = batches
        device = batches[0].targets.device
        devices = [device] if device.type == "cuda" else []
        # Not on the default stream, where nothing can be recorded; and to free another graph would end the recording.
        stream = torch.cuda.Stream() if devices else None
        if stream:
            stream.wait_stream(torch.cuda.current_stream())
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            with torch.random.fork_rng(devices), torch.cuda.stream(stream):
                self._record(partial(step, batches), changed, record, stream, tolerance)
        except CannotRecordError:
            raise
        except Exception as error:  # a compiler's, a kernel's, the memory's: the steps are possible without a graph
            # The end of a recording that has failed raises a second error.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            raise CannotRecordError(f"cannot be recorded ({one_line(cause)})") from error
        finally:
            if stream:
                torch.cuda.current_stream().wait_stream(stream)
            if collects:
                gc.enable()

    def _record(
        self,
        step: Step,
        changed: Tensors,
        record: Record,
        stream: "torch.cuda.Stream | None",
        tolerance: float,
    ) -> None:
        before = _copies(changed)
        try:
            expected = _seeded(step)
            eager = _copies(changed)
            for _ in range(_N_WARM_UP - 1):
                step()
            self._replay, self._results = record(step, stream)

            # A recording can go wrong without an error, and train on with a plausible loss.
            _restore(changed, before)
            found = _seeded(self._replayed)
            wanted = [*expected, *_change(eager, eager, before)]
            replayed = [*found, *_change(_copies(changed), eager, before)]
        finally:
            _restore(changed, before)
        for name, value, reference in zip(_COMPARED, replayed, wanted, strict=True):
            # A step that is not finite changes nothing, with or without a record.
            is_nan = math.isnan(value) and math.isnan(reference)
            if not (is_nan or math.isclose(value, reference, rel_tol=tolerance)):
                problem = f"{name} {value:.5g} instead of {reference:.5g}"
                raise CannotRecordError(f"does something else when it is recorded ({problem})")

    def _replayed(self) -> Results:
        self._replay()
        return self._results

    def __call__(self, batches: Sequence[LoadedBatch]) -> Results:
        """Return the results of the step on `batches` of the recorded shapes."""
        for own, batch in zip(self._batches, batches, strict=True):
            for tensor, value in zip(own.tensors(), batch.tensors(), strict=True):
                assert tensor.shape == value.shape  # or copy_ would repeat a batch of one row
                tensor.copy_(value, non_blocking=True)
        loss, norm = self._replayed()
        return loss.clone(), norm.clone()  # the next call writes to the same places


def _seeded(step: Step) -> list[float]:
    """Take a step with one state of the random generators, for dropout; return its results."""
    torch.manual_seed(0)
    return [result.item() for result in step()]


def _copies(tensors: Tensors) -> list[Tensor]:
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


@torch.no_grad()
def _restore(changed: Tensors, values: Tensors) -> None:
    for tensor, value in zip(changed, values, strict=True):
        tensor.copy_(value)  # waits for the stream


def _change(after: Tensors, eager: Tensors, before: Tensors) -> tuple[float, float]:
    """Return the change of tensors along that of an eager step, and its squared length, as shares of that change.

    The mean over the tensors. Single numbers would not do: Adam makes a step of any sign of rounding errors.
    """
    along, lengths = [], []
    for tensor, reference, start in zip(after, eager, before, strict=True):
        wanted = (reference - start).double()
        size = wanted.square().sum().item()
        if size:  # at step 0 many gradients are exactly 0
            change = (tensor - start).double()
            along.append((change * wanted).sum().item() / size)
            lengths.append(change.square().sum().item() / size)
    return fmean(along), fmean(lengths)
