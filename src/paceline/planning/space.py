"""Every legal strategy, and why the others are not: counted by reason, since there are thousands of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from paceline.errors import UserError, check_count, check_name, shown
from paceline.hardware import PRECISIONS, RECIPES, Cluster
from paceline.hardware.precision import check_gathered, gathers
from paceline.planning.training_target import TrainingTarget
from paceline.prediction.batch import Candidate
from paceline.prediction.convergence import accuracies
from paceline.strategy import BUCKET_BYTES, COMPRESSIONS, EXCHANGES, SHARDINGS, Parallelism, Strategy
from paceline.strategy.exchange import MOST_OTHERS, MOST_WORKERS
from paceline.strategy.parallelism import SCHEDULES
from paceline.strategy.sharding import TORCH_SHARDINGS
from paceline.strategy.usual_precision import usual_precision
from paceline.workload.table import Workload

DOUBLINGS = 11
"""Batches of a worker that are tried where none are given: 1 to 1024."""
MAX_LOSS = 0.5
"""Points of accuracy that a compression may have lost in any measured setting and still competes without being named."""


_LEGAL: Mapping[str, Iterable[str]] = {
    "precisions": PRECISIONS,
    "compressions": COMPRESSIONS,
    "exchanges": EXCHANGES,
    "shardings": SHARDINGS,
    "divided_shardings": SHARDINGS,
    "schedules": SCHEDULES,
}


_SIZES = (
    "batches",
    "servers",
    "accumulations",
    "buckets",
    "tensors",
    "contexts",
    "pipelines",
    "experts",
    "virtual_stages",
    "micro_batches",
)
"""Choices that are numbers."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Strategies that were left out: how many, why, and one of them in words."""

    count: int
    reason: str
    example: str = ""


