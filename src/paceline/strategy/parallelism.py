"""Division of the work among the devices: mesh of named dimensions, sharding, micro batches, recomputation."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from paceline.errors import UserError
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import (
    FIGURES,
    ONE_OF,
    RUNS,
    WRITTEN,
    Need,
    Searched,
    Trained,
    check_needs,
    check_values,
    choice,
    declared,
)
from paceline.strategy.choices.choice_values import Flag, OneOf, Parsed, RealNumber, WholeNumber
from paceline.strategy.choices.values import ByName
from paceline.strategy.context_exchange import (
    CONTEXT_EXCHANGES,
    CONTEXT_RING,
    EXPERT_EXCHANGES,
    ONCE_TO_NODE,
    TO_EACH_EXPERT,
    ContextExchange,
    ExpertExchange,
)
from paceline.strategy.mesh_rules import (
    GATHER_CHOICE,
    GATHER_FORMAT_CHOICE,
    GRADIENT_CHOICE,
    INTERLEAVED,
    SEVERAL_STAGES,
    SHARD_GROUPS,
    WHOLE_GROUPS,
    WITH_EXPERTS,
    check_exchanged,
    check_gathered,
    expert_text,
    parts_text,
    recompute_text,
)
from paceline.strategy.offload import OFFLOAD_CHOICE, OFFLOAD_LAYERS, HostActivations, Offload, host_activations
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD, SCHEDULES, ZERO_BUBBLE, PassOrder
from paceline.strategy.recompute import MODULES, NO_RECOMPUTE, RECOMPUTES, TRAINED_MODULES, Recompute
from paceline.strategy.sharding import ALIASES, DDP, SHARDINGS, TORCH_SHARDINGS, Sharding

MESH = ("pipeline", "data", "context", "tensor")
"""Dimensions of the mesh, outermost first: neighbours in ``tensor`` are neighbours in a node (torchtitan's order of
``DeviceMesh`` dimensions). Groups of experts are within a pipeline stage, across its other dimensions (Megatron-Core)."""
MODEL = ("pipeline", "context", "tensor")
"""Dimensions whose devices together hold one replica."""
DIVIDING = (*MODEL, "expert")
"""Choices of the numbers of devices that divide the network."""
WITHIN_LAYER = ("tensor", "context", "expert", "expert_tensor")
"""Choices of the numbers of devices that work on one layer together."""
_SHARDED = "what replicas share out: ddp (nothing, the default), zero1 (optimizer), zero2 (and gradients), zero3 (and weights)"
_ELSEWHERE = "train with data parallelism alone, or with {} in your own script"
_SEVERAL = "may be repeated; without any of tensor, context and pipeline, all are tried where no device holds the network"


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Mesh of devices, with the meaning of each dimension.

    Attributes:
        data: replicas that work on different samples.
        tensor, pipeline, context: devices that share a layer, the layers, a sequence; 1 divides nothing.
        expert: devices of a pipeline stage, neighbours in it, that share the experts of a mixture.
        expert_tensor: devices that share each expert, by its inner width.
        expert_imbalance: most tokens of a device of the group, over the group's mean. 1: all get the same, or nearly so, as
            with a balancing loss or bias. ``expert``: one device gets all. With padding to a capacity factor it is that factor.
        expert_exchange: exchange of expert parallelism, one of ``EXPERT_EXCHANGES`` or its name.
        expert_overlap: True if those exchanges overlap the computing of another micro batch, block by block (DualPipe:
            arXiv:2412.19437, section 3.2.1; Megatron-Core, ``overlap_moe_expert_parallel_comm``).
        sequence: True if the devices of ``tensor`` also divide, by tokens, the norms, dropout and sums between the divided
            products (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
        virtual_stages: parts of the network on each pipeline stage; more than 1 is the interleaved schedule.
        gather_bits: bits of a gathered weight: 8 under a recipe that quantises weights before the gather
            (``fp8_param_gather``), else 16 or 32; 0: fp32 with ``zero1``, as PyTorch does, else the width of the precision.
            With ``zero2`` and ``zero3``, fewer bits than the precision's round weights to bfloat16 or int8 (ZeRO++).
        gather_format: format of weights rounded to 8 bits: ``int8`` or ``fp8`` (e4m3), with a scale a block and equal bytes.
        gradient_bits: bits of a gradient that is added only at the owner of its shard: with ``zero1``, 16 or 32 (Megatron-Core,
            distributed optimizer); with ``zero2`` and ``zero3`` 0 is the width of the precision. 0 with ``zero1``: all owners
            add all gradients in fp32, as PyTorch does.
        context_exchange: exchange of context parallelism, one of ``CONTEXT_EXCHANGES`` or its name.
        first_stage_layers, last_stage_layers: blocks of these stages, which also hold the embedding and the logits; 0: as many
            as the others (Megatron-Core, ``--decoder-first-pipeline-num-layers``).
        schedule: order of a pipeline's passes, one of ``SCHEDULES`` or its name.
        sharding: state that the data dimension shards: ``ddp``, ``zero1`` to ``zero3``, the last also called ``fsdp``
            (``strategy/sharding.py``). ``zero1`` of a divided network is ``distributed_optimizer``.
        shard_devices: number of neighbouring replicas that shard one copy. Other groups of this size hold further copies, and
            an all-reduce adds their gradients (PyTorch, HSDP). 0: all replicas shard one copy.
        offload: state and activations in the host's memory, such as ``weights+optimizer`` (``strategy/offload.py``).
        offload_layers: blocks of each part of a stage whose activations are; 0: all.
        micro_batches: number of micro batches of one step on one replica, one after the other.
        recompute: activations that are computed again: ``none``, ``selective``, ``full``, or parts by name (``Recompute.of``).
            ``recompute_layers``: number of recomputed blocks in each stage's part of the network; 0: all.

    Raises:
        UserError: a size that is no whole number from 1 up; a sharding, schedule or recomputation that does not exist; layers
            to recompute without recomputation; sequence parallelism without tensor parallelism; virtual stages or a schedule
            without a pipeline; virtual stages with another schedule than 1f1b, or with micro batches that are no multiple of
            the stages; groups of experts that do not divide a stage's devices, an imbalance below 1 or above ``expert``;
            options of expert parallelism without it; an overlap without a second micro batch.
    """

    data: int = choice(
        1,
        WholeNumber("workers"),
        "devices of the run, over all dimensions of the mesh; the number of replicas follows",
        name="world_size",
        option="",
        word="workers",
        example="8",
        column="",
        train=RUNS,
        grouped_by=lambda devices: devices == 1,
        emit=WRITTEN,
    )
    tensor: int = choice(
        1,
        WholeNumber("tensor"),
        "devices that divide each layer, neighbours in a node (default {default})",
        label="Tensor parallel, devices",
        of_layout=True,
        told_apart=True,
        metavar="T",
        example="4",
        title=lambda mesh: f"tensor {mesh.tensor}{' with sequence' if mesh.sequence else ''}",
        title_rank=1,
        train=Trained("tensor parallelism of {value}", _ELSEWHERE.format("torch's parallelize_module")),
        plan=Searched("tensors", help=f"devices that divide each layer, within a node; {_SEVERAL}"),
        affects=FIGURES,
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.TENSOR,
    )
    pipeline: int = choice(
        1,
        WholeNumber("pipeline"),
        "stages that follow each other (default {default})",
        label="Pipeline, stages",
        of_layout=True,
        told_apart=True,
        metavar="P",
        example="4",
        title=lambda mesh: f"pipeline {mesh.pipeline}{parts_text(mesh.virtual_stages)}",
        title_rank=2,
        train=Trained("a pipeline of {value} stages", _ELSEWHERE.format("torch.distributed.pipelining")),
        plan=Searched("pipelines", help="stages that follow each other; may be repeated"),
        affects=FIGURES,
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.PIPELINE,
    )
    context: int = choice(
        1,
        WholeNumber("context"),
        "devices that divide each sequence (default {default})",
        label="Context parallel, devices",
        of_layout=True,
        told_apart=True,
        metavar="C",
        example="2",
        title="context {value}",
        title_rank=1,
        train=Trained("context parallelism of {value}", _ELSEWHERE.format("torch's context_parallel")),
        plan=Searched("contexts", help="devices that divide each sequence; may be repeated"),
        affects=FIGURES,
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.CONTEXT,
    )
    expert: int = choice(
        1,
        WholeNumber("expert"),
        "devices of a stage that share the experts of a mixture (default {default})",
        of_layout=True,
        metavar="E",
        example="8",
        title=expert_text,
        title_rank=1,
        needs=(WHOLE_GROUPS,),
        train=Trained("expert parallelism of {of.expert_devices}", _ELSEWHERE.format("Megatron-Core")),
        plan=Searched(
            "experts",
            help="devices of a stage that share the experts of a mixture; may be repeated (default: all that layouts can have)",
        ),
        affects=FIGURES,
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.EXPERT,
    )
    expert_tensor: int = choice(
        1,
        WholeNumber("expert_tensor"),
        "devices that share each expert, by its width (default {default})",
        metavar="T",
        example="2",
        title=lambda mesh: "" if mesh.expert > 1 else expert_text(mesh),
        title_rank=1,
        needs=(WHOLE_GROUPS,),
        train=Trained("expert parallelism of {of.expert_devices}", _ELSEWHERE.format("Megatron-Core")),
        affects=FIGURES,
        emit=WRITTEN,
        synonyms=tool_names.EXPERT_TENSOR,
    )
    expert_imbalance: float = choice(
        1.0,
        RealNumber(1, sys.float_info.max, fix="give 1, or how much more the fullest device gets: 1.2"),
        "tokens of the device whose experts get most, over the mean (default {default}: balanced)",
        metavar="F",
        example="1.2",
        needs=(
            WITH_EXPERTS,
            Need(
                lambda mesh: mesh.expert_imbalance <= mesh.expert,
                "expert_imbalance={value:g}: all tokens on one device are {of.expert} times the mean of {of.expert}",
                "give at most {of.expert}",
            ),
        ),
        affects=FIGURES,
        emit=WRITTEN,
    )
    expert_exchange: ByName[ExpertExchange] = choice(
        TO_EACH_EXPERT,
        OneOf("expert exchange", EXPERT_EXCHANGES, exact=True),
        "how tokens get to their experts: {legal} (default {default})",
        metavar="E",
        example=ONCE_TO_NODE.name,
        needs=(WITH_EXPERTS,),
        source="DeepSeek-AI, DeepEP; arXiv:2412.19437, section 3.2.2",
        affects=("exchange", "time"),
        synonyms=tool_names.EXPERT_EXCHANGE,
    )
    expert_overlap: bool = choice(
        False,
        Flag(),
        "exchanges of experts overlap the computing of another micro batch",
        example="yes",
        needs=(
            WITH_EXPERTS,
            Need(
                lambda mesh: mesh.micro_batches > 1,
                "an overlap of experts with one micro batch: there is no other to compute",
                "give micro_batches",
            ),
        ),
        source="DualPipe: arXiv:2412.19437, section 3.2.1",
        affects=("exchange", "time"),
        synonyms=tool_names.EXPERT_OVERLAP,
    )
    sharding: ByName[Sharding] = choice(
        DDP,
        OneOf("sharding", SHARDINGS, ALIASES, listed=("fsdp",)),
        f"{_SHARDED}, distributed_optimizer (zero1 of Megatron-Core)",
        of_layout=True,
        told_apart=True,
        common=True,
        metavar="S",
        example="ddp",
        recorded=True,
        train=Trained(
            "sharding {value}",
            f"train with sharding {', '.join(TORCH_SHARDINGS)}",
            runs=lambda mesh: mesh.sharding.of_torch,
            option=True,
            help=_SHARDED,
        ),
        plan=Searched("shardings", values=TORCH_SHARDINGS, help=f"{ONE_OF} (default all of PyTorch)"),
        label="Sharding",
        start="zero3",
        grouped_by=lambda sharding: (sharding.weights, sharding.by_rows, sharding.frozen),
        emit=WRITTEN,
        strategy_needs=(check_gathered, check_exchanged),
        detour=lambda mesh: not mesh.sharding.is_usual(mesh.tensor * mesh.pipeline > 1),
        synonyms=tool_names.SHARDING,
    )
    shard_devices: int = choice(
        0,
        WholeNumber("devices that share one copy", 0),
        "devices that share one copy, neighbours; other groups hold copies (HSDP; default {default}: all)",
        title="shared by groups of {value}",
        listed_by_name=True,
        of_layout=True,
        metavar="N",
        example="8",
        train=replace(RUNS, read_as="sharers"),
        needs=SHARD_GROUPS,
        source="PyTorch, HSDP",
        affects=FIGURES,
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.SHARD_DEVICES,
    )
    offload: ByName[Offload] = OFFLOAD_CHOICE
    offload_layers: int = OFFLOAD_LAYERS
    micro_batches: int = choice(
        1,
        WholeNumber("micro steps"),
        "micro batches a step (default {default})",
        rule="1, or as the batches say",
        label="Accumulation",
        unset="1",
        name="grad_accum_steps",
        option="grad-accum",
        other_options=("micro-batches",),
        of_layout=True,
        common=True,
        topic="run",
        metavar="A",
        word="accumulation",
        other_words=("grad-accum",),
        example="2",
        title="{value} micro steps",
        listed_by_name=True,
        title_rank=4,
        column="grad_accum",
        recorded=True,
        train=replace(RUNS, help="micro batches a step, whose gradients add up (default 1)"),
        resumable=True,
        plan=Searched("accumulations", values=(1, 2, 4, 8), help="micro batches a step; may be repeated"),
        affects=("bytes", "time", "memory"),
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.ACCUMULATION,
    )
    recompute: ByName[Recompute] = choice(
        NO_RECOMPUTE,
        Parsed(Recompute.of, tuple(RECOMPUTES)),
        f"{{legal}}; selective:PARTS of {', '.join(MODULES)} (default {{default}}; without a value full)",
        rule="none; full next to frozen weights of 4 or 8 bits",
        label="Recomputation",
        of_layout=True,
        common=True,
        topic="memory",
        metavar="R",
        example="full",
        title=recompute_text,
        title_rank=4,
        bare="full",
        plan=Searched("recomputes", values=(False, True)),
        recorded=True,
        train=Trained(
            "recomputation {value}",
            f"train with full, selective, or selective:PARTS of {', '.join(TRAINED_MODULES)}",
            runs=lambda mesh: set(mesh.recompute.parts) <= set(TRAINED_MODULES),
            option=True,
            help=f"{', '.join(RECOMPUTES)}; selective:PARTS of {', '.join(TRAINED_MODULES)} (default none; bare: full)",
        ),
        resumable=True,
        source="Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198",
        affects=("time", "memory"),
        emit=WRITTEN,
        detour=lambda mesh: bool(mesh.recompute),
        synonyms=tool_names.RECOMPUTE,
    )
    recompute_layers: int = choice(
        0,
        WholeNumber("layers to recompute", 0),
        "blocks of each stage that recompute (default {default}: all)",
        of_layout=True,
        topic="memory",
        metavar="L",
        example="4",
        needs=(
            Need(
                lambda mesh: bool(mesh.recompute),
                "{value} layers to recompute without recomputation",
                "give recompute='full' too",
            ),
        ),
        affects=("time", "memory"),
        train=RUNS,
        resumable=True,
        emit=WRITTEN,
    )
    sequence: bool = choice(
        False,
        Flag(),
        "the devices of --tensor also divide norms, dropout and sums, by tokens",
        of_layout=True,
        example="yes",
        needs=(
            Need(
                lambda mesh: mesh.tensor > 1,
                "sequence parallelism without tensor parallelism",
                "give tensor, or leave sequence out",
            ),
        ),
        source="Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2",
        affects=FIGURES,
        emit=WRITTEN,
        searched_with="tensor",
        synonyms=tool_names.SEQUENCE,
    )
    virtual_stages: int = choice(
        1,
        WholeNumber("virtual stages"),
        "parts of the network on each stage: more than 1 is the interleaved schedule (default {default})",
        of_layout=True,
        metavar="V",
        example="2",
        needs=INTERLEAVED,
        plan=Searched("virtual_stages", help="parts of the network on each stage; may be repeated (default 1 to 8)"),
        source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
        affects=FIGURES,
        emit=WRITTEN,
        synonyms=tool_names.VIRTUAL_STAGES,
    )
    first_stage_layers: int = choice(
        0,
        WholeNumber("first stage layers", 0),
        "blocks of the first stage (default {default}: as many as the others)",
        of_layout=True,
        metavar="L",
        example="3",
        title="{value} blocks in the first stage",
        listed_by_name=True,
        title_rank=3,
        needs=(SEVERAL_STAGES,),
        source="Megatron-Core, --decoder-first-pipeline-num-layers",
        affects=FIGURES,
        emit=WRITTEN,
        synonyms=tool_names.FIRST_STAGE,
    )
    last_stage_layers: int = choice(
        0,
        WholeNumber("last stage layers", 0),
        "blocks of the last stage (default {default}: as many as the others)",
        of_layout=True,
        metavar="L",
        example="3",
        title="{value} blocks in the last stage",
        listed_by_name=True,
        title_rank=3,
        needs=(SEVERAL_STAGES,),
        source="Megatron-Core, --decoder-last-pipeline-num-layers",
        affects=FIGURES,
        emit=WRITTEN,
        detour=lambda mesh: mesh.ends != (0, 0),
        synonyms=tool_names.LAST_STAGE,
    )
    schedule: ByName[PassOrder] = choice(
        ONE_FORWARD_ONE_BACKWARD,
        OneOf("pipeline schedule", SCHEDULES, exact=True),
        "order of a pipeline's passes: {legal} (default {default})",
        of_layout=True,
        metavar="S",
        example="1f1b",
        title="schedule {value}",
        title_rank=2,
        needs=(SEVERAL_STAGES,),
        plan=Searched(
            "schedules",
            values=(ONE_FORWARD_ONE_BACKWARD.name, ZERO_BUBBLE.name),
            help="of a pipeline, one of {legal}; may be repeated (default 1f1b and zero_bubble)",
        ),
        affects=("exchange", "time", "memory"),
        emit=WRITTEN,
        detour=True,
        synonyms=tool_names.SCHEDULE,
    )
    context_exchange: ByName[ContextExchange] = choice(
        CONTEXT_RING,
        OneOf("context exchange", CONTEXT_EXCHANGES, exact=True),
        "how attention gets the others' tokens: {legal} (default {default})",
        of_layout=True,
        metavar="E",
        example="all_to_all",
        needs=(
            Need(
                lambda mesh: mesh.context > 1,
                "context exchange {value} without context parallelism",
                "give context, or leave it out",
            ),
        ),
        affects=("exchange", "bytes", "time"),
        emit=WRITTEN,
        synonyms=tool_names.CONTEXT_EXCHANGE,
    )
    gather_bits: int = GATHER_CHOICE
    gradient_bits: int = GRADIENT_CHOICE
    gather_format: str = GATHER_FORMAT_CHOICE

    def __post_init__(self) -> None:
        check_values(self)
        check_needs(self)

    @property
    def mesh(self) -> dict[str, int]:
        """Sizes of the dimensions, outermost first, as ``torch.distributed.device_mesh`` takes names and shape."""
        return {name: getattr(self, name) for name in MESH}

    @cached_property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return self.pipeline * self.data * self.context * self.tensor

    @cached_property
    def model_devices(self) -> int:
        """Number of devices that together hold one replica."""
        return self.pipeline * self.context * self.tensor

    @property
    def replica_count(self) -> int:
        """Number of replicas that add their gradients, over samples and over the parts of a sequence."""
        return self.data * self.context

    @property
    def ends(self) -> tuple[int, int]:
        """Numbers of blocks of the first and the last stage; 0: as many as the others."""
        return self.first_stage_layers, self.last_stage_layers

    @property
    def expert_devices(self) -> int:
        """Number of devices that share the experts of a block."""
        return self.expert * self.expert_tensor

    @cached_property
    def whole(self) -> bool:
        """True if each device holds the whole network."""
        return self.model_devices == 1 and self.expert_devices == 1

    @property
    def stage_devices(self) -> int:
        """Number of devices of one pipeline stage."""
        return self.data * self.context * self.tensor

    @property
    def replicas(self) -> Parallelism:
        """Data-parallel mesh of one pipeline stage. Devices of a context group count as replicas, with other tokens."""
        return self._data_parallel(self.replica_count, self.shard_devices)

    @property
    def expert_replicas(self) -> Parallelism:
        """Data-parallel mesh of experts: the devices of a stage that hold the same experts."""
        return self._data_parallel(self.stage_devices // self.expert_devices)

    def _data_parallel(self, devices: int, shard_devices: int = 0) -> Parallelism:
        """Return the stage's data dimension alone, over the given number of devices."""
        return Parallelism(
            data=devices,
            sharding=self.real_sharding,
            shard_devices=shard_devices,
            offload=self.offload,
            offload_layers=self.offload_layers * self.virtual_stages,
            micro_batches=self.micro_batches,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers * self.virtual_stages,
            gather_bits=self.gather_bits,
            gradient_bits=self.gradient_bits,
            gather_format=self.gather_format,
        )

    @cached_property
    def real_sharding(self) -> Sharding:
        """The field ``sharding``, or its form for replicas divided among several devices."""
        return self.sharding if self.whole else self.sharding.divided

    @cached_property
    def recomputation(self) -> Recompute:
        """The field ``recompute``, with the number of recomputed blocks."""
        return Recompute.of(self.recompute, self.recompute_layers)

    @cached_property
    def host_activations(self) -> HostActivations | None:
        """Activations that the blocks keep in the host's memory; None without any."""
        return host_activations(self.offload, self.offload_layers)

    @cached_property
    def moving(self) -> tuple[Hashable, ...]:
        """Choices that affect an exchange, except the number of replicas. With equal choices equal bytes are sent."""
        return tuple(getattr(self, c.field) for c in declared(Parallelism) if "exchange" in c.affects and c.field != "data")

    @property
    def sharers(self) -> int:
        """Number of replicas that shard one copy."""
        return self.shard_devices or self.replica_count

    @property
    def to_owners(self) -> bool:
        """True if an exchange leaves each replica only the sums of one shard. It is False with copies of the shards (HSDP)."""
        return self.sharding.weights and self.sharers == self.replica_count

    def check_covers(self, devices: int) -> None:
        """Raise UserError if the mesh and a cluster differ in their number of devices."""
        if self.devices != devices:
            raise UserError(
                f"the strategy has {self.devices} workers and the cluster {devices} devices", "give both the same number"
            )
