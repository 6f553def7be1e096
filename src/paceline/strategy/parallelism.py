"""How the work is divided among the devices: a mesh of named dimensions, what is shared out, micro batches, recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from paceline.errors import UserError, check_count, check_flag, check_name
from paceline.strategy.sharding import SHARDINGS, Sharding

MESH = ("pipeline", "data", "context", "tensor")
"""Dimensions of the mesh, outermost first: neighbours in ``tensor`` are neighbours in a node (torchtitan's order of
``DeviceMesh`` dimensions). Experts lie within ``data``."""
_NOT_YET = ("tensor", "pipeline", "context", "expert")
ALIASES = {"fsdp": "zero3", "none": "ddp"}
"""Other names of a sharding; ``fsdp`` with full sharding is ``zero3``."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The mesh of devices and what each of its dimensions divides.

    Attributes:
        data: replicas that work on different samples.
        tensor, pipeline, context, expert: devices that share a layer, the layers, a sequence, the experts; 1 divides nothing.
        sharding: what the data dimension keeps whole or shares out: ``ddp``, ``zero1``, ``zero2`` or ``zero3``, also called
            ``fsdp`` (``strategy/sharding.py``).
        micro_batches: of one step on one replica, one after the other.
        recompute: whether the backward pass runs each block's forward pass again and keeps only the blocks' inputs.

    Raises:
        UserError: a size that is no whole number from 1 up, a sharding that does not exist, a dimension that is not served yet.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sharding: str = "ddp"
    micro_batches: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sharding, str):
            object.__setattr__(self, "sharding", ALIASES.get(self.sharding, self.sharding))
        check_name("sharding", self.sharding, (*SHARDINGS, "fsdp"))
        for name, what in _COUNTS.items():
            object.__setattr__(self, name, check_count(getattr(self, name), what))
        for name in _NOT_YET:
            if getattr(self, name) > 1:
                raise UserError(
                    f"{name} parallelism of {getattr(self, name)} is neither predicted nor trained yet",
                    f"give {name}=1 and divide by data",
                )
        check_flag(self.recompute, "recompute")

    @property
    def mesh(self) -> dict[str, int]:
        """Sizes of the dimensions, outermost first, as ``torch.distributed.device_mesh`` takes names and shape."""
        return {name: getattr(self, name) for name in MESH}

    @cached_property
    def devices(self) -> int:
        """Devices of the mesh."""
        return self.pipeline * self.data * self.context * self.tensor

    @property
    def shares(self) -> Sharding:
        """What the data dimension shares out."""
        return SHARDINGS[self.sharding]

    def check_covers(self, devices: int) -> None:
        """Raises UserError where the mesh has another number of devices than a cluster."""
        if self.devices != devices:
            raise UserError(
                f"the strategy has {self.devices} workers and the cluster {devices} devices", "give both the same number"
            )


_COUNTS = {"data": "workers", **{name: name for name in _NOT_YET}, "micro_batches": "micro steps"}
"""Fields that count something, and what an error calls it."""
