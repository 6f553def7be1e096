"""The ways in which a network becomes small: a penalty while it trains, then a plan of what it was left with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from torch import nn
from torch.optim import Optimizer

from paceline.errors import UserError, unknown
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.latency_forecast import SHOWN_SPARSITIES, Prospect, Prospects, of_ranks, of_widths
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.latency.sparse_roofline import Advice, advice
from paceline.slimming.latency.targets import TARGETS, SlimTarget
from paceline.slimming.methods import compact_student
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.budget_path import BudgetPath, Cost
from paceline.slimming.methods.force import ForceRegularizer
from paceline.slimming.methods.group_lasso import StructureNorms
from paceline.slimming.methods.low_rank import rank_at
from paceline.slimming.methods.low_rank_choice import ranks_for
from paceline.slimming.methods.sparse_path import SparsePath
from paceline.slimming.methods.widths import widths_for
from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.sizes import BYTES, module_bytes
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.structures import RemovableStructure, Structures

FORCE = 5e-4
"""Of the L2 force: the best mean on validation data of those that were split at an equal latency, as ``plan`` splits. A
stronger one lowers the ranks at an equal error more, and loses a little at an equal latency (``benchmarks/slim_low_rank.py``).
"""
LATENCIES = ("latency", "speedup")
LEAST_SIDE = 3
"""Of a kernel. With thinner 3x3 kernels networks lost up to a point more than by filters alone, with smaller 5x5 kernels less
(seen by hand on Fashion-MNIST, two seeds each)."""
UNSETTLED = 0.05
"""Share of the zeros of ``sparse`` that the last gradients may still move."""
MOST_SPARSE = 0.97
"""A layer of more zeros than that is not offered: SkimCaffe's ResNet-50 holds 98 % in its sparsest layer."""
SPARSITIES = tuple(percent / 100 for percent in range(1, round(100 * MOST_SPARSE) + 1))


class Task(Protocol):
    """A network on its way to a budget, as ``Slim`` has it."""

    model: nn.Module
    budget: Budget
    threads: int
    round_to: int

    @property
    def inputs(self) -> tuple[Any, ...]:
        """An example."""

    @property
    def structures(self) -> Structures:
        """What may be removed."""

    @property
    def whole(self) -> Latency:
        """Of the whole network."""

    @property
    def least_s(self) -> float:
        """The least of many runs of the whole network."""

    @property
    def times(self) -> LayerTimes:
        """Of the layers at other widths."""

    @property
    def table(self) -> Mapping[str, Any]:
        """What was measured before training."""

    @property
    def cost(self) -> Cost:
        """Seconds or bytes without some structures."""

    @property
    def goal(self) -> float:
        """Of the cost."""

    def show(self, cost: float) -> str:
        """A cost with its unit."""


@dataclass(frozen=True)
class Planned:
    """What a method decided after training.

    Attributes:
        predicted_s: latency of the slimmed network; None: not predicted. ``kept``: layers that stay whole, and why.
        notes: what the weights lose at once, since training had not brought it to zero.
    """

    plan: SlimPlan
    predicted_s: float | None
    kept: Mapping[str, str]
    notes: tuple[str, ...] = ()


class Method(ABC):
    """How a network becomes small.

    Attributes:
        has_path: the whole network trains on its way to the budget. Without it, what is in its place is new and untrained.
    """

    has_path: ClassVar[bool] = True

    def subject(self, slim: Task) -> nn.Module:
        """The network whose structures are removed: the whole one. Raises UserError where the method has none for it."""
        return slim.model

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """Those of the subject that it removes: all. Raises UserError where it removes structures and there are none.

        Args:
            model: the subject, and ``inputs`` for it.
        """
        return found

    def check(self, slim: Task) -> None:
        """Raises UserError for a budget that cannot be met, or that says nothing to this method."""
        _alike(slim)

    def measure(self, slim: Task) -> dict[str, Any]:
        """What must be known before training, beside the whole network's latency; plain data. The layers at other widths."""
        return {"layers": slim.times.to_json()}

    def prospects(self, slim: Task) -> Prospects:
        """What it could give, before any training: here widths. It need not meet the budget."""
        return of_widths(slim.structures, slim.times)

    @abstractmethod
    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """Around the optimizer, for so many steps. Raises UserError for a budget that cannot be met."""

    @abstractmethod
    def plan(self, slim: Task) -> Planned:
        """The plan that meets the budget. Raises UserError where none does."""

    def removed(self, plan: SlimPlan, structures: Structures) -> set[int]:
        """Numbers of the subject's structures that are not in what a plan makes."""
        return plan.removed(structures)

    def changes(self, before: nn.Module, after: nn.Module) -> tuple[str, ...]:
        """What the path did to the whole network, where that is not seen in the plan."""
        return ()


