"""One model over several processes: a copy in each (DDP), or a share of every weight in each (FSDP).

Of torch.distributed's own ways to a checkpoint (torch.distributed.checkpoint.state_dict) only the idea is taken, whole
tensors on rank 0: to name an optimizer's state it takes a step of its own where there is none yet (torch 2.13,
_init_optim_state), so that a checkpoint of step 0 would count one. Whole, the state is the very one that a single
process saves: a run goes on with any number of processes, sharded or not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from training.optim import StackedMuon
from training.plain import PlainAdamW


def replicated(loss: nn.Module) -> DistributedDataParallel:
    """Return `loss`, a model with its loss, such that going back leaves the mean over all ranks in every gradient."""
    return DistributedDataParallel(loss, gradient_as_bucket_view=True)  # so that gradients need no second copy


def sharded(model: nn.Module, device: torch.device) -> nn.Module:
    """Cut every weight of `model` by rows, one share for each rank: whole only while its block, or the rest, needs it.

    Going back leaves each rank its share of the mean over all ranks of every gradient.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def exchanging(spread: nn.Module | None, *, is_last: bool) -> Iterator[None]:
    """Send gradients around after the last part of a step alone; those of the parts before are added up at home."""
    if isinstance(spread, FSDPModule):
        spread.set_requires_gradient_sync(is_last)
    if isinstance(spread, DistributedDataParallel) and not is_last:
        with spread.no_sync():
            yield
    else:
        yield


def whole(value: Any) -> Any:
    """Return nested dicts and lists with every sharded tensor whole, and on the CPU; all ranks must come here."""
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    if isinstance(value, dict):
        return {name: whole(one) for name, one in value.items()}
    return [whole(one) for one in value] if isinstance(value, list) else value


def cut(
    learned: dict[str, Any], model: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> dict[str, dict[str, Any] | list[Any]]:
    """Return whole weights and optimizers' states cut as `model`, sharded, is; the undoing of `whole`."""
    states = []
    for optimizer, saved in zip(optimizers, learned["optimizers"], strict=True):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            place: {name: _cut(one, parameters[place]) for name, one in of_one.items()}
            for place, of_one in saved["state"].items()
        }
        states.append(saved | {"state": state})
    places = model.state_dict()
    return {
        "model": {name: _cut(one, places[name]) for name, one in learned["model"].items()},
        "optimizers": states,
    }


def _cut(value: Any, like: Tensor) -> Any:
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _own(tensors: list[Tensor]) -> list[Tensor]:
    """Return of each sharded tensor this rank's share, the very memory of it."""
    return [one.to_local() if isinstance(one, DTensor) else one for one in tensors]


class ShardedAdamW(PlainAdamW):
    """AdamW on this rank's share of every weight: each number moves by itself."""

    def _init_group(self, group: dict, *lists: list[Tensor]) -> bool:  # type: ignore[override]
        """Fill `lists` as torch's does, with shares."""
        is_complex = super()._init_group(group, *lists)
        for one in lists:
            one[:] = _own(one)
        return is_complex


class ShardedMuon(StackedMuon):
    """Muon on shares: a matrix is made whole to find its move, by every rank, of which each keeps its own rows."""

    def _own(self, tensors: list[Tensor]) -> list[Tensor]:
        return _own(tensors)

    def _moves(self, wanted: Tensor, parameter: Tensor, group: dict) -> Tensor:
        """Return the rows of this rank of the moves of [N, rows of this rank, B]."""
        assert isinstance(parameter, DTensor)
        mesh, (n_rows, n_columns) = parameter.device_mesh, parameter.shape
        shape = torch.Size((len(wanted), n_rows, n_columns))
        stride = (n_rows * n_columns, n_columns, 1)
        spread = DTensor.from_local(wanted.contiguous(), mesh, [Shard(1)], run_check=False, shape=shape, stride=stride)
        moves = super()._moves(spread.full_tensor(), parameter, group)
        share = -(-n_rows // mesh.size())  # as Shard cuts: the last ranks may have fewer, or none
        return moves[:, share * mesh.get_local_rank() :][:, :share]
