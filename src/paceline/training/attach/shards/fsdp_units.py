"""Units of a model that ``fully_shard`` (FSDP2) has sharded: their tensors, ranks and order of elements.

Only this module reads private attributes of FSDP2. PyTorch 2.13's names are tried first, then those of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._compile import _disable_dynamo
from torch.distributed.device_mesh import DeviceMesh

from paceline.errors import UserError
from paceline.strategy.sharding import check_shares
from paceline.training.attach.attachable import look_once, replicated
from paceline.training.attach.shards.unit_exchange import ShardedTensor, sharded
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # before PyTorch 2.6
    FSDPModule = None  # type: ignore[assignment,misc]


@dataclass(frozen=True, eq=False)
class Unit:
    """Tensors that FSDP2 gathers and scatters together. The set of trained ones is fixed at creation.

    Attributes:
        module: whose communication can be replaced.
        group: FSDP2's own record of the unit.
        tensors: trained tensors in the order of its rows; offsets count the elements of all units. None in a frozen unit.
        records: FSDP2's own records of them, in the same order.
        frozen: records of the other tensors, by name.
        first: number of elements of the rows of all units before this one.
        shard_group: the ranks that share the unit out.
        replicate_group: in HSDP, the ranks that hold the same shard; None without.
    """

    module: Any
    group: Any
    tensors: tuple[ShardedTensor, ...]
    records: tuple[Any, ...]
    frozen: Mapping[str, Any]
    first: int
    shard_group: dist.ProcessGroup
    replicate_group: dist.ProcessGroup | None

    @property
    def owners(self) -> int:
        """Number of ranks that shard the unit."""
        return self.shard_group.size()

    @property
    def columns(self) -> int:
        """Number of elements of a rank's shard, padding included."""
        return sum(t.shard for t in self.tensors)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Sharded parameters, in the order of ``tensors``."""
        return [p.sharded_param for p in self.records]

    @property
    def device(self) -> torch.device:
        """Device of the trained tensors' shards; for the meta device, the one that ``to_empty`` will use."""
        first = self.records[0]
        device: torch.device = first.sharded_param.device
        if device.type != "meta":
            return device
        kind: str = "cpu" if first.offload_to_cpu else first.sharded_param.device_mesh.device_type
        return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())

    @property
    def thawed(self) -> list[str]:
        """Names of tensors that were frozen when the unit was made and are trained now."""
        return [name for name, p in self.frozen.items() if p.sharded_param.requires_grad]

    @property
    def communication(self) -> str:
        """Name of the class that replaces FSDP2's own exchanges; empty if there is none."""
        for comm in (self.group._reduce_scatter_comm, self.group._all_gather_comm):
            if type(comm).__name__ not in ("DefaultReduceScatter", "DefaultAllGather"):
                return type(comm).__name__
        return ""

    @property
    def adds_replicas(self) -> bool:
        """True if FSDP2 asks for the sum over the replicas in this backward pass (``set_requires_all_reduce``)."""
        return bool(self.group.all_reduce_grads)

    @property
    def gathered(self) -> torch.dtype:
        """Type in which FSDP2 gathers the weights."""
        dtype: torch.dtype = self.group.mp_policy.param_dtype or self.group.fsdp_params[0].sharded_param.dtype
        return dtype

    @property
    def gathered_shards(self) -> list[int]:
        """Elements of a shard of each tensor, frozen ones too, as FSDP2 gathers them."""
        return [p._sharded_param_data.numel() for p in self.group.fsdp_params]

    @staticmethod
    def shard_of(parameter: Any) -> torch.Tensor:
        """Return this rank's part of a sharded parameter."""
        shard: torch.Tensor = parameter.to_local()
        return shard

    def label(self, tensor: ShardedTensor) -> str:
        """Return the tensor's name in a checkpoint. With tensor parallelism each rank of that dimension has another name."""
        parameter = next(p for p, t in zip(self.records, self.tensors, strict=True) if t is tensor)
        place = _model_place(parameter)
        return f"{tensor.name}@{'.'.join(map(str, place))}" if place else tensor.name

    def may_be_late(self, output: torch.Tensor) -> bool:
        """True if FSDP2 reads the reduced gradients only after the backward pass, so they may still be in flight then.

        It reads them at once to change their type, to divide, to add to earlier gradients, to move them to the host and for
        hooks of a parameter.
        """
        group, parameters = self.group, self.parameters
        return (
            group._orig_dtype == output.dtype
            and output.dtype in (torch.float32, torch.bfloat16)
            and group.gradient_divide_factor is None
            and not getattr(group, "force_sum_reduction_for_comms", False)
            and group._all_reduce_hook is None
            and all(p.grad is None and not getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters)
            and not any(p.offload_to_cpu for p in group.fsdp_params)
        )

    def divisor(self, op: Any) -> float:
        """Divisor of the sum over the ranks of the mesh. FSDP2 divides by the remaining factor itself."""
        if self.group.gradient_divide_factor is not None and op != dist.ReduceOp.SUM:
            return float(self.group.gradient_divide_factor)
        replicas = 1 if self.replicate_group is None else self.replicate_group.size()
        if op == dist.ReduceOp.SUM:  # of fp16: FSDP2 divides by the owners before and after
            return 1.0 if self.group.gradient_divide_factor is not None else float(replicas)
        return float(self.owners * replicas)


