"""Strategy: one frozen value that prediction scores, training executes and planning searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter, is_not
from typing import Any, Generic

from paceline.errors import UserError, check_count, check_name, shown
from paceline.hardware.cluster import Cluster
from paceline.strategy.buckets import BucketPlan, T, buckets, fuse, plan_bucket, plan_unit
from paceline.strategy.choices.choice import (
    Need,
    StrategyChoice,
    check_values,
    collected,
    declared,
    filled,
    plain_values,
    refuse_unmet,
    values_of,
)
from paceline.strategy.choices.strategy_choices import (
    BATCH,
    BUCKET,
    FIRST_BUCKET,
    LOSS,
    MEMORY_FORMAT,
    OPTIMIZER,
    PRECISION,
)
from paceline.strategy.choices.values import ByName, plain
from paceline.strategy.codec_place import IN_CARD, USUAL_PLACE, check_fabric
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.formats import PayloadBound
from paceline.strategy.dense_bits import dense_format
from paceline.strategy.exchanges import Traffic, codes_in_place
from paceline.strategy.frameworks import Framework
from paceline.strategy.gradient_exchange import GradientExchange
from paceline.strategy.local_steps import EVERY_STEP, LocalSteps
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.parallelism import DIVIDING, MODEL, Parallelism
from paceline.strategy.phase import Phase, busiest_sent
from paceline.strategy.sharded_exchange import describe_between_workers, describe_unit, usual_exchange
from paceline.strategy.sharding import NONE_FROZEN, narrow_sum, scatter, units
from paceline.strategy.tasks.lengths import TOKENS_PER_SAMPLE, SampleLengths
from paceline.strategy.tasks.task import TASK, StepTask
from paceline.strategy.updates.weight_update import PLAIN_UPDATE, WeightUpdate
from paceline.strategy.worker_counts import multiples
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class ExchangeGroup(Generic[T]):
    """Gradients that are exchanged together: one or several fused DDP buckets, or an FSDP unit.

    ``gathers``: all-gathers of its weights in one micro step (``zero1``: in one step).
    """

    tensors: list[T]
    plan: BucketPlan
    traffic: Traffic
    gathers: tuple[Phase, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """Every choice about a run.

    Attributes:
        global_batch_size: samples of one optimizer step over all workers; a multiple of workers times micro batches.
        parallelism: division of the work among the devices.
        precision: precision of the arithmetic, a name of ``PRECISIONS``.
        gradient_exchange: compression and exchange of gradients. A compression's name means its usual exchange.
        local: steps each worker takes alone between exchanges, and the outer step that applies the mean (``local_steps``).
        memory_format: a name of ``MEMORY_FORMATS``; empty: the usual one of the software (``usual_memory_format``).
        optimizer: a name of ``OPTIMIZERS``; empty: the usual one for the network (``usual_optimizer``).
        weight_update: how the optimizer's kernels run, and the types of stored weights and state.
        loss: a name of ``LOSSES``; empty: that of the framework.
        first_bucket_bytes, bucket_bytes: DDP's limits for the first bucket and for the others; ``bucket_bytes`` is also the
            least that FSDP gathers at once.
        tokens_per_sample: lengths of samples that differ, as ``SampleLengths.of`` reads them.
        task: objective of a step, a value of ``tasks.task.TASKS``, or its name.

    Raises:
        UserError: a name that does not exist, parts of another type, a batch or a number of ranks that does not divide, a
            sharding that does not go with the compression or the exchange, more servers than workers, local steps with a choice
            that needs an exchange in every step.
    """

    global_batch_size: int = field(metadata={"choice": BATCH})
    parallelism: Parallelism = field(default_factory=Parallelism)
    precision: str = PRECISION
    memory_format: str = MEMORY_FORMAT
    gradient_exchange: GradientExchange = field(default_factory=GradientExchange)
    local: LocalSteps = EVERY_STEP
    optimizer: str = OPTIMIZER
    weight_update: WeightUpdate = PLAIN_UPDATE
    loss: str = LOSS
    task: ByName[StepTask] = TASK
    tokens_per_sample: ByName[SampleLengths] = TOKENS_PER_SAMPLE
    first_bucket_bytes: int = FIRST_BUCKET
    bucket_bytes: int = BUCKET

    def __post_init__(self) -> None:
        if not isinstance(self.parallelism, Parallelism):
            raise UserError(f"parallelism={shown(self.parallelism)}", "give a paceline.Parallelism")
        if not isinstance(self.gradient_exchange, GradientExchange):
            if not isinstance(self.gradient_exchange, str):
                raise UserError(f"gradient_exchange={shown(self.gradient_exchange)}", "give a paceline.GradientExchange")
            usual = _usual(GradientExchange(self.gradient_exchange), self.parallelism)
            object.__setattr__(self, "gradient_exchange", usual)
        if isinstance(self.global_batch_size, int) and self.global_batch_size < 1:
            least = self.parallelism.data * self.parallelism.micro_batches
            raise UserError(f"global batch {shown(self.global_batch_size)}", f"nearest legal: {least}")
        check_values(self)
        if self.local is not EVERY_STEP:
            self._check_local()
        for value, (item, default, checks) in zip(_conditioned(self), _CONDITIONS):  # noqa: B905 a plan builds 100,000 strategies
            if value is not default:
                for check, holds in checks:
                    if not check(self) and holds:
                        refuse_unmet(item.strategy_needs, self, item.name, value)

    @classmethod
    def of(cls, **choices: Any) -> Strategy:
        """Build a strategy from choices by name: ``Strategy.of(world_size=8, global_batch_size=256, compression="terngrad")``.

        ``world_size`` counts all devices. ``data`` follows from it and ``tensor``, ``pipeline``, and may be given instead.
        ``grad_accum_steps`` is also called ``micro_batches``. A missing or empty ``exchange`` means the usual one of the
        compression and the sharding (``usual_exchange``).

        Raises:
            UserError: a choice that does not exist, a missing batch, devices that do not divide; or as ``Strategy``.
        """
        parts: dict[str, dict[str, Any]] = {part: {} for part in ("", *_PARTS)}
        for name, value in _by_one_name(choices).items():
            check_name("choice of a strategy", name, _NAMES)
            item = CHOICES[_WORLD if name == _DATA else name]
            parts[item.part][name if name == _WORLD else item.field] = value
        mesh = parts["parallelism"]
        if _WORLD in mesh:
            mesh[_DATA] = _replicas(mesh.pop(_WORLD), mesh)
        if "global_batch_size" not in choices:
            raise UserError("a strategy has no global batch", "give global_batch_size, samples a step over all devices")
        parallelism = Parallelism(**mesh)
        exchange = GradientExchange.from_json(parts["gradient_exchange"])
        if not parts["gradient_exchange"].get("exchange"):
            exchange = _usual(exchange, parallelism)
        local = LocalSteps(**parts["local"]) if parts["local"] else EVERY_STEP
        update = WeightUpdate(**parts["weight_update"]) if parts["weight_update"] else PLAIN_UPDATE
        return cls(parallelism=parallelism, gradient_exchange=exchange, local=local, weight_update=update, **parts[""])

    from_json = of

    @classmethod
    def completed(cls, choices: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``choices`` of a strategy, without a batch, with those of ``usual`` that go with them. Names as in ``of``."""
        complete = dict(choices)
        micro_steps = choices.get("grad_accum_steps", choices.get("micro_batches", 1))
        for name, value in usual.items():
            with suppress(UserError, TypeError):  # the caller's own choices are checked later
                batch = choices.get("world_size", choices.get(_DATA, 1)) * micro_steps
                cls.of(**{**complete, name: value, "global_batch_size": batch})
                complete[name] = value
        return complete

    def changed(self, **choices: Any) -> Strategy:
        """Return the strategy with other choices, named as in ``of``. Raises UserError as ``of``. Another compression brings
        its default exchange, options, clip and rule for dense tensors, unless they are named too. A usual exchange becomes the
        usual one of another sharding. An exchange in every step resets the choices of local steps."""
        before, choices = self.to_json(), _by_one_name(choices)
        if choices.get("exchange", before["exchange"]) != before["exchange"]:
            del before["ranks_per_node"]
        if self.has_usual_exchange:
            del before["exchange"]
        if choices.get("compression", before["compression"]) != before["compression"]:
            followed = ("compression",) if "exchange" in choices else ("compression", "exchange")
            before = {name: value for name, value in before.items() if CHOICES[name].follows not in followed}
        if choices.get("sync_every") == 1:
            before = {name: value for name, value in before.items() if CHOICES[name].part != "local"}
        return Strategy.of(**{**before, **choices})

    @property
    def has_usual_exchange(self) -> bool:
        """True if the exchange is the default of its compression and sharding (``usual_exchange``)."""
        x = self.gradient_exchange
        return x.exchange is usual_exchange(x.compression, self.parallelism.to_owners)

    def choice(self, name: str) -> Any:
        """Return one choice, named as in ``of``, in its JSON form. Raises UserError for a name that ``of`` does not take."""
        check_name("choice of a strategy", name, _NAMES)
        if name == _DATA:
            return self.parallelism.data
        part, attribute = _PLACES[name]
        return plain(getattr(getattr(self, part) if part else self, attribute))

    def settled(self, workload: Workload, cluster: Cluster) -> Strategy:
        """Return the strategy with open choices settled by the network and the cluster: the optimizer, and the ranks of a node.

        Raises:
            UserError: a hierarchical exchange on nodes that hold different numbers of devices; a codec or a sum at a place that
                the cluster lacks.
        """
        x, strategy = self.gradient_exchange, self
        if self.sync_every > 1 and workload.tables is not None:
            raise UserError(
                f"sync_every {self.sync_every} does not go with embedding tables divided among all devices",
                "exchange in every step",
            )
        if x.placed:
            strategy = self._placed(cluster)
            x = strategy.gradient_exchange
        if not self.optimizer:
            strategy = replace(strategy, optimizer=usual_optimizer(workload))
        if x.exchange.uses_nodes and not cluster.even:
            raise UserError(
                f"a hierarchical exchange on nodes of {cluster.node_text} devices",
                "give nodes of equally many devices, or exchange allreduce",
            )
        if x.exchange.uses_nodes and x.ranks_per_node == 1 and cluster.devices_per_node > 1:
            strategy = replace(strategy, gradient_exchange=replace(x, ranks_per_node=cluster.devices_per_node))
        return strategy

    def under(self, framework: Framework) -> Strategy:
        """Return the strategy with open choices settled by the defaults of a framework. Defaults that do not go with the
        other choices are left out. The loss stays open, since it has a default everywhere.
        """
        strategy = self
        for name, value in framework.defaults.items():
            if name == "loss" or strategy.choice(name):
                continue
            with suppress(UserError):
                strategy = strategy.changed(**{name: value})
        return strategy

    def _placed(self, cluster: Cluster) -> Strategy:
        """Clear the codec's place if it equals the gradients' place, and the residuals' place if it equals the codec's. Raises
        UserError as ``check_fabric``.
        """
        x = self.gradient_exchange
        if not self.parallelism.whole and (x.codec_at or x.exchange.uses_switch):
            what = f"exchange {x.exchange}" if x.exchange.uses_switch else f"a codec {x.codec_at.text}"
            raise UserError(f"{what} and a network that several devices hold together", "divide it no further than by data")
        check_fabric(x, cluster)
        kind = cluster.device.kind
        usual: dict[str, Any] = {"codec_at": USUAL_PLACE} if x.codec_at and x.codec_at.is_of(kind) else {}
        if x.residuals_at and (x.residuals_at.is_of(kind) or x.codec_at is x.residuals_at):
            usual["residuals_at"] = USUAL_PLACE
        return replace(self, gradient_exchange=replace(x, **usual)) if usual else self

    def _check_local(self) -> None:
        """Check the type of the local steps. Without local steps every value must be the default."""
        local = self.local
        if not isinstance(local, LocalSteps):
            raise UserError(f"local={shown(local)}", "give a paceline.strategy.LocalSteps")
        if local.sync_every == 1:
            if local != EVERY_STEP:
                given = next(f.name for f in fields(LocalSteps) if getattr(local, f.name) != getattr(EVERY_STEP, f.name))
                raise UserError(f"{given} with an exchange of gradients in every step", "give sync_every too")
            object.__setattr__(self, "local", EVERY_STEP)

    @property
    def world_size(self) -> int:
        """Number of devices that work."""
        return self.parallelism.devices

    @property
    def sync_every(self) -> int:
        """Number of steps of each worker from one exchange to the next; 1 means an exchange in every step."""
        return self.local.sync_every

    @property
    def worker_devices(self) -> int:
        """Number of devices of a worker of local steps, which exchange gradients in every step; 1 without local steps."""
        if self.local.sync_every == 1:
            return 1
        return self.local.worker_devices or (self.parallelism.shard_devices if self.parallelism.sharding.weights else 0) or 1

    @property
    def worker_count(self) -> int:
        """Number of workers that exchange pseudo-gradients, or gradients without local steps."""
        return self.parallelism.data // self.worker_devices

    @property
    def micro_batch_size(self) -> int:
        """Number of samples of one micro step on one replica."""
        return self.global_batch_size // (self.parallelism.data * self.parallelism.micro_batches)

    @property
    def exchanges_per_step(self) -> int:
        """Number of gradient exchanges in a step: one after the last micro step, or with sharded gradients after each."""
        return self.parallelism.micro_batches if self.parallelism.sharding.gradients else 1

    @property
    def description(self) -> Compression:
        """Compression and its costs, with this strategy's options."""
        return self.gradient_exchange.description

    def uncompressed(self) -> Strategy:
        """Return the baseline of a compression ratio: the same choices without compression."""
        local = self.local if self.local.residual_decay == 1 else replace(self.local, residual_decay=1.0)
        return replace(self, gradient_exchange=self.gradient_exchange.uncompressed(), local=local)

    def groups(self, parameters: Sequence[T], ready: Sequence[T], level: PayloadBound = "expected") -> list[ExchangeGroup[T]]:
        """Return the groups of tensors that are exchanged together, in order, with their exchange. See ``partition``.

        ``level``: end of the range of data-dependent lengths.
        """
        plans = self.partition(parameters, ready)
        by_plan = {plan: (self.traffic(plan, level), self.gathers(plan)) for plan in {plan for _, plan in plans}}
        return [ExchangeGroup(members, plan, *by_plan[plan]) for members, plan in plans]  # networks have many equal layers

    def partition(
        self, parameters: Sequence[T], ready: Sequence[T], frozen: Mapping[str, int] = NONE_FROZEN
    ) -> list[tuple[list[T], BucketPlan]]:
        """Return the groups of tensors that are exchanged together, in order. They do not depend on the number of workers.

        Groups are DDP's buckets for ``allreduce``, which works in the bucket. Other exchanges have groups of the same size that
        depend only on the model, the last tensors first, small ones fused. FSDP's units also come last first. With local steps,
        fragments are the groups.

        Args:
            parameters: in model order; ``ready`` in gradient order.
            frozen: elements that are gathered next to a parameter, by its name.
        """
        compression = self.description
        if self.sync_every > 1:
            kept = set(compression.dense(parameters))
            plan = plan_bucket if self.worker_devices == 1 else plan_unit
            return [(part, plan(part, compression, kept)) for part in self.local.split(parameters)]
        if self.parallelism.sharding.weights:
            dense = set(compression.dense(parameters))
            of_model = reversed(units(parameters, self.bucket_bytes, frozen))
            return [(unit, plan_unit(unit, compression, dense)) for unit in of_model]
        dense = set(compression.dense(parameters))
        by_engine = self.gradient_exchange.exchange.by_engine
        in_place = by_engine and not compression.low_rank
        members = buckets(ready if in_place else parameters[::-1], self.bucket_bytes, self.first_bucket_bytes)
        if not by_engine:
            members = fuse(members)
        plan = plan_unit if self.parallelism.sharding.by_rows else plan_bucket
        return [(bucket, plan(bucket, compression, dense)) for bucket in members]

    def traffic(self, plan: BucketPlan, level: PayloadBound = "expected") -> Traffic:
        """Return the traffic for the gradients of one group."""
        mesh, x = self.parallelism, self.gradient_exchange
        compression = x.description if level == "expected" else replace(x.description, level=level)
        if self.worker_devices > 1:
            owners = mesh.sharers if mesh.sharding.weights else 1
            return describe_between_workers(plan, x, compression, self.worker_count, self.worker_devices, owners)
        if mesh.sharding.scatters or mesh.gradient_bits:
            precision = self.precision if mesh.sharding.weights else "fp32"
            if mesh.sharding.weights and not x.is_plain:
                return describe_unit(plan, x, compression, precision, self.world_size, mesh.shard_devices)
            owners = mesh.sharers
            elements = owners * sum(plan.shard(owners)) if mesh.sharding.weights else plan.elements
            return scatter(elements, precision, self.world_size, mesh.shard_devices, mesh.gradient_bits)
        if self.weight_update.narrow:
            return narrow_sum(plan.elements, self.world_size)
        return x.exchange.describe(
            plan,
            compression,
            self.world_size,
            x.ranks_per_node,
            x.compress_pull,
            x.servers,
            x.codec_at is IN_CARD,
            dense_format(x.dense_bits),
        )

    @property
    def codes_in_place(self) -> bool:
        """Return whether a CPU codes gradients in place, without a copy in one buffer. False for owners' shards."""
        x = self.gradient_exchange
        return not self.parallelism.to_owners and codes_in_place(x.description, x.compress_pull, x.ranks_per_node)

    def gathers(self, plan: BucketPlan, frozen: int = 0, coded: int = 0) -> tuple[Phase, ...]:
        """Return the all-gathers of one group's weights and of ``frozen`` elements next to them.

        ``coded``: bytes of their codes; 0 without codes.
        """
        mesh, members = self.parallelism, self.parallelism.shard_devices
        return mesh.sharding.gathers(plan, self.precision, self.world_size, frozen, members, mesh.gather_bits, coded)

    def exchange_phases(self, parameters: Sequence[T], ready: Sequence[T]) -> list[tuple[list[T], list[Phase]]]:
        """Return each group's tensors with all its collectives in one step, or in one round of local steps. ``parameters``: in
        model order. ``ready``: in gradient order."""
        times = self.exchanges_per_step  # also for gathers: those of zero1 belong to the update
        groups = self.groups(parameters, ready)
        return [(group.tensors, [*group.gathers, *group.traffic.phases] * times) for group in groups]

    def wire_bytes_per_device(self, parameters: Sequence[T], ready: Sequence[T]) -> int:
        """Return the most bytes that any rank sends in one step, averaged over local steps; 0 for one worker."""
        sent = busiest_sent([phase for _, group in self.exchange_phases(parameters, ready) for phase in group])
        return self.local.per_step(sent)

    @property
    def moving(self) -> tuple[Hashable, ...]:
        """Choices that affect an exchange, with the width of the precision instead of the precision."""
        own = (*moving_of_step(self), self.weight_update.stored_weights)
        return (self.world_size, self.gradient_exchange, *own, self.parallelism.moving, self.local)

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Choices by which a ranking tells strategies apart."""
        return _told_apart(self)

    @property
    def detours(self) -> int:
        """Number of choices that make the strategy less simple than the simplest."""
        unusual = sum(map(is_not, _simple(self), _SIMPLEST))
        return unusual + sum(detour(getattr(self, part) if part else self) for part, detour in _DETOURS)

    @property
    def simplicity(self) -> tuple[int, int, int, int]:
        """Rank by simplicity, the simplest least.

        Dimensions that divide the network, the product of their sizes, choices that are not the usual, and micro steps.
        """
        sizes = _dividing(self.parallelism)
        return sum(size > 1 for size in sizes), math.prod(sizes), self.detours, self.parallelism.micro_batches

    @property
    def grouping(self) -> tuple[Hashable, ...]:
        """Choices that affect the groups of ``partition``, each reduced to its relevant part."""
        owners = {part: getattr(self, part) if part else self for part in ("", *_PARTS)}
        values = ((getattr(owners[part], field), reduced) for part, field, reduced in _GROUPING)
        return tuple(reduced(value) if reduced else value for value, reduced in values)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict of every choice, by the names of ``of``, which is the inverse."""
        written = {_WORLD: 0, **plain_values(self), **plain_values(self.parallelism)}
        written[_WORLD] = self.world_size  # the mesh has the number of replicas
        written |= self.gradient_exchange.to_json() | plain_values(self.weight_update)
        return written if self.sync_every == 1 else written | plain_values(self.local)  # as every earlier version wrote it