def _alike(slim: Task) -> set[int]:
    """What is removed for the budget where all structures of a layer matter alike. Raises UserError where none meet it."""
    alike = dict.fromkeys((each.number for each in slim.structures.every), 1.0)
    return widths_for(slim.structures, alike, slim.cost, slim.goal, slim.round_to, slim.show)


@dataclass(frozen=True)
class RemoveStructures(Method):
    """Group Lasso over structures, then the widths that meet the budget.

    Attributes:
        inside: which structures: hidden units of recurrent layers (True), all others (False).
    """

    name: str
    inside: frozenset[bool]

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """By where they are; of them those that really can go."""
        every = tuple(
            each
            for each in found.every
            if any(part.parameter in found.recurrent and part.dim == 0 for part in each.slices) in self.inside
            and not (each.nested and _side(each) < LEAST_SIDE)
        )
        found = sound(found.only(every), model, inputs)
        found.name_whole(f"{self.name} does not remove its structures")
        if not found.every:
            why = "; ".join(f"{place}: {reason}" for place, reason in list(found.kept.items())[:3])
            what = f"{self.name} finds nothing that could be removed"
            raise UserError(f"{what}{f' ({why})' if why else ''}", "try another method")
        return found

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """The path to the budget."""
        self.check(slim)
        return BudgetPath(optimizer, slim.model, slim.structures, slim.cost, slim.goal, steps, slim.round_to)

    def plan(self, slim: Task) -> Planned:
        """The widths."""
        norms = StructureNorms(slim.model, slim.structures)
        importance = dict(zip(norms.numbers, norms.importance().tolist(), strict=True))
        removed = widths_for(slim.structures, importance, slim.cost, slim.goal, slim.round_to, slim.show)
        seconds = None if slim.budget.kind == "size" else slim.times.seconds(removed)
        cut = _cut(sum(importance[number] > 0 for number in removed), len(removed), "structures")
        return Planned(SlimPlan.of(slim.structures, removed), seconds, slim.structures.kept, cut)


def _side(pair: RemovableStructure) -> int:
    """What is left of a kernel without a pair of its rows and those outside it."""
    first, last = pair.slices[0].indices
    return last - first - 1


def _cut(left: int, removed: int, what: str) -> tuple[str, ...]:
    """Says that what is removed was not zero yet, where some was not."""
    if not left:
        return ()
    next_step = "give `wrap` the steps that you train, or fine-tune the small network"
    return (f"{left} of {removed} {what} that were removed were not zero yet, so that the network loses accuracy; {next_step}",)


class Compact(Method):
    """A new network of Conv-M blocks, as wide as the budget lets it be, that the whole network teaches."""

    has_path = False

    def subject(self, slim: Task) -> nn.Module:
        """The widest student."""
        return compact_student.student(compact_student.widest(slim.model, slim.inputs, slim.round_to))

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """Those of the student; its branches stay equally wide."""
        return compact_student.tied(found)

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """None: the whole network trains as it would, to be the teacher."""
        self.check(slim)
        return WrappedOptimizer(optimizer, 0.0)

    def plan(self, slim: Task) -> Planned:
        """The student in the whole network's place."""
        removed = _alike(slim)
        settings = compact_student.widest(slim.model, slim.inputs, slim.round_to)
        shapes = {name: tuple(each.shape) for name, each in slim.model.named_parameters()}
        plan = SlimPlan({}, {}, shapes, {"": compact_student.without(settings, slim.structures, removed)})
        return Planned(plan, None if slim.budget.kind == "size" else slim.times.seconds(removed), {})

    def removed(self, plan: SlimPlan, structures: Structures) -> set[int]:
        """What the widest student has beyond the plan's."""
        return compact_student.removed_by(plan.replacements[""], structures)