class Tally:
    """Counts what is left out, by reason, with the first example of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, reason: str, count: int = 1, example: str = "") -> None:
        """``count`` more for that reason."""
        if count:
            self.counts[reason] += count
            self.examples.setdefault(reason, example)

    def excluded(self) -> list[Excluded]:
        """Most frequent first."""
        return [Excluded(count, reason, self.examples[reason]) for reason, count in self.counts.most_common()]


UNEVEN = "give nodes of equally many devices, or ask predict and whatif for these"
"""What to do where nodes hold different numbers of devices."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The values of every choice that a plan tries. Empty ``batches``: as ``batches_on`` says.

    Attributes:
        clusters: kinds and numbers of devices.
        precisions: those that a device lacks are left out for it. Empty: the usual one (``strategy.usual_precision``) and the
            narrower ones, but for fp8, whose accuracy is not known, and fp16 where a device has bf16, which is as fast and
            needs no loss scaling.
        compressions: empty: dense, and those of which no measured setting lost more than ``max_loss`` points of accuracy
            against dense in equal epochs; what was never measured is left out too.
        servers: of ``parameter_server``. More serve faster, up to ``sharded``, in which every worker does.
        tensors, contexts, pipelines: devices that divide each layer (within a node, with sequence parallelism), each sequence,
            and stages. Empty ones: 1 where another is given. All empty: the plan searches layouts where no device holds the
            whole training state. A divided network is tried with dense gradients in all-reduces.
        experts: devices of a stage that share the experts of a mixture. Empty: 1 where each device holds the network, and in a
            search of layouts the powers of two that divide the experts and the devices of a stage.
        schedules: of pipelines without virtual stages, names of ``strategy.parallelism.SCHEDULES``.
        offloads: whether optimizer state lies in the host's memory where nothing else fits a device.
        node_groups: whether a search of layouts also tries shares within each node (HSDP).
        divided_shardings: in a search of layouts, where they differ from ``shardings``.
        gather_bits, gradient_bits: of every strategy that shares out optimizer state, as for ``Parallelism``.
        recomputes: in a search of layouts also selective recomputation, by the parts that save this network memory, unless
            others than the usual two are named.
        virtual_stages, micro_batches: of a divided network; empty: those that a search of layouts tries.
        optimizer: empty: the one that the learning rates of the target are for, else the network's usual one.
    """

    clusters: tuple[Cluster, ...]
    batches: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = tuple(EXCHANGES)
    servers: tuple[int, ...] = (1,)
    shardings: tuple[str, ...] = TORCH_SHARDINGS
    divided_shardings: tuple[str, ...] = ()
    accumulations: tuple[int, ...] = (1, 2, 4, 8)
    recomputes: tuple[bool | str, ...] = (False, True)
    buckets: tuple[int, ...] = (BUCKET_BYTES, 4 * BUCKET_BYTES)
    tensors: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    pipelines: tuple[int, ...] = ()
    virtual_stages: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    schedules: tuple[str, ...] = ("1f1b", "zero_bubble")
    node_groups: bool = True
    offloads: bool = True
    gather_bits: int = 0
    gradient_bits: int = 0
    optimizer: str = ""
    max_loss: float = MAX_LOSS

    def __post_init__(self) -> None:
        for name, legal in _LEGAL.items():
            values = getattr(self, name)
            if not isinstance(values, tuple | list):
                raise UserError(f"{name}={shown(values)}", f"give a tuple, such as {name}=({next(iter(legal))!r},)")
            for value in values:
                check_name(name.removesuffix("s"), value, legal)
            object.__setattr__(self, name, tuple(values))
        for cluster in self.clusters:
            if not cluster.even:
                raise UserError(f"a plan on nodes of {cluster.node_text} devices", UNEVEN)
        for name in _SIZES:
            values = getattr(self, name)
            if not isinstance(values, tuple | list):
                raise UserError(f"{name}={shown(values)}", "give a tuple of whole numbers")
            object.__setattr__(self, name, tuple(check_count(value, f"in {name}") for value in values))

        for precision in self.precisions:
            check_gathered(precision, self.gather_bits)

    @property
    def tried_precisions(self) -> tuple[str, ...]:
        """Those that were named, else all whose weights travel in so few bits as were named."""
        return self.precisions or tuple(p for p in PRECISIONS if gathers(p, self.gather_bits))

    @property
    def divides(self) -> bool:
        """Whether sizes of a division are named."""
        return bool(self.tensors or self.contexts or self.pipelines)

    @property
    def whole(self) -> bool:
        """Whether strategies are tried in which each device holds the network whole."""
        return all(1 in sizes for sizes in (self.tensors, self.contexts, self.pipelines) if sizes)

    def barred(self, work: TrainingTarget) -> Mapping[str, str]:
        """Compressions that do not compete for what is known of their accuracy, and why. One that was named competes, and so
        does one whose penalty on the samples to the target is given."""
        if self.compressions:
            return {}
        others = [name for name in COMPRESSIONS if name != "dense" and not (work.curve and name in work.penalties)]
        return {name: why for name in others if (why := _too_lossy(name, self.max_loss))}

    def batches_on(self, workers: int, work: TrainingTarget) -> tuple[int, ...]:
        """Batches to try there: those that were given; to a target powers of two, for all or for each worker, up to the largest
        that was seen to reach it, and down to a sixteenth of the smallest, where the curve is flat; else powers of two for
        each worker."""
        if self.batches:
            return self.batches
        own = {workers * 2**n for n in range(DOUBLINGS)}
        if work.curve is None:
            return tuple(sorted(own))
        low, high = work.curve.low_batch, work.curve.high_batch
        seen = {2**n for n in range(24) if low <= 2**n <= high} | {int(low), int(high)}
        return tuple(sorted(seen | {b for b in own if low / 16 <= b <= high}))


def worlds(devices_per_node: int, max_nodes: int) -> tuple[tuple[int, int], ...]:
    """(devices a node, nodes) to try: powers of two inside one node, then whole nodes up to ``max_nodes``."""
    inside = [(2**n, 1) for n in range(devices_per_node.bit_length()) if 2**n < devices_per_node]
    steps = {n for n in range(1, max_nodes + 1) if n <= 8 or n % (1 << (n.bit_length() - 2)) == 0} | {max_nodes}
    return (*inside, *((devices_per_node, n) for n in sorted(steps)))


def smaller(largest: Cluster) -> tuple[Cluster, ...]:
    """Every cluster that is tried up to ``largest``: fewer devices of its first node, then fewer nodes; full leaf switches."""
    sizes = [size for size in worlds(largest.devices_per_node, largest.num_nodes) if largest.fills_leaves(size[1])]
    return tuple(largest.changed(devices_per_node=local, num_nodes=nodes) for local, nodes in sizes)


def candidates(space: Space, work: TrainingTarget, left_out: Tally, workload: Workload | None = None) -> list[Candidate]:
    """Every legal strategy on every cluster, of devices that each hold the network; others are counted in ``left_out``.

    Args:
        workload: where it is given and no precision is named, none is tried that is wider than its usual one.
    """
    if not space.whole:
        return []
    batches = sum(len(space.batches_on(cluster.world_size, work)) for cluster in space.clusters)
    templates = list(_templates(space, work, left_out, batches * len(space.accumulations)))
    return [candidate for cluster in space.clusters for candidate in _on(cluster, space, work, templates, left_out, workload)]


def _too_lossy(compression: str, most: float) -> str:
    """Why its accuracy keeps it out; empty where it does not."""
    seen = accuracies(compression)
    if not seen:
        return f"{compression}: accuracy unknown, never measured; naming it lets it compete"
    worst = min(seen, key=lambda a: a.points)
    if worst.points >= -most:
        return ""
    return (
        f"{compression}: measured {worst.points:.2f} points on {worst.network} with {worst.workers} workers; "
        f"a max loss of {math.ceil(-worst.points)} points lets it compete"
    )


def _templates(space: Space, work: TrainingTarget, left_out: Tally, times: int) -> Iterator[Strategy]:
    """Legal combinations of what does not depend on the cluster or the batch, as strategies of as few workers as can be.

    A bucket's size matters only where DDP's buckets or FSDP's units are cut by it.
    """
    tried, barred = space.tried_precisions, space.barred(work)
    bits = {"gather_bits": space.gather_bits, "gradient_bits": space.gradient_bits}
    same: dict[Any, Any] = {}  # equal parts are one object, so that prediction finds them by identity
    compressions = space.compressions or COMPRESSIONS
    combinations = product(
        compressions,
        space.exchanges,
        space.shardings,
        space.recomputes,
        tried,
        space.buckets,
        space.servers,
        space.experts or (1,),
    )
    for compression, exchange, sharding, recompute, precision, bucket, several, expert in combinations:
        serving = exchange == "parameter_server"
        if (bucket != space.buckets[0] and exchange != "allreduce") or (several != space.servers[0] and not serving):
            continue  # the same strategy once more
        if expert > 1 and (compression, exchange) != ("dense", "allreduce"):
            continue  # not tried, as Space says
        servers = several if serving else 1
        workers = servers * expert
        try:
            template = Strategy.of(
                data=workers,
                global_batch_size=workers,
                compression=compression,
                exchange=exchange,
                servers=servers,
                sharding=sharding,
                recompute=recompute,
                precision=precision,
                bucket_bytes=bucket,
                optimizer=space.optimizer,
                expert=expert,
                **(bits if SHARDINGS[sharding].optimizer else {}),
            )
        except UserError as error:
            if bucket == space.buckets[0]:
                left_out.add(_illegal(compression, exchange, sharding), times, error.message)
            continue
        if compression in barred:
            left_out.add(barred[compression], times)
        else:
            division, exchanged = template.parallelism, template.gradient_exchange
            yield replace(
                template,
                parallelism=same.setdefault(division, division),
                gradient_exchange=same.setdefault(exchanged, exchanged),
            )


def _illegal(compression: str, exchange: str, sharding: str) -> str:
    """The kind of a combination that does not exist; its own words are the example."""
    if exchange not in COMPRESSIONS[compression].exchanges:
        return "the exchange cannot carry the compression"
    if sharding != "ddp" and compression != "dense":
        return "a sharded optimizer does not go with compressed gradients"
    return "a sharded optimizer has its own collectives"


def _on(
    cluster: Cluster,
    space: Space,
    work: TrainingTarget,
    templates: Sequence[Strategy],
    left_out: Tally,
    workload: Workload | None,
) -> Iterator[Candidate]:
    n = cluster.world_size
    batches = space.batches_on(n, work)
    here = []
    for template in templates:
        if n == 1 and template.bucket_bytes != space.buckets[0]:
            continue  # nothing is exchanged: the same strategy once more
        why = _excluded_on(cluster, template, not space.precisions, workload)
        if why:
            left_out.add(why, len(batches) * len(space.accumulations))
        else:
            here.append(template)
    divisions = {id(template.parallelism): template.parallelism for template in here}
    meshed: dict[tuple[int, int], list[tuple[Strategy, Parallelism]]] = {}
    for times in space.accumulations:
        meshes = {key: replace(division, data=n, micro_batches=times) for key, division in divisions.items()}
        meshed[times, n] = [(template, meshes[id(template.parallelism)]) for template in here]
    for batch, (times, replicas) in product(batches, meshed):
        pairs = meshed[times, replicas]
        why = _batch(batch, times, replicas, work)
        if why:
            left_out.add(why, len(pairs), f"batch {batch} on {replicas} workers, {times} micro steps")
            continue
        for template, mesh in pairs:
            yield cluster, _with_batch(template, batch, mesh)


def _with_batch(template: Strategy, batch: int, parallelism: Parallelism) -> Strategy:
    """``dataclasses.replace`` takes three times as long, for a hundred thousand strategies a second."""
    return Strategy(
        global_batch_size=batch,
        parallelism=parallelism,
        precision=template.precision,
        gradient_exchange=template.gradient_exchange,
        optimizer=template.optimizer,
        first_bucket_bytes=template.first_bucket_bytes,
        bucket_bytes=template.bucket_bytes,
    )


def _batch(batch: int, times: int, workers: int, work: TrainingTarget) -> str:
    if batch > work.largest_batch:
        if work.curve:
            return f"a global batch above {work.curve.high_batch:g} was never seen to reach {work.curve.target}"
        return f"a global batch above the largest published, {work.largest_batch:,} samples; naming it tries it"
    if batch % (workers * times):
        return "the global batch does not divide among the workers and their micro steps"
    return ""


def _excluded_on(cluster: Cluster, template: Strategy, choose: bool, workload: Workload | None) -> str:
    """Why not on this cluster; a single worker exchanges nothing, so that only a plain all-reduce makes sense there."""
    if why := precision_left_out(cluster, template.precision, choose, workload):
        return why
    if cluster.world_size % template.parallelism.expert:
        return "the devices of a stage are no whole groups of experts"
    plain = (
        template.gradient_exchange.compression == "dense"
        and template.gradient_exchange.exchange == "allreduce"
        and template.parallelism.sharding == "ddp"
    )
    if cluster.world_size == 1 and not plain:
        return "one worker has nobody to exchange with"
    if cluster.world_size < template.gradient_exchange.servers:
        return f"{template.gradient_exchange.servers} servers need as many workers: a server is one of them"
    if cluster.world_size > (most := MOST_WORKERS.get(template.gradient_exchange.exchange, MOST_OTHERS)):
        return f"{template.gradient_exchange.exchange} is predicted for at most {most:,} workers"
    if template.gradient_exchange.exchange == "hierarchical" and (cluster.num_nodes == 1 or cluster.devices_per_node == 1):
        return "a hierarchical exchange needs several nodes of several devices"
    return ""


def precision_left_out(cluster: Cluster, precision: str, choose: bool, workload: Workload | None) -> str:
    """Why a precision is not tried there; empty where it is. ``choose``: none was named."""
    if precision not in cluster.device.precisions:
        return f"{cluster.device.name} has no {precision}"
    if choose and precision == "fp16" and "bf16" in cluster.device.peak_flops:
        return "fp16 where bf16 is as fast (naming fp16 tries it)"
    if choose and precision in RECIPES:
        return f"the effect of {precision} on accuracy is unknown (naming {precision} tries it)"
    usual = usual_precision(workload, cluster.device) if choose and workload else None
    if usual and PRECISIONS.index(precision) < PRECISIONS.index(usual.name):  # type: ignore[arg-type]
        return f"{precision}, which is wider than {usual} (naming {precision} tries it)"
    return ""
