"""Choices that a search of layouts tries, and their combinations: slices of the work, pipelines, shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from typing import Any

from paceline.errors import UserError, check_count, shown
from paceline.hardware import Cluster
from paceline.prediction.layouts.layout_slices import LayoutSlice, Shares
from paceline.prediction.layouts.pipeline_bounds import PipelineShape
from paceline.prediction.passes.blocks import block_begins, part_sizes
from paceline.strategy.context_exchange import CONTEXT_EXCHANGES, CONTEXT_RING
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD, SCHEDULES
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from paceline.strategy.sharding import SHARDINGS, TORCH_SHARDINGS, block
from paceline.strategy.strategy import CHOICES, Strategy
from paceline.workload.table import Workload

MOST_VIRTUAL = 8
"""Largest number of virtual stages to try by default. Each further one repeats all sends between stages."""


@dataclass(frozen=True, kw_only=True)
class LayoutSpace:
    """Values of every choice of a layout search. Empty sizes: powers of two that the cluster and the network allow.

    Attributes:
        batches: global batches.
        tensors, contexts, pipelines: sizes of the groups that divide a layer (within a node), a sequence, and the stages.
        virtual_stages: parts of the network on each stage.
        experts: devices of a stage that share the experts of a mixture.
        micro_batch_sizes: samples of a micro batch on one replica. The number of micro batches follows from the batch.
        balanced: whether to try a last stage with fewer blocks, to make up for the time of its logits.
        node_groups: whether to try shards within each node too (HSDP).
        common: choices of all layouts, by the names of ``Strategy.of``. A layout that cannot have a value keeps its own.
        sequences: whether to divide activations between the divided products too, if tensor is above 1.
        recomputes: values of ``Parallelism.recompute``.
        micro_batches: numbers of micro batches to try, from which the sizes follow; empty for any.
    """

    batches: tuple[int, ...]
    precisions: tuple[str, ...] = ("bf16",)
    tensors: tuple[int, ...] = ()
    contexts: tuple[int, ...] = (1,)
    context_exchanges: tuple[str, ...] = tuple(CONTEXT_EXCHANGES)
    pipelines: tuple[int, ...] = ()
    experts: tuple[int, ...] = (1,)
    virtual_stages: tuple[int, ...] = tuple(range(1, MOST_VIRTUAL + 1))
    micro_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    micro_batches: tuple[int, ...] = ()
    schedules: tuple[str, ...] = (ONE_FORWARD_ONE_BACKWARD.name,)
    shardings: tuple[str, ...] = TORCH_SHARDINGS
    recomputes: tuple[Recompute | str | bool, ...] = (NO_RECOMPUTE, FULL_RECOMPUTE)
    sequences: tuple[bool, ...] = (True,)
    balanced: bool = True
    node_groups: bool = True
    common: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        for name in _sizes():
            values = getattr(self, name)
            if not isinstance(values, tuple | list):
                raise UserError(f"{name}={shown(values)}", "give a tuple of whole numbers")
            object.__setattr__(self, name, tuple(check_count(value, f"in {name}") for value in values))
        object.__setattr__(self, "recomputes", tuple(map(Recompute.of, self.recomputes)))
        if not self.batches:
            raise UserError("a search of layouts without a batch", "give global batches")

    def slices(self, cluster: Cluster) -> Iterator[LayoutSlice]:
        """Yield every combination of the choices that determine the work of a device."""
        local = cluster.devices_per_node
        tensors = self.tensors or tuple(powers(local))
        for tensor, context, precision in product(tensors, self.contexts, self.precisions):
            sequences = self.sequences if tensor > 1 else (False,)
            exchanges = self.context_exchanges if context > 1 else (CONTEXT_RING.name,)
            sizes = self._sizes(cluster, tensor * context)
            others = product(sequences, exchanges, sizes, self.recomputes, self.experts)
            for sequence, exchange, micro, recompute, expert in others:
                yield LayoutSlice(
                    tensor=tensor,
                    sequence=sequence,
                    context=context,
                    context_exchange=CONTEXT_EXCHANGES[exchange],
                    precision=precision,
                    micro_batch_size=micro,
                    recompute=Recompute.of(recompute),
                    expert=expert,
                )

    def _sizes(self, cluster: Cluster, devices: int) -> tuple[int, ...]:
        """Return samples of a micro batch: the given sizes, or those that follow from the numbers of micro batches."""
        if not self.micro_batches:
            return self.micro_batch_sizes
        world = cluster.world_size
        replicas = {world // (devices * p) for p in self.pipelines or powers(world) if world % (devices * p) == 0}
        products = {r * times for r in replicas for times in self.micro_batches}
        sizes = {batch // of for batch in self.batches for of in products if batch % of == 0}
        stated = self.micro_batch_sizes != LayoutSpace.micro_batch_sizes
        return tuple(sorted(sizes & set(self.micro_batch_sizes) if stated else sizes)) or self.micro_batch_sizes[:1]

    def shared(self, cluster: Cluster) -> tuple[Shares, ...]:
        """Return how replicas shard their state, and among which devices."""
        tried = [SHARDINGS[name] for name in self.shardings]
        in_nodes = [Shares(sharding, True) for sharding in tried if sharding.shares_out]
        several = self.node_groups and cluster.num_nodes > 1
        return (*map(Shares, tried), *(in_nodes if several else ()))

    def shapes(self, cluster: Cluster, blocks: int, logits: float = 0.0) -> Iterator[PipelineShape]:
        """Yield every pipeline. A single stage has no schedule, and virtual stages run only under 1F1B.

        Args:
            logits: time of the last stage's own work (norm, logits, loss), in blocks.
        """
        for stages in self.pipelines or tuple(powers(min(blocks, cluster.world_size))):
            if stages == 1:
                yield PipelineShape(1, 1, ONE_FORWARD_ONE_BACKWARD)
                continue
            for virtual, schedule in product(self.virtual_stages, map(SCHEDULES.__getitem__, self.schedules)):
                if stages * virtual <= blocks and (virtual == 1 or schedule.interleaves):
                    yield PipelineShape(stages, virtual, schedule)
                    if self.balanced and (last := _last_blocks(blocks, stages, virtual, logits)):
                        yield PipelineShape(stages, virtual, schedule, (0, last))


@cache
def _sizes() -> tuple[str, ...]:
    """Return the fields of whole numbers."""
    return tuple(field.name for field in fields(LayoutSpace) if field.type == "tuple[int, ...]")


def logits_blocks(workload: Workload) -> float:
    """Return the operations after the last block (norm, logits, loss), in blocks."""
    begins = list(block_begins(workload).values())
    if not begins:
        return 0.0
    work = [layer.flops_forward for layer in workload.layers]
    behind = sum(of for i, of in enumerate(work) if i > begins[-1] and not block(f"{workload.layers[i].name}."))
    whole = sum(work[begins[0] :]) - behind
    return behind * len(begins) / whole if whole else 0.0


def _last_blocks(blocks: int, stages: int, virtual: int, logits: float) -> int:
    """Return how many blocks make the last stage as slow as the others; 0 for an even split or parts that do not divide it."""
    last = round((blocks - logits * (stages - 1)) / stages)
    last -= last % virtual
    usual = sum(part_sizes(blocks, stages, virtual)[stages - 1 :: stages])
    return last if virtual <= last < usual and blocks - last >= (stages - 1) * virtual else 0


def powers(most: int) -> Iterator[int]:
    """Yield powers of two up to ``most``."""
    power = 1
    while power <= most:
        yield power
        power *= 2


def dividing_shardings(names: Sequence[str], optimizer: str, common: Mapping[str, Any], precision: str) -> tuple[str, ...]:
    """Return the shardings that the optimizer and its update have next to a divided network; none if they do not divide.

    Args:
        common: choices of all layouts, of which those of the update count.
    """
    update = {name: value for name, value in common.items() if CHOICES[name].part == "weight_update"}
    found = []
    for name in names:
        with suppress(UserError):
            mesh: dict[str, Any] = {"world_size": 4, "pipeline": 2, "global_batch_size": 2}
            Strategy.of(**mesh, sharding=name, optimizer=optimizer, precision=precision, **update)
            found.append(name)
    return tuple(found)
