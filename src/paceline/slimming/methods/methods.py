"""Methods of slimming: a penalty during training, then a plan of the remaining parts."""

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
from paceline.slimming.latency.unmeasured_targets import UNMEASURED_TARGETS
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
from paceline.slimming.structures.shrink import BYTES, module_bytes
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.structures import RemovableStructure, Structures

FORCE = 5e-4
"""Default strength of the L2 force: the best mean on validation data of networks split by ``plan`` at an equal latency. A
stronger one lowers the ranks at an equal error more, and loses a little at an equal latency (``benchmarks/slim_low_rank.py``).
"""
LATENCIES = ("latency", "speedup")
LEAST_SIDE = 3
"""Smallest kernel that may shrink. With smaller 3x3 kernels networks lost up to a point more than by filters alone, with
smaller 5x5 kernels less (Fashion-MNIST, two seeds each).
"""
UNSETTLED = 0.05
"""Share of the zeros of ``sparse`` that the last gradients may still change."""
MOST_SPARSE = 0.97
"""Largest sparsity of a layer: SkimCaffe's ResNet-50 has 98 % in its sparsest layer."""
SPARSITIES = tuple(percent / 100 for percent in range(1, round(100 * MOST_SPARSE) + 1))


class Task(Protocol):
    """Interface to a network on its way to a budget, implemented by ``Slim``."""

    model: nn.Module
    budget: Budget
    threads: int
    round_to: int

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Example inputs."""

    @property
    def structures(self) -> Structures:
        """Structures that may be removed."""

    @property
    def whole(self) -> Latency:
        """Latency of the whole network."""

    @property
    def least_s(self) -> float:
        """Least latency of many runs of the whole network."""

    @property
    def equal(self) -> tuple[tuple[str, ...], ...]:
        """Names of layers that keep one width."""

    @property
    def times(self) -> LayerTimes:
        """Times of the layers at other widths."""

    @property
    def table(self) -> Mapping[str, Any]:
        """Measurements made before training."""

    @property
    def cost(self) -> Cost:
        """Return the seconds or bytes without some structures."""

    @property
    def goal(self) -> float:
        """Return the budget of the cost."""

    def show(self, cost: float) -> str:
        """Format a cost with its unit."""


@dataclass(frozen=True)
class Planned:
    """Decision of a method after training.

    Attributes:
        predicted_s: latency of the slimmed network; None: not predicted. ``kept``: layers that stay whole, with reasons. notes:
            remarks on removed weights that training had not brought to zero.
    """

    plan: SlimPlan
    predicted_s: float | None
    kept: Mapping[str, str]
    notes: tuple[str, ...] = ()


class Method(ABC):
    """A method of slimming.

    Attributes:
        has_path: the whole network trains on its way to the budget. False: a new, untrained network replaces it.
    """

    has_path: ClassVar[bool] = True

    def subject(self, slim: Task) -> nn.Module:
        """Return the network to shrink, by default the whole one. Raises UserError if the method does not support it."""
        return slim.model

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """Return the structures of the subject that the method may remove, by default all. Raises UserError if the subject has
        no structures.

        Args:
            model: the subject, and ``inputs`` for it.
        """
        return found

    def check(self, slim: Task) -> None:
        """Check the budget. Raises UserError for a budget that cannot be met, or that this method does not support."""
        _equal_removals(slim)

    def measure(self, slim: Task) -> dict[str, Any]:
        """Return the measurements needed before training as plain data, except the whole network's latency."""
        return {"layers": slim.times.to_json()}

    def prospects(self, slim: Task) -> Prospects:
        """Return possible results before any training, by default widths. They need not meet the budget."""
        return of_widths(slim.structures, slim.times)

    @abstractmethod
    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """Wrap the optimizer for a number of steps. Raises UserError for a budget that cannot be met."""

    @abstractmethod
    def plan(self, slim: Task) -> Planned:
        """Return the plan that meets the budget. Raises UserError if no plan does."""

    def removed(self, plan: SlimPlan, structures: Structures) -> set[int]:
        """Return the indices of the structures that a plan removes."""
        return plan.removed(structures)

    def changes(self, before: nn.Module, after: nn.Module) -> tuple[str, ...]:
        """Return effects of the path on the whole network that the plan does not show."""
        return ()


def _equal_removals(slim: Task) -> set[int]:
    """Return the structures to remove for the budget if a layer's are equally important. Raises UserError if none meet it."""
    alike = dict.fromkeys((each.number for each in slim.structures.every), 1.0)
    return widths_for(slim.structures, alike, slim.cost, slim.goal, slim.round_to, slim.show, slim.equal)