def is_sharded(model: object) -> bool:
    """Return whether ``fully_shard`` was called on the model itself or on one of its modules."""
    if FSDPModule is None or not isinstance(model, nn.Module):
        return False
    return any(isinstance(module, FSDPModule) for module in model.modules())


def units_of(model: nn.Module) -> list[Unit]:
    """Return the units in the order of the modules, including those without trained tensors, whose weights are gathered too.

    Raises:
        UserError: a module with parameters on several meshes; replicas without shards; a root that is not sharded;
            an FSDP2 of this PyTorch with other internals.
    """
    if not isinstance(model, FSDPModule):
        raise UserError(
            "fully_shard was called on parts of this model only, not on the model itself",
            "call fully_shard(model) last, as FSDP2 asks",
        )
    names = {id(p): name for name, p in model.named_parameters()}
    found: list[Unit] = []
    seen: set[int] = set()
    first = offset = 0
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in _groups(module):
            if id(group) in seen:
                continue
            seen.add(id(group))
            trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
            frozen = {names[id(p.sharded_param)]: p for p in group.fsdp_params if not p.sharded_param.requires_grad}
            shard, replicate = _process_groups(group)
            specs: list[TensorSpec] = []
            for parameter in trained:
                shape = tuple(parameter._orig_size)
                specs.append(TensorSpec(names[id(parameter.sharded_param)], shape, offset))
                offset += specs[-1].elements
            tensors = sharded(specs, [p.fsdp_placement.dim for p in trained], shard.size())
            found.append(Unit(module, group, tensors, tuple(trained), frozen, first, shard, replicate))
            first += shard.size() * found[-1].columns
    if not any(unit.tensors for unit in found):
        raise UserError("no parameter of this model is trained", "set requires_grad before attach")
    return found


def widest_mesh(units: Sequence[Unit]) -> DeviceMesh:
    """Return the mesh with the most ranks among those of all units, tensor parallel dimensions included."""
    meshes: list[DeviceMesh] = [parameter.device_mesh for unit in units for parameter in unit.parameters]  # type: ignore[attr-defined]
    return max(meshes, key=lambda mesh: int(mesh.size()))


def widest_unit(units: Sequence[Unit]) -> Unit:
    """Return the unit whose data is divided among the most ranks, counting all replicas."""
    return max(units, key=lambda u: u.owners * (1 if u.replicate_group is None else u.replicate_group.size()))


def check_root(model: nn.Module) -> None:
    """Raise UserError if the model is a part of a larger sharded model.

    FSDP2 determines the root in the first forward pass. Until then, this searches its modules for one that contains the model.
    """
    around = _containers(model)
    if not around and may_be_root(model):
        return
    whole = ""
    if around:
        root, place = max(around, key=lambda found: sum(1 for _ in found[0].modules()))
        whole = f": it is {place} of {_kind(root)}"
    raise UserError(
        f"this {_kind(model)} is a part of a sharded model{whole}. The other parts would be sent dense",
        "attach to the model on which fully_shard was called last",
    )


def _kind(module: nn.Module) -> str:
    return type(module).__name__.removeprefix("FSDP")


