"""Slim a network in a training loop: wrap its optimizer, train, shrink."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UserError, unknown
from paceline.slimming.budget import Budget
from paceline.slimming.budget_path import BudgetPath, Cost
from paceline.slimming.group_lasso import StructureNorms
from paceline.slimming.latency import Latency, latencies
from paceline.slimming.layer_times import LayerTimes
from paceline.slimming.onnx_export import to_onnx
from paceline.slimming.shrink import load
from paceline.slimming.sizes import weight_bytes
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures import Structures
from paceline.slimming.tracing import structures_of
from paceline.slimming.widths import widths_for
from paceline.slimming.wrapped_optimizer import WrappedOptimizer
from paceline.units import format_bytes, format_seconds

STEPS = 2000
RECURRENT = ("lstm", "gru")


class Slim:
    """A network on its way to a budget: ``wrap`` the optimizer, train as before, then ``shrink``.

    Args:
        model: any that ``torch.export`` takes. It stays whole; ``shrink`` makes a smaller copy.
        inputs: an example of the shapes that it will run on; None takes one sample of the first batch that the model sees.
        budget: a latency, a speed-up or a size; see ``Budget.parse``.
        method: ``ssl`` removes filters, channels, heads, rows of MLPs and embeddings (Wen et al., NIPS 2016), ``iss`` hidden
            units of recurrent layers (Wen et al., ICLR 2018), ``auto`` both.
        threads: of the runtime.
        table: latencies of the layers that were measured before; by default they are measured when they are needed.

    Raises:
        UserError: an unknown method or budget. Later, a model that cannot be traced, or a budget that cannot be met.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...] | None = None,
        *,
        budget: Budget | str = "speedup=2x",
        method: str = "auto",
        threads: int = 1,
        table: Mapping[str, Any] | None = None,
    ) -> None:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        self.model, self.method, self.threads = model, method, threads
        self.budget = budget if isinstance(budget, Budget) else Budget.parse(budget)
        self.round_to = vector_width()
        self.plan: SlimPlan | None = None
        self.predicted_s: float | None = None
        self._inputs, self._table = inputs, table
        self._structures: Structures | None = None
        self._times: LayerTimes | None = None
        self._watch = None if inputs else model.register_forward_pre_hook(self._seen)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The example. Raises UserError before there is one."""
        if self._inputs is None:
            raise UserError("no example of the inputs is known yet", "give inputs=(x,), or run the model once")
        return self._inputs

    @property
    def structures(self) -> Structures:
        """What may be removed."""
        if self._structures is None:
            device = next((each.device for each in self.model.parameters()), torch.device("cpu"))
            inputs = tuple(each.to(device) if isinstance(each, Tensor) else each for each in self.inputs)
            self._structures = METHODS[self.method].structures(structures_of(self.model, inputs))
        return self._structures

    @property
    def times(self) -> LayerTimes:
        """Predicted latencies at other widths, measured layer by layer when first used."""
        if self._times is None:
            if self._table is not None:
                self._times = LayerTimes.from_json(self._table, self.structures)
            else:
                whole = self.latency({"whole": self.model})["whole"]
                self._times = LayerTimes(self.structures, whole, round_to=self.round_to, threads=self.threads)
        return self._times

    @property
    def cost(self) -> Cost:
        """What the budget is of: seconds or bytes without some structures."""
        structures = self.structures
        return (lambda gone: weight_bytes(structures, gone)) if self.budget.kind == "size" else self.times.seconds

    @property
    def goal(self) -> float:
        """The budget in the unit of ``cost``. Raises UserError where nothing is to be done for it."""
        return self.budget.of(self.cost(()))

    def to(self, budget: Budget) -> Slim:
        """The same network and table with another budget."""
        table = self.times.to_json()
        return Slim(self.model, self.inputs, budget=budget, method=self.method, threads=self.threads, table=table)

    def wrap(self, optimizer: Optimizer, steps: int = STEPS) -> Optimizer:
        """The optimizer with a penalty whose strength is found on the way.

        Args:
            steps: over which the network becomes small. Some more steps let what stays settle.
        """
        if steps < 1:
            raise UserError(f"{steps} steps", "give a whole number from 1 up")
        return _Begun(optimizer, lambda inner: METHODS[self.method].penalty(self, inner, steps))

    def shrink(self) -> nn.Module:
        """A smaller copy that meets the budget; ``plan`` then says what stays, ``predicted_s`` what it should take.

        Raises:
            UserError: nothing that the method can remove meets the budget.
        """
        self.plan, self.predicted_s = METHODS[self.method].plan(self)
        return load(self.plan, self.model)

    def latency(self, models: Mapping[str, nn.Module]) -> dict[str, Latency]:
        """What these networks take on ONNX Runtime here, in alternation, by name."""
        with tempfile.TemporaryDirectory() as directory:
            files = {}
            for number, (name, model) in enumerate(models.items()):
                inputs = tuple(each.cpu() if isinstance(each, Tensor) else each for each in self.inputs)
                files[name] = to_onnx(on_cpu(model), inputs, Path(directory) / f"{number}.onnx"), inputs
            return latencies(files, self.threads)

    def show(self, cost: float) -> str:
        """A cost with its unit."""
        return format_bytes(cost) if self.budget.kind == "size" else format_seconds(cost)

    def _seen(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        self._inputs = tuple(each[:1].detach() if isinstance(each, Tensor) else each for each in given)
        if self._watch is not None:
            self._watch.remove()
            self._watch = None


class _Begun(WrappedOptimizer):
    """Makes its penalty before the first step, when an example of the inputs has been seen."""

    def __init__(self, optimizer: Optimizer, make: Callable[[Optimizer], WrappedOptimizer]) -> None:
        super().__init__(optimizer, 1.0)
        self._make = make
        self._penalty: WrappedOptimizer | None = None
        self._state: dict[str, Any] | None = None

    @property
    def penalty(self) -> WrappedOptimizer:
        """Made when first used."""
        if self._penalty is None:
            self._penalty = self._make(self.inner)
            if self._state is not None:
                self._penalty.load_own_state(self._state)
        return self._penalty

    def before_step(self) -> None:
        self.penalty.before_step()

    def after_step(self) -> None:
        self.penalty.after_step()

    def own_state(self) -> dict[str, Any]:
        return {"penalty": None if self._penalty is None else self._penalty.own_state()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self._state = state["penalty"]
        if self._penalty is not None and self._state is not None:
            self._penalty.load_own_state(self._state)


class Method(Protocol):
    """How a network becomes small: a penalty while it trains, then a plan of what it was left with."""

    def penalty(self, slim: Slim, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        """Around the optimizer, for so many steps. Raises UserError where there is nothing to remove."""

    def plan(self, slim: Slim) -> tuple[SlimPlan, float | None]:
        """The plan that meets the budget, and the predicted latency. Raises UserError where none does."""

    def structures(self, found: Structures) -> Structures:
        """Those that it removes. Raises UserError where it removes structures and there are none."""


@dataclass(frozen=True)
class RemoveStructures:
    """Group Lasso over structures, then the widths that meet the budget.

    Attributes:
        inside: which structures: hidden units of recurrent layers (True), all others (False).
    """

    name: str
    inside: frozenset[bool]

    def penalty(self, slim: Slim, optimizer: Optimizer, steps: int) -> WrappedOptimizer:
        alike = dict.fromkeys((each.number for each in slim.structures.every), 1.0)
        widths_for(slim.structures, alike, slim.cost, slim.goal, slim.round_to, slim.show)  # else refused before any training
        return BudgetPath(optimizer, slim.model, slim.structures, slim.cost, slim.goal, steps, slim.round_to)

    def plan(self, slim: Slim) -> tuple[SlimPlan, float | None]:
        norms = StructureNorms(slim.model, slim.structures)
        importance = dict(zip(norms.numbers, norms.norms().tolist(), strict=True))
        removed = widths_for(slim.structures, importance, slim.cost, slim.goal, slim.round_to, slim.show)
        return SlimPlan.of(slim.structures, removed), None if slim.budget.kind == "size" else slim.times.seconds(removed)

    def structures(self, found: Structures) -> Structures:
        recurrent = {weight for each in found.operations if each.kind in RECURRENT for weight in each.weights}
        every = tuple(
            each
            for each in found.every
            if any(part.parameter in recurrent and part.dim == 0 for part in each.slices) in self.inside
        )
        if not every:
            why = "; ".join(f"{place}: {reason}" for place, reason in list(found.kept.items())[:3])
            what = f"{self.name} finds nothing that could be removed"
            raise UserError(f"{what}{f' ({why})' if why else ''}", "try another method")
        return replace(found, every=every)


METHODS: Mapping[str, Method] = {
    "auto": RemoveStructures("auto", frozenset({True, False})),
    "ssl": RemoveStructures("ssl", frozenset({False})),
    "iss": RemoveStructures("iss", frozenset({True})),
}


def on_cpu(model: nn.Module) -> nn.Module:
    """The model itself where it is on the CPU, else a copy there."""
    there = all(each.device.type == "cpu" for each in model.parameters())
    return model if there else copy.deepcopy(model).cpu()


def vector_width() -> int:
    """Channels that this processor's kernels compute at once: 16 of fp32 with AVX-512, else 8."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def slim(
    model: nn.Module,
    inputs: tuple[Any, ...] | None = None,
    *,
    target: str = "onnxruntime",
    budget: Budget | str = "speedup=2x",
    method: str = "auto",
    threads: int = 1,
) -> Slim:
    """Slim a network in a loop of one's own: ``slim = paceline.slim(model, budget="speedup=3x")``, then
    ``optimizer = slim.wrap(optimizer)``, the loop, and ``small = slim.shrink()``. Arguments and errors as ``Slim``.

    Args:
        target: the runtime; latencies are measured on ``onnxruntime``.
    """
    if target != "onnxruntime":
        raise unknown("target", target, ("onnxruntime",))
    return Slim(model, inputs, budget=budget, method=method, threads=threads)


__all__ = ["METHODS", "STEPS", "Method", "RemoveStructures", "Slim", "slim", "vector_width"]
