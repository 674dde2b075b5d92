"""Several processes that train one model, started by torchrun: rank, collectives, DDP and FSDP2, full state dicts.

Every process takes the same steps on its own rows of each batch. Only rank 0 evaluates and writes files. Modules of
torch.distributed that take half a second or more to import are imported where they are used.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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
    """Initialise the process group that torchrun describes in the environment, and destroys it at the end.

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


def shard(model: nn.Module, device: torch.device) -> None:
    """Shard the weights of `model` over all ranks with FSDP2, one group for each block and one for the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


@contextmanager
def gradient_sync(module: nn.Module, *, enabled: bool) -> Iterator[None]:
    """Average the gradients over ranks in the backward pass of the body, if enabled; else they add up locally."""
    if dist.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        fsdp = next((child for child in module.modules() if isinstance(child, FSDPModule)), None)
        if fsdp is not None:
            fsdp.set_requires_gradient_sync(enabled)
    if isinstance(module, DistributedDataParallel) and not enabled:
        with module.no_sync():
            yield
    else:
        yield


def full_state(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the full state dicts on the CPU, the same for every number of processes and kind of sharding.

    A collective call: sharded tensors are gathered on rank 0, and the other ranks get empty dicts.
    """
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
    )

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = {"model": get_model_state_dict(model, options=options), "optimizer": {}}
    # Before the first step torch would make up a state.
    if any(optimizer.state for optimizer in optimizers):
        optimizer_state = get_optimizer_state_dict(model, optimizers, options=options)
        state["optimizer"] = optimizer_state.get("state", {})
    return state


def load_full_state(model: nn.Module, optimizers: list[torch.optim.Optimizer], state: dict[str, Any]) -> None:
    """Load the dicts of `full_state`, which every rank must have. Learning rates and the like stay as they are."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, state["model"], options=options)
    optimizer_state = state["optimizer"]
    if optimizer_state:
        current = get_optimizer_state_dict(model, optimizers)
        saved = {"state": optimizer_state, "param_groups": current["param_groups"]}
        set_optimizer_state_dict(model, optimizers, optim_state_dict=saved, options=options)
