"""How the work is divided among the devices: a mesh of named dimensions, what is shared out, micro batches, recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from paceline.errors import UserError, check_count, check_flag, check_name, shown
from paceline.strategy.sharding import SHARDINGS, Sharding

MESH = ("pipeline", "data", "context", "tensor")
"""Dimensions of the mesh, outermost first: neighbours in ``tensor`` are neighbours in a node (torchtitan's order of
``DeviceMesh`` dimensions). Experts lie within ``data``."""
MODEL = ("pipeline", "context", "tensor")
"""Dimensions that hold one replica together."""
_NOT_YET = ("expert",)
CONTEXT_EXCHANGES = ("ring", "all_to_all")
"""How attention gets the keys and values of other devices' tokens: they pass around, or heads are swapped for tokens."""
GATHER_BITS = (0, 8, 16, 32)
GRADIENT_BITS = (0, 16, 32)
SCHEDULES = ("1f1b", "gpipe")
"""Orders of a pipeline's passes. ``gpipe``: all forward passes, then all backward passes (Huang et al. 2019, GPipe,
arXiv:1811.06965). ``1f1b``: one of each in turns as soon as a stage can (Narayanan et al. 2021, arXiv:2104.04473, 2.2)."""
ALIASES = {"fsdp": "zero3", "none": "ddp"}
"""Other names of a sharding; ``fsdp`` with full sharding is ``zero3``."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The mesh of devices and what each of its dimensions divides.

    Attributes:
        data: replicas that work on different samples.
        tensor, pipeline, context, expert: devices that share a layer, the layers, a sequence, the experts; 1 divides nothing.
        sequence: whether the devices of ``tensor`` also share what lies between the divided products: norms, dropout and sums,
            by tokens (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
        virtual_stages: parts of the network that each pipeline stage has; more than 1 is the interleaved schedule.
        gather_bits: of a weight that is gathered: 8 under a recipe that quantises weights before they travel
            (``fp8_param_gather``), else 16 or 32; 0: fp32 with ``zero1``, as PyTorch does, else the width of the precision.
        gradient_bits: of a gradient that is added up at the owner of its part alone: with ``zero1``, 16 or 32 (Megatron-Core,
            distributed optimizer); with ``zero2`` and ``zero3`` 0 is the width of the precision. 0 with ``zero1``: all
            owners add all gradients up in fp32, as PyTorch does.
        context_exchange: of context parallelism, a name of ``CONTEXT_EXCHANGES``.
        schedule: of a pipeline, a name of ``SCHEDULES``.
        sharding: what the data dimension keeps whole or shares out: ``ddp``, ``zero1``, ``zero2`` or ``zero3``, also called
            ``fsdp`` (``strategy/sharding.py``).
        micro_batches: of one step on one replica, one after the other.
        recompute: whether the backward pass runs each block's forward pass again and keeps only the blocks' inputs.

    Raises:
        UserError: a size that is no whole number from 1 up, a sharding or schedule that does not exist, a dimension that is not
            served yet; sequence parallelism without tensor parallelism; virtual stages or a schedule without a pipeline;
            virtual stages with gpipe, or with micro batches that are no multiple of the stages.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sharding: str = "ddp"
    micro_batches: int = 1
    recompute: bool = False
    sequence: bool = False
    virtual_stages: int = 1
    schedule: str = "1f1b"
    context_exchange: str = "ring"
    gather_bits: int = 0
    gradient_bits: int = 0

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
        for name, legal in (("gather_bits", GATHER_BITS), ("gradient_bits", GRADIENT_BITS)):
            bits = getattr(self, name)
            if type(bits) is not int or bits not in legal:
                raise UserError(f"{name}={shown(bits)}", f"give one of {', '.join(map(str, legal))}")
            if bits and not self.shares.optimizer:
                raise UserError(f"{name}={bits} with sharding {self.sharding}", "give zero1, zero2 or zero3")
        check_flag(self.recompute, "recompute")
        check_flag(self.sequence, "sequence")
        check_name("pipeline schedule", self.schedule, SCHEDULES)
        check_name("context exchange", self.context_exchange, CONTEXT_EXCHANGES)
        if self.context_exchange != "ring" and self.context == 1:
            raise UserError(
                f"context exchange {self.context_exchange} without context parallelism", "give context, or leave it out"
            )
        if self.sequence and self.tensor == 1:
            raise UserError("sequence parallelism without tensor parallelism", "give tensor, or leave sequence out")
        if self.schedule != "1f1b" and self.pipeline == 1:
            raise UserError(f"schedule {self.schedule} of a pipeline of one stage", "give pipeline, or leave schedule out")
        if self.virtual_stages > 1:
            self._check_interleaved()

    def _check_interleaved(self) -> None:
        given = f"{self.virtual_stages} virtual stages"
        if self.pipeline == 1:
            raise UserError(f"{given} of a pipeline of one stage", "give pipeline, or leave virtual_stages out")
        if self.schedule != "1f1b":
            raise UserError(f"{given} with schedule {self.schedule}", "give schedule 1f1b")
        if self.micro_batches % self.pipeline:
            raise UserError(
                f"{given} with {self.micro_batches} micro batches on {self.pipeline} stages: stages are visited in rounds",
                f"give a multiple of {self.pipeline} micro batches",
            )

    @property
    def mesh(self) -> dict[str, int]:
        """Sizes of the dimensions, outermost first, as ``torch.distributed.device_mesh`` takes names and shape."""
        return {name: getattr(self, name) for name in MESH}

    @cached_property
    def devices(self) -> int:
        """Devices of the mesh."""
        return self.pipeline * self.data * self.context * self.tensor

    @cached_property
    def model_devices(self) -> int:
        """Devices that hold one replica together."""
        return self.pipeline * self.context * self.tensor

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.data * self.context * self.tensor

    @property
    def replicas(self) -> Parallelism:
        """What one pipeline stage's part of the model sees of the mesh: replicas that add up their gradients. The devices of a
        context group are replicas too, of other tokens."""
        return Parallelism(
            data=self.data * self.context,
            sharding=self.sharding,
            micro_batches=self.micro_batches,
            recompute=self.recompute,
            gather_bits=self.gather_bits,
            gradient_bits=self.gradient_bits,
        )

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


_COUNTS = {
    "data": "workers",
    **{name: name for name in ("tensor", "pipeline", "context", "expert")},
    "micro_batches": "micro steps",
    "virtual_stages": "virtual stages",
}
"""Fields that count something, and what an error calls it."""