def may_be_root(model: Any) -> bool:
    """Return whether the model may be the root: no forward pass has shown that it is a part of another."""
    return model._get_fsdp_state()._is_root is not False


def after_each_backward(model: nn.Module, then: Callable[[], None]) -> None:
    """Call ``then`` at the end of each whole backward pass, after FSDP2's own callback.

    Autograd also announces the ends of the passes that reentrant checkpoints of activations run within it.
    """
    states: set[Any] = {m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)}
    for state in states:
        state._root_post_backward_final_callback = partial(_in_turn, state._root_post_backward_final_callback, then)


def _in_turn(first: Callable[[], None], then: Callable[[], None]) -> None:
    first()
    then()


def refuse_sparse_gradients(units: Sequence[Unit]) -> None:
    """Raise UserError at a unit's first sparse gradient, as with ``F.embedding(sparse=True)``.

    FSDP2 would only report that it cannot copy the gradient. Buffers of autograd exist from the first forward pass on.
    """
    for unit in units:
        unit.module.register_forward_pre_hook(_LookAtGradients(unit))


class _LookAtGradients:
    """Hook that runs after FSDP2's own hook, before the forward pass of a unit's module."""

    def __init__(self, unit: Unit) -> None:
        self._unseen: list[tuple[str, Any]] = [(t.name, r) for t, r in zip(unit.tensors, unit.records, strict=True)]

    @_disable_dynamo
    def __call__(self, module: nn.Module, inputs: Any) -> None:
        for name, record in self._unseen:
            if record.unsharded_param.requires_grad:
                look_once(record.unsharded_param, name)
        self._unseen.clear()


def _containers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the sharded modules that contain a model, with its name there."""
    from torch.distributed._composable_state import _module_state_mapping

    inside = set(model.modules())
    sharded_modules = [m for m in list(_module_state_mapping) if isinstance(m, FSDPModule) and m not in inside]
    return [(whole, name) for whole in sharded_modules for name, part in whole.named_modules() if part is model]


def _groups(module: Any) -> Sequence[Any]:
    """Return FSDP2's records of a module's parameters."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [group for group in (getattr(state, "_fsdp_param_group", None),) if group is not None]
    if len(groups) > 1:
        raise UserError(
            f"the parameters of {type(module).__name__} lie on several meshes, and FSDP2 cannot be given an exchange for each",
            "call fully_shard on the modules of each mesh by themselves",
        )
    return list(groups)


def _model_place(parameter: Any) -> list[int]:
    """Return this rank's coordinates in the dimensions of a mesh that divide a tensor itself (tensor parallelism)."""
    spec = getattr(parameter, "_unsharded_dtensor_spec", None) or getattr(parameter, "_tp_spec", None)
    if spec is None:
        return []
    data = getattr(parameter.mesh_info, "dp_mesh_dims", None)
    of_data = (*data.shard_names, *data.replicate_names) if data is not None else ()
    names = spec.mesh.mesh_dim_names or [""] * spec.mesh.ndim
    return [at for at, name in zip(spec.mesh.get_coordinate(), names, strict=True) if not name or name not in of_data]


def _process_groups(group: Any) -> tuple[dist.ProcessGroup, dist.ProcessGroup | None]:
    """Return the ranks that shard a unit, and the ranks with the same shard."""
    info = group.mesh_info
    shard = getattr(info, "shard_process_group", None)
    replicate = getattr(info, "replicate_process_group", None)
    if shard is None:
        raise replicated()
    if replicate is not None and replicate.size() == 1:
        replicate = None
    if replicate is not None:
        check_shares(shard.size(), replicate.size())
    return shard, replicate


def reduce_by_shards_alone(unit: Unit) -> None:
    """Make FSDP2 leave the sum over the replicas of an HSDP unit to the given reduce-scatter.

    FSDP2 sums over the replicas with a dense all-reduce that cannot be replaced. A unit without known replicas has none. Its
    parameters keep their mesh of two dimensions.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    group, info = unit.group, unit.group.mesh_info
    group.mesh_info = FSDPMeshInfo(info.mesh, shard_mesh_dim=info.shard_mesh_dim)
    if group.post_forward_mesh_info is info:  # what is unlike is gathered from other shards in the backward pass
        group.post_forward_mesh_info = group.mesh_info
