"""Values to try for every choice of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from paceline.errors import UserError, check_count, check_name, shown
from paceline.hardware import PRECISIONS, Cluster, Device
from paceline.hardware.precision import precision_on
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction.learning.convergence import accuracies
from paceline.strategy import COMPRESSIONS, SHARDINGS
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import ByteSize, Name, WholeNumber
from paceline.strategy.choices.synonyms import name_in
from paceline.strategy.choices.values import chosen, plain
from paceline.strategy.codec_place import IN_CARD, PLACES, USUAL_PLACE
from paceline.strategy.compression.compressions import DENSE
from paceline.strategy.exchanges.allreduce import ALLREDUCE
from paceline.strategy.frameworks import Framework
from paceline.strategy.gradient_exchange import RESIDUAL_CHOICES
from paceline.strategy.mesh_rules import SHARES_OUT
from paceline.strategy.parallelism import DIVIDING, MODEL
from paceline.strategy.strategy import CHOICES

DOUBLINGS = 11
"""Number of default batches of a worker: powers of two from 1 to 1024."""
MAX_LOSS = 0.5
"""Accuracy loss in points up to which a compression competes without being named, in every measured setting."""


_NAMED: Mapping[str, StrategyChoice] = {
    axis: item
    for item in CHOICES.values()
    if item.plan is not None and item.plan.axis and not item.plan.single and isinstance(item.values, Name)
    for axis in (item.plan.axis, *(["divided_shardings"] if item.plan.axis == "shardings" else ()))
}
"""Fields that hold names, each with its choice."""


def axes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of ``Space`` that hold the values of some choices."""
    return tuple(item.plan.axis for item in map(CHOICES.__getitem__, names) if item.plan is not None)


_SIZES = (
    *(i.plan.axis for i in CHOICES.values() if i.plan and isinstance(i.values, WholeNumber | ByteSize) and i.plan.axis),
    "micro_batches",
    "micro_batch_sizes",
)
"""Fields that hold whole numbers."""
MODEL_AXES = axes(MODEL)
"""Fields of the sizes of dimensions whose devices together hold one replica."""
_OF_SHARES: Mapping[str, str] = {
    name: item.plan.axis for name, item in CHOICES.items() if item.plan and item.plan.single and SHARES_OUT in item.needs
}
"""Choices of strategies that share state out, and the field that holds their value."""
UNDIVIDED: Mapping[str, Any] = dict.fromkeys(axes(DIVIDING), (1,))
"""Fields of a space without divided networks."""
PLAIN_GRADIENTS: Mapping[str, tuple[str, ...]] = {"compressions": (DENSE.name,), "exchanges": (ALLREDUCE.name,)}
"""Fields of a space without compressed gradients."""
UNEVEN = "give nodes of equally many devices, or ask predict and whatif for these"
"""Advice if nodes have different numbers of devices."""


_PLANNED: Mapping[str, StrategyChoice] = {name: item for name, item in CHOICES.items() if item.plan is not None}
"""Choices of which a plan tries several values, or one that is named."""
OTHERS: Mapping[str, StrategyChoice] = {
    name: item for name, item in _PLANNED.items() if item.plan is not None and not item.plan.axis
}
"""Choices that a plan tries without a field of ``Space`` for them."""


def _tried(name: str) -> tuple[Any, ...]:
    """Return the values of a choice that a plan tries by default."""
    plan = CHOICES[name].plan
    return plan.values if plan else ()


def _usual_others() -> Mapping[str, tuple[Any, ...]]:
    """Return the default values of further choices."""
    return {name: values for name in OTHERS if (values := _tried(name))}


def runs_divided(framework: Framework) -> bool:
    """Return whether a framework runs divided networks: its settings name the stages of a pipeline, or none are declared."""
    return not framework.tool or bool(name_in(framework.tool, CHOICES["pipeline"].synonyms))