class Replace(Method):
    """What methods have in common that put other modules in place of convolutions."""

    name = ""

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """All: none is removed."""
        return replace(found, kept={})

    def measure(self, slim: Task) -> dict[str, Any]:
        """Nothing more."""
        return {}

    def check(self, slim: Task) -> None:
        """It says a latency."""
        if slim.budget.kind not in LATENCIES:
            raise UserError(f"{self.name} cannot aim at {slim.budget}", "give latency=5ms or speedup=2x")


def _least(slim: Task) -> tuple[float, float]:
    """The goal and the whole network's latency as the least of many runs, which layers alone are timed by."""
    return slim.goal * slim.least_s / slim.whole.median_s, slim.least_s


def _as_median(slim: Task, least_s: float) -> float:
    """A latency that is the least of many runs as what a user sees: beside the whole network's median."""
    return least_s * slim.whole.median_s / slim.least_s


class LowRank(Replace):
    """Force regularisation, then layers split at a low rank where the split was measured to be faster."""

    name = "force"

    def prospects(self, slim: Task) -> Prospects:
        """Ranks."""
        return of_ranks(slim.model, slim.inputs, slim.times, slim.threads)

    def measure(self, slim: Task) -> dict[str, Any]:
        """Whether the fastest ranks meet the budget: that does not depend on the weights. Raises UserError where not."""
        self.check(slim)
        goal_s, whole_s = _least(slim)
        ranks_for(slim.model, slim.inputs, budget_s=goal_s, whole_s=whole_s)
        return {"least_s": whole_s}

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """The force, in every step alike."""
        self.check(slim)
        return ForceRegularizer(optimizer, slim.model, FORCE)

    def changes(self, before: nn.Module, after: nn.Module) -> tuple[str, ...]:
        """Ranks at 5 % error, which the force lowers."""
        ranks = []
        for name, layer in before.named_modules():
            if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
                ranks.append(f"{name} {rank_at(layer.weight)} -> {rank_at(after.get_submodule(name).get_parameter('weight'))}")
        return (f"Ranks at 5 % error before and after the force: {', '.join(ranks)}.",)

    def plan(self, slim: Task) -> Planned:
        """The ranks."""
        self.check(slim)
        goal_s, whole_s = _least(slim)
        choice = ranks_for(slim.model, slim.inputs, budget_s=goal_s, whole_s=whole_s)
        return Planned(choice.plan, _as_median(slim, choice.seconds), choice.kept)