def _path(item: StrategyChoice) -> str:
    """Return the attribute of a strategy that holds a choice, with dots."""
    return f"{item.part}.{item.field}".removeprefix(".")


_PARTS: Mapping[str, type[Any]] = {
    "parallelism": Parallelism,
    "gradient_exchange": GradientExchange,
    "local": LocalSteps,
    "weight_update": WeightUpdate,
}
CHOICES: Mapping[str, StrategyChoice] = collected(Strategy, _PARTS)
"""Every choice by its name in ``Strategy.of``."""
COMPUTING: Callable[[Strategy], tuple[Any, ...]] = attrgetter(
    *(item.field for item in declared(Strategy) if item.name != "global_batch_size" and "groups" not in item.affects)
)
"""Return the own choices of a strategy on which passes, update and memory depend: strategies that share them share those."""
LAYOUT = tuple(name for name, item in CHOICES.items() if item.of_layout)
"""Names of the choices that a search of layouts decides."""
_DATA = "data"
_WORLD = "world_size"
_NAMES = (*CHOICES, _DATA)
_PLACES = {name: (item.part, "devices" if name == _WORLD else item.field) for name, item in CHOICES.items()}
"""Part and attribute of each choice."""
_NEEDY = sorted(
    (item for item in CHOICES.values() if item.strategy_needs),
    key=lambda item: ("parallelism", "local", "gradient_exchange", "weight_update", "").index(item.part),
)
_CONDITIONS = tuple(
    (item, item.default, tuple((n.met, True) if isinstance(n, Need) else (n, False) for n in item.strategy_needs))
    for item in _NEEDY
)
"""Conditions between choices of different parts, in the order in which they are checked. True: a function that returns whether
the condition holds. Others raise."""
_conditioned: Callable[[Strategy], tuple[Any, ...]] = attrgetter(*(_path(item) for item in _NEEDY))
_GROUPING = tuple((*_PLACES[name], item.grouped_by) for name, item in CHOICES.items() if "groups" in item.affects)
"""Part and attribute of each choice that affects groups, and what of its value does."""
moving_of_step = values_of(
    [item.field for item in declared(Strategy) if "exchange" in item.affects and item.field != "precision"]
)
"""Choices of ``Strategy`` itself that affect an exchange, except the precision."""
_PLAIN_DETOURS = [item for item in CHOICES.values() if item.detour is True]
_simple: Callable[[Strategy], tuple[Any, ...]] = attrgetter(*map(_path, _PLAIN_DETOURS))
_SIMPLEST = tuple(item.default for item in _PLAIN_DETOURS)
"""Defaults, which strategies share as objects: values of families, and small numbers."""
_dividing: Callable[[Parallelism], tuple[int, ...]] = values_of(DIVIDING)
_DETOURS = tuple((item.part, item.detour) for item in CHOICES.values() if callable(item.detour))
_told_apart: Callable[[Strategy], tuple[Any, ...]] = attrgetter(*(_path(item) for item in CHOICES.values() if item.told_apart))
"""Choices by which a ranking tells strategies apart."""
_OTHER_NAMES = {item.field: name for name, item in CHOICES.items() if name not in (item.field, _WORLD)}
"""Field names that differ from their choice's name."""