def space_fields(choices: Mapping[str, Sequence[Any]], devices: Iterable[Device]) -> dict[str, Any]:
    """Return the fields of ``Space`` with which a plan tries only these values of choices, each value once.

    Args:
        choices: values by the choice's name.
        devices: those of the plan. Mixed precision is of the kind that they support.

    Raises:
        UserError: an illegal value, or a choice that no plan tries.
    """
    fields: dict[str, Any] = {}
    others: dict[str, tuple[Any, ...]] = {}
    kinds = {device.name: device for device in devices}.values()
    for name, given in choices.items():
        check_name("choice of a plan", name, _PLANNED)
        item = _PLANNED[name]
        values = [precision_on(value, of.precisions) for value in given for of in kinds] if name == "precision" else given
        if item.values.counted:
            once = tuple(sorted(set(values)))  # checked with the field
        else:
            once = tuple(dict.fromkeys(plain(item.values.check(value, name)) for value in values))
        assert item.plan is not None
        if not item.plan.axis:
            others[name] = once
        else:
            fields[item.plan.axis] = once[0] if item.plan.single else once
    for axis, same in (("shardings", "divided_shardings"), ("accumulations", "micro_batches")):
        if axis in fields:
            fields[same] = fields[axis]
    return {**fields, **({"others": others} if others else {})}


