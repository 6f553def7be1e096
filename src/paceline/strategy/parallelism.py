"""How the work is divided among the devices: a mesh of named dimensions, what is shared out, micro batches, recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from paceline.errors import UserError, check_count, check_flag, check_name, known_name, shown
from paceline.strategy.offload import OFFLOADS
from paceline.strategy.recompute import Recomputation, recompute_choice
from paceline.strategy.sharding import DISTRIBUTED, SHARDINGS, Sharding, check_shares, divided

MESH = ("pipeline", "data", "context", "tensor")
"""Dimensions of the mesh, outermost first: neighbours in ``tensor`` are neighbours in a node (torchtitan's order of
``DeviceMesh`` dimensions). Groups of experts lie within a pipeline stage, across its other dimensions (Megatron-Core)."""
MODEL = ("pipeline", "context", "tensor")
"""Dimensions that hold one replica together."""
CONTEXT_EXCHANGES = ("ring", "all_to_all")
"""How attention gets the keys and values of other devices' tokens: they pass around, or heads are swapped for tokens."""
GATHER_BITS = (0, 8, 16, 32)
GRADIENT_BITS = (0, 16, 32)
SCHEDULES = ("1f1b", "gpipe", "zero_bubble")
EXPERT_EXCHANGES = ("all_to_all", "once_per_node")
"""How tokens get to their experts: a copy for each expert, or one to each node that has some of them, which copies it there
(DeepSeek-AI, DeepEP, and Megatron-Core's flexible dispatcher; arXiv:2412.19437, section 3.2.2)."""
"""Orders of a pipeline's passes. ``gpipe``: all forward passes, then all backward passes (Huang et al. 2019, GPipe,
arXiv:1811.06965). ``1f1b``: one of each in turns as soon as a stage can (Narayanan et al. 2021, arXiv:2104.04473, 2.2).
``zero_bubble``: as 1f1b, and the gradients of weights fill the waits (ZB-H1; Qi et al. 2024, arXiv:2401.10241, 2.2)."""
ALIASES = {
    "none": "ddp",
    "data parallel": "ddp",
    "fsdp": "zero3",
    "fsdp2": "zero3",
    "full_shard": "zero3",
    "shard_grad_op": "zero2",
    "ZeroRedundancyOptimizer": "zero1",
    "megatron distributed optimizer": DISTRIBUTED,
    **{
        f"{words} {stage}": f"zero{stage}"
        for words in ("deepspeed zero", "deepspeed stage", "zero stage")
        for stage in (1, 2, 3)
    },
}
"""Other names of a sharding: PyTorch's (``fsdp`` and ``fsdp2`` share out everything), DeepSpeed's, Megatron's."""
_SHARDINGS = (*SHARDINGS, "fsdp")