def _by_one_name(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choices under their main names. Raises UserError if both names of one choice are given."""
    for name, other in (*_OTHER_NAMES.items(), (_DATA, _WORLD)):
        if name in choices and other in choices:
            raise UserError(f"{name} and {other} are one choice", "give one of them")
    return {_OTHER_NAMES.get(name, name): value for name, value in choices.items()}


def _usual(x: GradientExchange, mesh: Parallelism) -> GradientExchange:
    """Return the gradient exchange with the usual exchange of its compression on this mesh."""
    usual = usual_exchange(x.compression, mesh.to_owners)
    return x if usual is x.exchange else replace(x, exchange=usual)


def _replicas(devices: object, mesh: Mapping[str, Any]) -> int:
    """Return the number of replicas on the given number of devices."""
    count, model = check_count(devices, "workers"), 1
    for name in MODEL:
        model *= check_count(mesh.get(name, 1), name)
    if count % model:
        legal = multiples(count, model)
        raise UserError(f"{count} devices are no whole replicas of {model}", f"nearest legal: {legal} devices")
    return count // model


def untrained(strategy: Strategy) -> Iterator[UserError]:
    """Yield the reasons why ``train`` does not run a predictable strategy: one error for each choice that it refuses."""
    for name, (part, _) in _PLACES.items():
        item, owner = CHOICES[name], getattr(strategy, part) if part else strategy
        value = getattr(owner, item.field)
        if value != item.default and not item.train.runs(owner):
            yield UserError(*(filled(text, owner, item.name, value) for text in (item.train.what, item.train.fix)))


def unwritten(strategy: Strategy, in_script: bool) -> Iterator[tuple[str, str]]:
    """Yield each choice that a file of ``plan --emit`` cannot state, in words, and why.

    Args:
        in_script: True if the file starts a script that wraps the model.
    """
    for name, (part, _) in _PLACES.items():
        item, owner = CHOICES[name], getattr(strategy, part) if part else strategy
        value, rule = getattr(owner, item.field), item.emit
        if value != item.default and not (rule.by_scripts if in_script else rule.by_programs)(owner):
            yield filled(rule.what, owner, item.name, value), rule.why


def titles(strategy: Strategy) -> list[str]:
    """Return the declared texts that describe the choices with other values than the default, without the exchange's."""
    texts = (item.described(getattr(strategy, item.part) if item.part else strategy) for item in _TITLED)
    return [text for text in texts if text]


_TITLED = sorted(
    (item for item in CHOICES.values() if item.title and item.part != "gradient_exchange"), key=lambda item: item.title_rank
)
"""Choices with titles, in the order of a description. A gradient exchange describes its own."""