@dataclass(frozen=True)
class RemoveStructures(Method):
    """Method of group Lasso over structures, then of the widths that meet the budget.

    Attributes:
        inside: structures that it removes: hidden units of recurrent layers (True), all others (False).
    """

    name: str
    inside: frozenset[bool]

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """Select structures by their place, and keep those that can really be removed."""
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
        """Return the path to the budget."""
        self.check(slim)
        return BudgetPath(optimizer, slim.model, slim.structures, slim.cost, slim.goal, steps, slim.round_to, slim.equal)

    def plan(self, slim: Task) -> Planned:
        """Return the plan of the widths."""
        norms = StructureNorms(slim.model, slim.structures)
        importance = dict(zip(norms.numbers, norms.importance().tolist(), strict=True))
        removed = widths_for(slim.structures, importance, slim.cost, slim.goal, slim.round_to, slim.show, slim.equal)
        seconds = None if slim.budget.kind == "size" else slim.times.seconds(removed)
        cut = _nonzero_note(sum(importance[number] > 0 for number in removed), len(removed), "structures")
        return Planned(SlimPlan.of(slim.structures, removed), seconds, slim.structures.kept, cut)


def _side(pair: RemovableStructure) -> int:
    """Return the remaining size of a kernel after the removal of a pair of its rows and of the pairs outside it."""
    first, last = pair.slices[0].indices
    return last - first - 1


def _nonzero_note(left: int, removed: int, what: str) -> tuple[str, ...]:
    """Return a note if some removed structures were not zero yet."""
    if not left:
        return ()
    next_step = "give `wrap` the steps that you train, or fine-tune the small network"
    return (f"{left} of {removed} {what} that were removed were not zero yet, so that the network loses accuracy; {next_step}",)


class Compact(Method):
    """Method that trains a new network of Conv-M blocks, as wide as the budget allows, with the whole network as teacher."""

    has_path = False

    def subject(self, slim: Task) -> nn.Module:
        """Return the widest student."""
        return compact_student.student(compact_student.widest(slim.model, slim.inputs, slim.round_to))

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """Return the student's structures; its branches keep equal widths."""
        return compact_student.tied(found)

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """Return the optimizer unchanged: the whole network trains as the teacher."""
        self.check(slim)
        return WrappedOptimizer(optimizer, 0.0)

    def plan(self, slim: Task) -> Planned:
        """Return the plan that replaces the whole network by the student."""
        removed = _equal_removals(slim)
        settings = compact_student.widest(slim.model, slim.inputs, slim.round_to)
        shapes = {name: tuple(each.shape) for name, each in slim.model.named_parameters()}
        plan = SlimPlan({}, {}, shapes, {"": compact_student.without(settings, slim.structures, removed)})
        return Planned(plan, None if slim.budget.kind == "size" else slim.times.seconds(removed), {})

    def removed(self, plan: SlimPlan, structures: Structures) -> set[int]:
        """Return the structures of the widest student that the plan's student lacks."""
        return compact_student.removed_by(plan.replacements[""], structures)