def check_wire_bits(name: str, bits: object, legal: Sequence[int]) -> int:
    """``bits`` of what travels, one of ``legal``. Raises UserError."""
    if type(bits) is not int or bits not in legal:
        raise UserError(f"{name}={shown(bits)}", f"give one of {', '.join(map(str, legal))}")
    return bits


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The mesh of devices and what each of its dimensions divides.

    Attributes:
        data: replicas that work on different samples.
        tensor, pipeline, context: devices that share a layer, the layers, a sequence; 1 divides nothing.
        expert: devices of a pipeline stage, neighbours in it, that share the experts of a mixture.
        expert_tensor: devices that share each expert, by its inner width.
        expert_imbalance: tokens of the device whose experts get most, over the mean of the group; 1 if all get the same, or
            nearly so, as with a loss or a bias that balances them; ``expert`` if it gets all. Experts that are padded to a
            capacity factor have that many.
        expert_exchange: of expert parallelism, a name of ``EXPERT_EXCHANGES``.
        expert_overlap: whether those exchanges run beside the computing of another micro batch, block by block (DualPipe:
            arXiv:2412.19437, section 3.2.1; Megatron-Core, ``overlap_moe_expert_parallel_comm``).
        sequence: whether the devices of ``tensor`` also share what lies between the divided products: norms, dropout and sums,
            by tokens (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
        virtual_stages: parts of the network that each pipeline stage has; more than 1 is the interleaved schedule.
        gather_bits: of a weight that is gathered: 8 under a recipe that quantises weights before they travel
            (``fp8_param_gather``), else 16 or 32; 0: fp32 with ``zero1``, as PyTorch does, else the width of the precision.
            With ``zero2`` and ``zero3`` fewer bits than the precision has round the weights that are gathered, to bfloat16 or
            int8 (ZeRO++).
        gradient_bits: of a gradient that is added up at the owner of its part alone: with ``zero1``, 16 or 32 (Megatron-Core,
            distributed optimizer); with ``zero2`` and ``zero3`` 0 is the width of the precision. 0 with ``zero1``: all
            owners add all gradients up in fp32, as PyTorch does.
        context_exchange: of context parallelism, a name of ``CONTEXT_EXCHANGES``.
        first_stage_layers, last_stage_layers: blocks of these stages, which have the embedding and the logits too; 0: as many
            as the others (Megatron-Core, ``--decoder-first-pipeline-num-layers``).
        schedule: of a pipeline, a name of ``SCHEDULES``.
        sharding: what the data dimension keeps whole or shares out: ``ddp``, ``zero1``, ``zero2``, ``zero3``, also called
            ``fsdp`` (``strategy/sharding.py``). ``zero1`` of a divided network is ``distributed_optimizer``.
        shard_devices: replicas, neighbours, that share out one copy of what ``sharding`` names; other groups of as many hold
            copies of it, whose gradients an all-reduce adds up (PyTorch, HSDP). 0: all replicas share one.
        offload: what lies in the host's memory: ``none``, ``optimizer`` or ``weights+optimizer`` (``strategy/offload.py``).
        micro_batches: of one step on one replica, one after the other.
        recompute: what the backward pass computes again: ``none``, ``selective`` or ``full``, or parts by name
            (``strategy/recompute.py``); True is ``full``.
        recompute_layers: blocks of each stage's part of the network in which it does so; 0: all.

    Raises:
        UserError: a size that is no whole number from 1 up; a sharding, schedule or recomputation that does not exist; layers
            to recompute without recomputation; sequence parallelism without tensor parallelism; virtual stages or a schedule
            without a pipeline; virtual stages with another schedule than 1f1b, or with micro batches that are no multiple of
            the stages; groups of experts that do not divide a stage's devices, an imbalance below 1 or above ``expert``; what
            concerns such groups without them, an overlap without a second micro batch.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    expert_imbalance: float = 1.0
    expert_exchange: str = "all_to_all"
    expert_overlap: bool = False
    sharding: str = "ddp"
    shard_devices: int = 0
    offload: str = "none"
    micro_batches: int = 1
    recompute: str = "none"
    recompute_layers: int = 0
    sequence: bool = False
    virtual_stages: int = 1
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    schedule: str = "1f1b"
    context_exchange: str = "ring"
    gather_bits: int = 0
    gradient_bits: int = 0

    def __post_init__(self) -> None:
        sharding = known_name("sharding", self.sharding, _SHARDINGS, ALIASES)
        object.__setattr__(self, "sharding", ALIASES.get(sharding, sharding))
        for name, what in _COUNTS.items():
            object.__setattr__(self, name, check_count(getattr(self, name), what))
        self._check_groups()
        check_name("offload", self.offload, OFFLOADS)
        if self.offload == "weights+optimizer" and not self.shares.weights:
            raise UserError(f"offload of weights with sharding {self.sharding}, which holds them whole", "give sharding zero3")
        object.__setattr__(self, "recompute", recompute_choice(self.recompute))
        object.__setattr__(self, "recompute_layers", check_count(self.recompute_layers, "layers to recompute", least=0))
        if self.recompute_layers and self.recompute == "none":
            raise UserError(f"{self.recompute_layers} layers to recompute without recomputation", "give recompute='full' too")
        for name, legal in (("gather_bits", GATHER_BITS), ("gradient_bits", GRADIENT_BITS)):
            bits = check_wire_bits(name, getattr(self, name), legal)
            if bits and not self.shares.optimizer:
                raise UserError(f"{name}={bits} with sharding {self.sharding}", "give zero1, zero2 or zero3")
        check_flag(self.sequence, "sequence")
        check_flag(self.expert_overlap, "expert_overlap")
        check_name("expert exchange", self.expert_exchange, EXPERT_EXCHANGES)
        check_name("pipeline schedule", self.schedule, SCHEDULES)
        check_name("context exchange", self.context_exchange, CONTEXT_EXCHANGES)
        if self.context_exchange != "ring" and self.context == 1:
            raise UserError(
                f"context exchange {self.context_exchange} without context parallelism", "give context, or leave it out"
            )
        if self.sequence and self.tensor == 1:
            raise UserError("sequence parallelism without tensor parallelism", "give tensor, or leave sequence out")
        for name in ("first_stage_layers", "last_stage_layers"):
            count = check_count(getattr(self, name), name.replace("_", " "), least=0)
            object.__setattr__(self, name, count)
            if count and self.pipeline == 1:
                raise UserError(f"{name} {count} of a pipeline of one stage", f"give pipeline, or leave {name} out")
        if self.schedule != "1f1b" and self.pipeline == 1:
            raise UserError(f"schedule {self.schedule} of a pipeline of one stage", "give pipeline, or leave schedule out")
        if self.virtual_stages > 1:
            self._check_interleaved()
        if self.expert_devices > 1:
            self._check_experts()
        if self.expert == 1:
            for name, usual in _OF_EXPERTS.items():
                if getattr(self, name) != usual:
                    raise UserError(f"{name.replace('_', ' ')} without expert parallelism", f"give expert, or leave {name} out")
        elif self.expert_overlap and self.micro_batches == 1:
            raise UserError("an overlap of experts with one micro batch: there is no other to compute", "give micro_batches")

    def _check_experts(self) -> None:
        group, stage = self.expert_devices, self.stage_devices
        if stage % group:
            raise UserError(
                f"{group} devices that share the experts do not divide the {stage} of a pipeline stage "
                "(data x context x tensor)",
                f"give a divisor of {stage}",
            )
        size = self.expert_imbalance
        if isinstance(size, bool) or not isinstance(size, int | float) or not 1 <= size < inf:
            raise UserError(f"expert_imbalance={shown(size)}", "give 1, or how much more the fullest device gets: 1.2")
        if size > self.expert > 1:  # one has all tokens; the devices of expert_tensor have the same ones
            raise UserError(
                f"expert_imbalance={shown(size)}: all tokens on one device are {self.expert} times the mean of {self.expert}",
                f"give at most {self.expert}",
            )

    def _check_groups(self) -> None:
        size, replicas = check_count(self.shard_devices, "devices that share one copy", least=0), self.data * self.context
        object.__setattr__(self, "shard_devices", size)
        if size and self.sharding == "ddp":
            raise UserError(f"shard_devices {size} with sharding ddp, which shares nothing out", "give sharding zero3")
        if size and replicas % size:
            raise UserError(f"groups of {size} devices do not divide {replicas} replicas", f"give a divisor of {replicas}")
        if size and self.shares.weights:
            check_shares(size, replicas // size)

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
    def ends(self) -> tuple[int, int]:
        """Blocks of the first and of the last stage; 0: as many as the others."""
        return self.first_stage_layers, self.last_stage_layers

    @property
    def expert_devices(self) -> int:
        """Devices that share the experts of a block."""
        return self.expert * self.expert_tensor

    @property
    def whole(self) -> bool:
        """Whether each device holds the whole network."""
        return self.model_devices == 1 and self.expert_devices == 1

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.data * self.context * self.tensor

    @property
    def replicas(self) -> Parallelism:
        """What one pipeline stage's part of the model sees of the mesh: replicas that add up their gradients. The devices of a
        context group are replicas too, of other tokens."""
        return self._data_parallel(self.data * self.context, self.shard_devices)

    @property
    def expert_replicas(self) -> Parallelism:
        """The same for the experts that a device has: so many devices of the stage have the same ones."""
        return self._data_parallel(self.stage_devices // self.expert_devices)

    def _data_parallel(self, devices: int, shard_devices: int = 0) -> Parallelism:
        """The stage's data dimension alone, over so many devices."""
        return Parallelism(
            data=devices,
            sharding=self.real_sharding,
            shard_devices=shard_devices,
            offload=self.offload,
            micro_batches=self.micro_batches,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers * self.virtual_stages,
            gather_bits=self.gather_bits,
            gradient_bits=self.gradient_bits,
        )

    @property
    def real_sharding(self) -> str:
        """``sharding``, or what it is where several devices hold a replica."""
        return self.sharding if self.whole else divided(self.sharding)

    @cached_property
    def recomputation(self) -> Recomputation:
        """What the backward pass computes again."""
        return Recomputation.of(self.recompute, self.recompute_layers)

    @property
    def sharers(self) -> int:
        """Replicas that share out one copy."""
        return self.shard_devices or self.data * self.context

    @property
    def to_owners(self) -> bool:
        """Whether an exchange leaves each replica the sums of its own share alone: without copies of the shares (HSDP)."""
        return self.shares.weights and self.sharers == self.data * self.context

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


_OF_EXPERTS = {"expert_imbalance": 1.0, "expert_exchange": "all_to_all", "expert_overlap": False}
"""Fields that say something of groups of experts, and their values without any."""
_COUNTS = {
    "data": "workers",
    **{name: name for name in ("tensor", "pipeline", "context", "expert", "expert_tensor")},
    "micro_batches": "micro steps",
    "virtual_stages": "virtual stages",
}
"""Fields that count something, and what an error calls it."""
