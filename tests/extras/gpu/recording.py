"""What a CUDA graph does, on a CPU: every operation of a step with its tensors, run again with all else frozen."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # the name that PyTorch documents
from torch.utils._pytree import tree_leaves

from extras.gpu.graph import Results


def tensors_in(values: object) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class Operations(TorchDispatchMode):
    """The operations that run in the body: function, arguments and result of each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, result in self.calls:
            places = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
            for old, new in zip(tensors_in(result), tensors_in(function(*args, **kwargs)), strict=True):
                if old.untyped_storage()._cdata not in places:  # not a view, and not changed in place
                    old.copy_(new)


def record_operations(step: Callable[[], Results], stream: object) -> tuple[Callable[[], None], Results]:
    """Record a step as `record_cuda_graph` does: numbers of Python and shapes are those of the recorded step."""
    with Operations() as operations:
        results = step()
    return operations.replay, results
