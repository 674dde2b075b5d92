"""Several processes that train one model, started by torchrun: rank and collectives.

Every process takes the same steps on its own rows of each batch. Only rank 0 evaluates and writes files.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

TIMEOUT = timedelta(days=1)  # the other ranks wait while rank 0 prepares the data or evaluates


@dataclass(frozen=True, slots=True)
class Distributed:
    """The rank of this process and its collectives; with the default values a single process, without communication."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: T) -> T:
        """Return rank 0's `value`, any object that pickle can copy."""
        if self.world_size == 1:
            return value
        values = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    def all_reduce_max(self, number: int) -> int:
        """Return the largest `number` of all ranks."""
        if self.world_size == 1:
            return number
        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def all_reduce_mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of `tensor` over all ranks."""
        if self.world_size == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.world_size


SINGLE_PROCESS = Distributed()


@contextmanager
def process_group(*, use_cuda: bool) -> Iterator[Distributed]:
    """Initialise the process group that torchrun describes in the environment, and destroy it at the end.

    With `use_cuda`, gradients are on the CUDA device with the number of this process on its machine, if there is one.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield SINGLE_PROCESS
        return
    use_cuda = use_cuda and torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if use_cuda else "gloo", timeout=TIMEOUT)
    yield Distributed(dist.get_rank(), world_size)
    dist.barrier()
    dist.destroy_process_group()