class Sparse(Replace):
    """Single weights become zero in the layers that gain from it, for a kernel that leaves them out."""

    name = "sparse"

    def prospects(self, slim: Task) -> Prospects:
        """Sparsities of the layers that gain from them."""
        found, dense = advice(slim.model, slim.inputs, slim.threads), module_bytes(slim.model)
        sizes = {layer: slim.model.get_submodule(layer).get_parameter("weight").numel() for layer in found}
        every, gained = [], set[str]()
        for sparsity in SPARSITIES:
            gain = [layer for layer, each in found.items() if _gains(each, sparsity)]
            gained.update(gain)
            # a weight that is left is written with its place
            size = dense + BYTES * (2 * (1 - sparsity) - 1) * sum(sizes[layer] for layer in gain)
            seconds = _sparse_seconds(found, sparsity, slim.least_s)
            every.append(Prospect(sparsity, len(gain), _as_median(slim, seconds), size))
        kept = {
            layer: each.refused or "more zeros do not make it faster" for layer, each in found.items() if layer not in gained
        }
        only_here = "it rests on how fast the sparse kernel is there, of which no figure is published"
        note = (
            f"Zeros are tried up to {MOST_SPARSE:.0%}. Only convolutions have the sparse kernel; all other layers stay dense."
        )
        return Prospects("sparsity", tuple(every), SHOWN_SPARSITIES, kept, (note,), only_here)

    def measure(self, slim: Task) -> dict[str, Any]:
        """The sparsity of each layer that meets the budget, and what that predicts."""
        self.check(slim)
        found = advice(slim.model, slim.inputs, slim.threads)
        sparsity = _sparsity(found, slim)
        used = {layer: sparsity for layer, each in found.items() if _gains(each, sparsity)}
        kept = {layer: each.refused or "more zeros do not make it faster" for layer, each in found.items() if layer not in used}
        seconds = _as_median(slim, _sparse_seconds(found, sparsity, slim.least_s))
        return {"sparsities": used, "sparse_s": seconds, "kept": kept, "least_s": slim.least_s}

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """The smallest weights shrink to zero along the path."""
        return SparsePath(optimizer, slim.model, slim.table["sparsities"], steps)

    def plan(self, slim: Task) -> Planned:
        """Every such layer with the sparse kernel."""
        layers: Mapping[str, float] = slim.table["sparsities"]
        replacements = {layer: {"kind": "sparse", "sparsity": sparsity} for layer, sparsity in layers.items()}
        wanted, left = 0, 0
        for layer, sparsity in layers.items():
            weight = slim.model.get_submodule(layer).get_parameter("weight")
            count = round(sparsity * weight.numel())
            wanted, left = wanted + count, left + max(count - weight.numel() + int(weight.count_nonzero()), 0)
        cut = _cut(left, wanted, "weights") if left > UNSETTLED * wanted else ()
        return Planned(SlimPlan({}, {}, {}, replacements), float(slim.table["sparse_s"]), slim.table.get("kept", {}), cut)


def _gains(each: Advice, sparsity: float) -> bool:
    return each.roof is not None and not each.refused and each.roof.seconds(sparsity) < each.roof.dense_s


def _sparse_seconds(found: Mapping[str, Advice], sparsity: float, whole_s: float) -> float:
    """Of the network with so many zeros in every layer that gains."""
    saved = sum(
        each.roof.dense_s - each.roof.seconds(sparsity) for each in found.values() if each.roof and _gains(each, sparsity)
    )
    return whole_s - saved


def _sparsity(found: Mapping[str, Advice], slim: Task) -> float:
    """The least, in steps of a hundredth, that meets the budget. Raises UserError where none does."""
    goal_s, whole_s = _least(slim)
    for sparsity in SPARSITIES:
        if _sparse_seconds(found, sparsity, whole_s) <= goal_s:
            return sparsity
    least = _as_median(slim, _sparse_seconds(found, MOST_SPARSE, whole_s))
    why = "; ".join(f"{layer}: {each.refused}" for layer, each in list(found.items())[:3] if each.refused)
    nearest = f"{MOST_SPARSE:.0%} zeros give {slim.show(least)}{f' ({why})' if why else ''}"
    raise UserError(f"a budget of {slim.show(slim.goal)} cannot be met by zeros", f"give a larger budget; {nearest}")


METHODS: Mapping[str, Method] = {
    "auto": RemoveStructures("auto", frozenset({True, False})),
    "ssl": RemoveStructures("ssl", frozenset({False})),
    "iss": RemoveStructures("iss", frozenset({True})),
    "force": LowRank(),
    "sparse": Sparse(),
    "compact": Compact(),
}


def target_for(target: str, method: str) -> SlimTarget:
    """The runtime of this name. Raises UserError where there is none, or where the method only knows ONNX Runtime's times."""
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    if target != "onnxruntime" and isinstance(METHODS[method], Replace):
        rest = ", ".join(name for name, each in METHODS.items() if not isinstance(each, Replace))
        raise UserError(f"{method} weighs layers by times on ONNX Runtime, not on {target}", f"give one of {rest}")
    return TARGETS[target]


__all__ = [
    "LATENCIES",
    "METHODS",
    "Compact",
    "LowRank",
    "Method",
    "Planned",
    "RemoveStructures",
    "Replace",
    "Sparse",
    "Task",
    "target_for",
]