class Replace(Method):
    """Base of the methods that replace convolutions by other modules."""

    name = ""

    def structures(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
        """Return all structures, although the method removes none."""
        return replace(found, kept={})

    def measure(self, slim: Task) -> dict[str, Any]:
        """Return no further measurements."""
        return {}

    def check(self, slim: Task) -> None:
        """Check that the budget is a latency."""
        if slim.budget.kind not in LATENCIES:
            raise UserError(f"{self.name} cannot aim at {slim.budget}", "give latency=5ms or speedup=2x")


def _least(slim: Task) -> tuple[float, float]:
    """Return the goal and the whole network's latency as the least of many runs, the scale of single layers' times."""
    return slim.goal * slim.least_s / slim.whole.median_s, slim.least_s


def _as_median(slim: Task, least_s: float) -> float:
    """Convert a latency from the least of many runs to the scale of the whole network's median."""
    return least_s * slim.whole.median_s / slim.least_s


class LowRank(Replace):
    """Method of force regularisation, then a split of layers at a low rank if the split measured faster."""

    name = "force"

    def prospects(self, slim: Task) -> Prospects:
        """Return possible ranks."""
        return of_ranks(slim.model, slim.inputs, slim.times, slim.threads)

    def measure(self, slim: Task) -> dict[str, Any]:
        """Check that the fastest ranks meet the budget, which does not depend on the weights. Raises UserError if not."""
        self.check(slim)
        goal_s, whole_s = _least(slim)
        ranks_for(slim.model, slim.inputs, budget_s=goal_s, whole_s=whole_s)
        return {"least_s": whole_s}

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """Wrap the optimizer with the force, equal in every step."""
        self.check(slim)
        return ForceRegularizer(optimizer, slim.model, FORCE)

    def changes(self, before: nn.Module, after: nn.Module) -> tuple[str, ...]:
        """Return notes on the ranks at 5 % error, which the force lowers."""
        ranks = []
        for name, layer in before.named_modules():
            if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
                ranks.append(f"{name} {rank_at(layer.weight)} -> {rank_at(after.get_submodule(name).get_parameter('weight'))}")
        return (f"Ranks at 5 % error before and after the force: {', '.join(ranks)}.",)

    def plan(self, slim: Task) -> Planned:
        """Return the plan of the ranks."""
        self.check(slim)
        goal_s, whole_s = _least(slim)
        choice = ranks_for(slim.model, slim.inputs, budget_s=goal_s, whole_s=whole_s)
        return Planned(choice.plan, _as_median(slim, choice.seconds), choice.kept)


class Sparse(Replace):
    """Method that makes single weights zero in the layers that gain from it, for a kernel that skips zeros."""

    name = "sparse"

    def prospects(self, slim: Task) -> Prospects:
        """Return possible sparsities of the layers that gain from them."""
        found, dense = advice(slim.model, slim.inputs, slim.threads), module_bytes(slim.model)
        sizes = {layer: slim.model.get_submodule(layer).get_parameter("weight").numel() for layer in found}
        every, gained = [], set[str]()
        for sparsity in SPARSITIES:
            gain = [layer for layer, each in found.items() if _gains(each, sparsity)]
            gained.update(gain)
            # each remaining weight is stored with its position
            size = dense + BYTES * (2 * (1 - sparsity) - 1) * sum(sizes[layer] for layer in gain)
            seconds = _sparse_seconds(found, sparsity, slim.least_s)
            every.append(Prospect(sparsity, len(gain), _as_median(slim, seconds), size))
        kept = {
            layer: each.refused or "more zeros do not make it faster" for layer, each in found.items() if layer not in gained
        }
        only_here = "it depends on the speed of the sparse kernel there, and no figure is published"
        note = (
            f"Zeros are tried up to {MOST_SPARSE:.0%}. Only convolutions have the sparse kernel; all other layers stay dense."
        )
        return Prospects("sparsity", tuple(every), SHOWN_SPARSITIES, kept, (note,), only_here)

    def measure(self, slim: Task) -> dict[str, Any]:
        """Return the sparsity of each layer that meets the budget, and the predicted latency."""
        self.check(slim)
        found = advice(slim.model, slim.inputs, slim.threads)
        sparsity = _sparsity(found, slim)
        used = {layer: sparsity for layer, each in found.items() if _gains(each, sparsity)}
        kept = {layer: each.refused or "more zeros do not make it faster" for layer, each in found.items() if layer not in used}
        seconds = _as_median(slim, _sparse_seconds(found, sparsity, slim.least_s))
        return {"sparsities": used, "sparse_s": seconds, "kept": kept, "least_s": slim.least_s}

    def penalty(self, slim: Task, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """Wrap the optimizer: the smallest weights shrink to zero along the path."""
        return SparsePath(optimizer, slim.model, slim.table["sparsities"], steps)

    def plan(self, slim: Task) -> Planned:
        """Return the plan with the sparse kernel in every layer that gains."""
        layers: Mapping[str, float] = slim.table["sparsities"]
        replacements = {layer: {"kind": "sparse", "sparsity": sparsity} for layer, sparsity in layers.items()}
        wanted, left = 0, 0
        for layer, sparsity in layers.items():
            weight = slim.model.get_submodule(layer).get_parameter("weight")
            count = round(sparsity * weight.numel())
            wanted, left = wanted + count, left + max(count - weight.numel() + int(weight.count_nonzero()), 0)
        cut = _nonzero_note(left, wanted, "weights") if left > UNSETTLED * wanted else ()
        return Planned(SlimPlan({}, {}, {}, replacements), float(slim.table["sparse_s"]), slim.table.get("kept", {}), cut)


def _gains(each: Advice, sparsity: float) -> bool:
    return each.roof is not None and not each.refused and each.roof.seconds(sparsity) < each.roof.dense_s


def _sparse_seconds(found: Mapping[str, Advice], sparsity: float, whole_s: float) -> float:
    """Return the latency of the network with this sparsity in every layer that gains."""
    saved = sum(
        each.roof.dense_s - each.roof.seconds(sparsity) for each in found.values() if each.roof and _gains(each, sparsity)
    )
    return whole_s - saved


def _sparsity(found: Mapping[str, Advice], slim: Task) -> float:
    """Return the least sparsity, in steps of a hundredth, that meets the budget. Raises UserError if no sparsity does."""
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


EVERY_TARGET: Mapping[str, SlimTarget] = {**TARGETS, **{each.name: each for each in UNMEASURED_TARGETS}}
"""Runtimes that run here, and those whose files are only written here."""


def target_for(target: str, method: str, budget: Budget | None = None) -> SlimTarget:
    """Return the runtime of this name.

    Raises:
        UserError: an unknown name, a method that supports only ONNX Runtime, a budget of time on a runtime that is not here.
    """
    if target not in EVERY_TARGET:
        raise unknown("target", target, EVERY_TARGET)
    found = EVERY_TARGET[target]
    if budget is not None and not found.measured and budget.kind != "size":
        raise UserError(f"{budget} for {found.title}, whose latency cannot be measured here", "give `budget` size=4MB")
    if target != "onnxruntime" and isinstance(METHODS[method], Replace):
        rest = ", ".join(name for name, each in METHODS.items() if not isinstance(each, Replace))
        raise UserError(f"{method} weighs layers by times on ONNX Runtime, not on {target}", f"give one of {rest}")
    return found