@dataclass(frozen=True, kw_only=True)
class Space:
    """Values to try for every choice of a plan. Empty ``batches``: see ``batches_on``.

    Attributes:
        clusters: kinds and numbers of devices.
        precisions: names of precisions; a device ignores those that it lacks. Empty: the usual one
            (``strategy.usual_precision``) and the narrower ones, except fp8, whose accuracy is not known, and fp16 if a device
            has bf16, which is as fast and needs no loss scaling.
        compressions: empty: dense, and compressions that lost at most ``max_loss`` points of accuracy against dense in equal
            epochs in every measured setting. Unmeasured ones are left out too.
        exchanges: without sums in the switch, which few switches have, unless they are named.
        others: values of further choices, by name, such as ``codec_at`` and ``dense_bits``. A strategy that cannot have a value
            keeps its own.
        servers: servers of ``parameter_server``. More serve faster, up to ``sharded``, in which every worker does.
        tensors, contexts, pipelines: devices that divide each layer (within a node, with sequence parallelism), each sequence,
            and stages. Empty ones: 1 where another is given. All empty: the plan searches layouts if no device holds the whole
            training state. A divided network is tried with dense gradients in all-reduces.
        experts: devices of a stage that share the experts of a mixture. Empty: 1 where each device holds the network, and in a
            search of layouts the powers of two that divide the experts and the devices of a stage.
        schedules: schedules of pipelines without virtual stages, names of ``strategy.parallelism.SCHEDULES``.
        offloads: True if optimizer state may be in the host's memory when nothing else fits a device.
        node_groups: whether a search of layouts also tries shares within each node (HSDP).
        divided_shardings: in a search of layouts, where they differ from ``shardings``.
        gather_bits, gradient_bits: gather bits and gradient bits of every strategy that shares out optimizer state, as for
            ``Parallelism``.
        recomputes: in a search of layouts also selective recomputation, by the parts that save this network memory, unless
            others than the usual two are named.
        micro_batch_sizes: samples of a replica in a micro step; empty: any.
        virtual_stages, micro_batches: those of a divided network; empty: those that a search of layouts tries.
        optimizer: empty: the one that the learning rates of the target are for, else the network's usual one.
    """

    clusters: tuple[Cluster, ...]
    batches: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = _tried("exchange")
    servers: tuple[int, ...] = _tried("servers")
    shardings: tuple[str, ...] = _tried("sharding")
    divided_shardings: tuple[str, ...] = ()
    accumulations: tuple[int, ...] = _tried("grad_accum_steps")
    recomputes: tuple[bool | str, ...] = _tried("recompute")
    buckets: tuple[int, ...] = _tried("bucket_bytes")
    tensors: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    pipelines: tuple[int, ...] = ()
    virtual_stages: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = ()
    micro_batch_sizes: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    schedules: tuple[str, ...] = _tried("schedule")
    node_groups: bool = True
    offloads: bool = True
    gather_bits: int = 0
    gradient_bits: int = 0
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=_usual_others)
    optimizer: str = ""
    max_loss: float = MAX_LOSS

    @property
    def combinations(self) -> tuple[Mapping[str, Any], ...]:
        """All combinations of values of the ``others``."""
        return tuple(dict(zip(self.others, values, strict=True)) for values in product(*self.others.values()))

    @property
    def updates(self) -> Mapping[str, Any]:
        """Choices of the update of the weights that every strategy has, by name."""
        named = ((name, values[0]) for name, values in self.others.items() if CHOICES[name].part == "weight_update" and values)
        return {name: value for name, value in named if value != CHOICES[name].default}

    def tried(self, item: StrategyChoice) -> tuple[Any, ...]:
        """Return the values to try of a choice; empty if they depend on the network, the cluster or other choices."""
        if item.plan is None:
            return ()
        if not item.plan.axis:
            return tuple(self.others.get(item.name, (plain(item.default),)))
        values = getattr(self, item.plan.axis)
        if item.plan.single:
            return () if values == plain(item.default) else (values,)
        return tuple(plain(item.values.check(value, item.name)) for value in values)

    def _check_others(self) -> None:
        """Raise UserError for illegal further choices, or for values that require other choices."""
        for name, values in self.others.items():
            check_name("further choice of a space", name, OTHERS)
            if not isinstance(values, tuple | list):
                raise UserError(f"{name}={shown(values)}", f"give a tuple, such as {name}=({OTHERS[name].example},)")
            for value in values:
                OTHERS[name].values.check(value, name)
        named = set(self.compressions)
        at = chosen("place of the codec", next(iter(self.others.get("codec_at", ())), ""), {"": USUAL_PLACE, **PLACES})
        codecs = [name for name, c in COMPRESSIONS.items() if (c.in_card if at is IN_CARD else c.compresses)]
        if at and named and not named & set(codecs):
            given = f"a codec {at.text}, with {', '.join(self.compressions)} alone"
            raise UserError(given, f"name one that works there ({', '.join(codecs)}), or leave codec_at out")
        keeps = tuple(name for name, c in COMPRESSIONS.items() if c.error_feedback)
        if set(RESIDUAL_CHOICES) & set(self.others) and named and not named & set(keeps):
            raise UserError(
                f"residuals of {', '.join(self.compressions)}, which keep none",
                f"name one that does ({', '.join(keeps)}), or leave {' and '.join(RESIDUAL_CHOICES)} out",
            )
        if 16 in self.others.get("dense_bits", ()) and named == {DENSE.name}:
            raise UserError("dense gradients in 16 bits are what compression bf16 sends", "name compression bf16")

    def __post_init__(self) -> None:
        for name, item in _NAMED.items():
            values, legal = getattr(self, name), item.values.names
            if not isinstance(values, tuple | list):
                raise UserError(f"{name}={shown(values)}", f"give a tuple, such as {name}=({next(iter(legal))!r},)")
            for value in values:
                check_name(name.removesuffix("s"), value, legal)
            object.__setattr__(self, name, tuple(values))
        self._check_others()
        for cluster in self.clusters:
            if not cluster.even:
                raise UserError(f"a plan on nodes of {cluster.node_text} devices", UNEVEN)
        for name in _SIZES:
            values = getattr(self, name)
            if not isinstance(values, tuple | list):
                raise UserError(f"{name}={shown(values)}", "give a tuple of whole numbers")
            object.__setattr__(self, name, tuple(check_count(value, f"in {name}") for value in values))

        self._check_bits()

    def _check_bits(self) -> None:
        """Raise UserError for bits that no strategy can have: nothing is sharded, or the precision has more bits."""
        tried = dict.fromkeys((*self.shardings, *self.divided_shardings))
        shared = [name for name in tried if SHARDINGS[name].optimizer]
        for name, value in self.of_shares.items():
            bits = CHOICES[name].values.check(value, name)
            if bits and not shared:
                raise UserError(f"{name}={bits} with sharding {', '.join(tried)}", "give zero1, zero2 or zero3")
        for precision in self.precisions:
            if self.gather_bits and not any(SHARDINGS[name].can_gather(precision, self.gather_bits) for name in shared):
                SHARDINGS[shared[0]].check_gathered(precision, self.gather_bits)

    def gathers(self, precision: str, sharding: str) -> bool:
        """True if weights can be gathered in ``gather_bits`` with this precision and sharding; true if none are gathered."""
        return not SHARDINGS[sharding].shares_out or SHARDINGS[sharding].can_gather(precision, self.gather_bits)

    @property
    def tried_precisions(self) -> tuple[str, ...]:
        """Named precisions, else all."""
        return self.precisions or tuple(PRECISIONS)

    @property
    def of_shares(self) -> Mapping[str, Any]:
        """The one value of each choice of strategies that share state out."""
        return {name: getattr(self, axis) for name, axis in _OF_SHARES.items()}

    @property
    def model_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The named sizes of the dimensions whose devices together hold one replica."""
        return tuple(sizes for axis in MODEL_AXES if (sizes := getattr(self, axis)))

    @property
    def divides(self) -> bool:
        """Return whether sizes of a division are named."""
        return bool(self.model_sizes)

    def on(self, framework: Framework) -> Space:
        """Return the space without divided networks if the framework runs none and no size of a division is named."""
        return self if self.divides or self.experts or runs_divided(framework) else replace(self, **UNDIVIDED)

    @property
    def whole(self) -> bool:
        """Return whether to try strategies in which each device holds the whole network."""
        return all(1 in sizes for sizes in self.model_sizes)

    def times(self, batch: int, replicas: int) -> tuple[int, ...]:
        """Return the numbers of micro steps to try for a batch."""
        if not self.micro_batch_sizes:
            return self.accumulations
        fitting = {batch // (replicas * size) for size in self.micro_batch_sizes if batch % (replicas * size) == 0}
        named = self.accumulations != Space.accumulations
        return tuple(sorted(fitting & set(self.accumulations) if named else fitting))

    def barred(self, work: TrainingTarget) -> Mapping[str, str]:
        """Compressions that do not compete because of their accuracy, and why.

        A compression competes if it was named, or if its penalty on the samples to the target is given.
        """
        if self.compressions:
            return {}
        others = [
            name for name in COMPRESSIONS if COMPRESSIONS[name].compresses and not (work.curve and name in work.penalties)
        ]
        return {name: why for name in others if (why := _too_lossy(name, self.max_loss))}

    def batches_on(self, workers: int, work: TrainingTarget) -> tuple[int, ...]:
        """Return the batches to try: the given ones, or powers of two.

        To a target they range from a sixteenth of the curve's smallest batch, below which it is flat, to its largest.
        They are powers of two in total or for each worker. Without a target they are powers of two for each worker.
        """
        if self.batches:
            return self.batches
        own = {workers * size * 2**n for size in self.micro_batch_sizes or (1,) for n in range(DOUBLINGS)}
        if work.curve is None:
            return tuple(sorted(own))
        low, high = work.curve.low_batch, work.curve.high_batch
        seen = {2**n for n in range(24) if low <= 2**n <= high} | {int(low), int(high)}
        return tuple(sorted(seen | {b for b in own if low / 16 <= b <= high}))


def _too_lossy(compression: str, most: float) -> str:
    """Return why a compression is excluded for its accuracy; empty if it is included."""
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


def worlds(devices_per_node: int, max_nodes: int) -> tuple[tuple[int, int], ...]:
    """Return (devices a node, nodes) to try: powers of two inside one node, then whole nodes up to ``max_nodes``."""
    inside = [(2**n, 1) for n in range(devices_per_node.bit_length()) if 2**n < devices_per_node]
    steps = {n for n in range(1, max_nodes + 1) if n <= 8 or n % (1 << (n.bit_length() - 2)) == 0} | {max_nodes}
    return (*inside, *((devices_per_node, n) for n in sorted(steps)))


def smaller(largest: Cluster) -> tuple[Cluster, ...]:
    """Return the clusters to try up to ``largest``: fewer devices of its first node, fewer nodes, full leaf switches."""
    sizes = [size for size in worlds(largest.devices_per_node, largest.num_nodes) if largest.fills_leaves(size[1])]
    return tuple(largest.changed(devices_per_node=local, num_nodes=nodes) for local, nodes in sizes)
