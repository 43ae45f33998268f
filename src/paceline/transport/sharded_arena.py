"""Sharded arena: an arena without vectors for a model whose parameters are sharded over all ranks.

torch's `fully_shard` (FSDP2) splits every parameter along its first dimension. A
rank keeps one shard of each, with its gradient and optimizer state; whole
parameters exist only while a block computes. Buffers are small and stay whole on
every rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._collective_utils import MeshTopoInfo
from torch.distributed.tensor._redistribute import _gen_transform_infos, clear_redistribute_planner_cache
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from paceline.transport.arena import Arena, Layout

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_MESHES = count()
_NOT_CALLED = (nn.ParameterList, nn.ParameterDict)  # never called: their parent computes with them


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of parameters gathered and gradients reduced by one step, over all ranks."""

    gathered: int
    reduced: int


class ShardedArena(Arena):
    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        *,
        blocks: Sequence[nn.Module] | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """Shard the module over the default process group, block by block, and move it to the device."""
        self.layout = Layout.of(module)
        self.module = module
        self.gathers_gradients = False
        self.state = self.gradients = torch.empty(0, dtype=self.layout.dtype, device=device)
        units = own_units(module, blocks_of(module) if blocks is None else blocks)
        self._compute_dtype = compute_dtype
        self._in_units = sum(p.numel() for unit in units for p in unit.parameters())
        self.mesh = _mesh(device)
        for part in (*units, module):
            _split(part, self.mesh, compute_dtype)
        self._parameters = list(module.parameters())
        self._buffers = _persistent_buffers(module)

    @property
    def sharded(self) -> list[DTensor]:
        """The parameters as distributed tensors."""
        parameters: list[DTensor] = [p for p in self._parameters if isinstance(p, DTensor)]
        assert len(parameters) == len(self._parameters), "every parameter is split"
        return parameters

    def expect_more(self, *, more: bool) -> None:
        """Sum the micro-batches' gradients locally, and reduce them once."""
        assert isinstance(self.module, FSDPModule), "it was split"
        self.module.set_requires_gradient_sync(not more)

    def local_parts(self) -> list[nn.Parameter]:
        """This rank's shard of each parameter, in the same memory, as plain tensors."""
        return [nn.Parameter(_local(p)) for p in self.sharded]

    def local_gradients(self) -> list[Tensor]:
        """The gradients of the local shards; zeros where the loss did not depend on one."""
        return [_local_gradient(p) for p in self.sharded]

    def like_parameter(self, number: int, local: Tensor) -> DTensor:
        """A distributed tensor, sharded like this parameter, from this rank's shard."""
        whole = self.sharded[number]
        return DTensor.from_local(
            local, self.mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )

    def whole_state(self) -> "GatheredState":
        return GatheredState(self.module.state_dict())

    def average_buffers(self, weight: float = 1.0) -> None:
        """Average the batch statistics over all workers, as in ssgd; `weight` is this worker's factor."""
        if not self._buffers:
            return
        flat = torch.cat([buffer.reshape(-1) for buffer in self._buffers])
        if weight != 1.0:
            flat.mul_(weight)
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        parts = torch.split(flat, [buffer.numel() for buffer in self._buffers])
        for buffer, mean in zip(self._buffers, parts, strict=True):
            buffer.copy_(mean.view_as(buffer))

    @property
    def moved(self) -> StepBytes:
        """Parameters in blocks are gathered for forward and again for backward, the rest once."""
        numbers = sum(p.numel() for p in self._parameters)
        sent = self.layout.dtype if self._compute_dtype is None else self._compute_dtype
        return StepBytes((numbers + self._in_units) * sent.itemsize, numbers * self.layout.dtype.itemsize)


class GatheredState(Mapping[str, Tensor]):
    """The whole of a sharded state: each tensor is gathered when it is read, by all ranks alike."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._state[name].detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The default blocks that are gathered at once: the children, and the children of containers."""
    blocks: list[nn.Module] = []
    for child in module.children():
        if isinstance(child, _CONTAINERS):
            blocks += blocks_of(child)
        elif not isinstance(child, _NOT_CALLED) and any(True for _ in child.parameters()):
            blocks.append(child)
    return blocks


def own_units(module: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks that share no parameters with others: separate sharding would break tied parameters."""
    users: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        users[id(parameter)] = users.get(id(parameter), 0) + 1
    units = []
    for block in blocks:
        inside: dict[int, int] = {}
        for _, parameter in block.named_parameters(remove_duplicate=False):
            inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        if block is not module and inside and all(users[key] == count for key, count in inside.items()):
            units.append(block)
    return units


def _mesh(device: torch.device) -> DeviceMesh:
    group = dist.group.WORLD
    assert group is not None, "the process group is made before the model is split over it"
    # A unique name: torch caches facts about sharded tensors by equal meshes, also which shard is local, and
    # in the next group of this process that may differ.
    return DeviceMesh.from_group(group, device.type, mesh_dim_names=(f"workers{next(_MESHES)}",))


def forget_meshes() -> None:
    """Clear torch's caches about sharded tensors: they keep their process group alive."""
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    clear_redistribute_planner_cache()
    _gen_transform_infos.cache_clear()
    MeshTopoInfo.build_from_mesh.cache_clear()
    ShardingPropagator._propagate_tensor_meta_cached.cache_clear()


def _split(part: nn.Module, mesh: DeviceMesh, compute_dtype: torch.dtype | None) -> None:
    # Sums are taken in the parameters' own precision: a sum of thousands of bf16 values loses small ones.
    reduce_dtype = None if compute_dtype is None else next(part.parameters()).dtype
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduce_dtype)
    # A single rank has all shards: resharding after forward would only copy them again.
    reshards = None if mesh.size() > 1 else False  # None: all but the outermost do
    wrapped = fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    assert isinstance(wrapped, FSDPModule), "fully_shard changes the class of what it splits"
    if mesh.device_type == "cpu":  # gloo has no mean; the sum is divided afterwards
        wrapped.set_force_sum_reduction_for_comms(True)


def _persistent_buffers(module: nn.Module) -> list[Tensor]:
    """The buffers that a checkpoint holds; constant tables are the same on all ranks anyway."""
    state = module.state_dict(keep_vars=True)
    return [b for name, b in module.named_buffers() if name in state and b.is_floating_point()]


def _local(tensor: DTensor) -> Tensor:
    detached = tensor.detach()
    assert isinstance(detached, DTensor), "a split tensor stays one"
    return detached.to_local()


def _local_gradient(parameter: DTensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(_local(parameter))
    assert isinstance(gradient, DTensor), "gradients are split as their parameters are"
    return gradient.to_local()
