"""Slimming of a network in a training loop: wrap its optimizer, train, shrink."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from inspect import Parameter, signature
from math import floor, inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UserError, unknown
from paceline.language_record import EQUAL, FREE, WIDTHS
from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.language.equal_widths import EqualWidths, equal_widths, is_decoder
from paceline.slimming.language.model_folder import load_folder, with_true_config
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.latency.low_rank_times import least_seconds
from paceline.slimming.latency.token_runtimes import TOKEN_RUNTIMES
from paceline.slimming.latency.token_times import CONTEXT, PROMPT, TokenLatency
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.budget_path import Cost
from paceline.slimming.methods.methods import METHODS, RemoveStructures, Replace, target_for
from paceline.slimming.methods.sharded import gathered, is_sharded, same_on_all_ranks, shell
from paceline.slimming.methods.widths import nearest_widths
from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.shrink import load, module_bytes, stored_bytes, tensors_in, weight_bytes
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from paceline.units import format_bytes, format_seconds

STEPS = 2000
Inputs = tuple[Any, ...] | Mapping[str, Any] | Tensor
"""Inputs in the order of a network's arguments, or by their names."""


class Slim:
    """A network on its way to a budget: ``slim = paceline.slim(model, budget="speedup=3x")``, ``optimizer =
    slim.wrap(optimizer)``, the unchanged training loop, ``small = slim.shrink()``.

    In a process group all ranks do the same, and rank 0 measures for all. Call ``check`` before ``fully_shard``: it traces and
    measures the network.

    Args:
        model: it stays unchanged; ``shrink`` makes a smaller copy. Modules that ``torch.export`` refuses are kept whole, and
            then the budget must be a size.
        inputs: an example of the shapes that it will run on, in the order of its arguments or by their names; None takes one
            sample of the first batch that the model sees.
        budget: a latency, a speed-up or a size; see ``Budget.parse``. For ``decode`` and ``prefill`` the model is a decoder of
            Hugging Face, measured with its cache; it needs no inputs.
        method: ``ssl`` removes filters, channels, heads, rows of MLPs and embeddings, outer rows and columns of kernels (Wen et
            al., NIPS 2016), ``iss`` hidden units of recurrent layers (Wen et al., ICLR 2018), ``auto`` both; ``force`` attracts
            filters to one another and splits layers at a low rank (Wen et al., ICCV 2017); ``sparse`` makes single weights zero
            for a kernel that skips them (Park et al., ICLR 2017); ``compact`` replaces it by a new network of Conv-M blocks (Wu
            et al., CVPR 2017): ``wrap`` changes nothing, ``shrink`` returns an untrained network with the whole one as teacher.
        threads: threads of the runtime.
        table: measurements of another ``Slim`` (``Slim.table``); by default they are made when needed.
        target: runtime, one of ``methods.EVERY_TARGET``. Single layers are always timed on ONNX Runtime; their sum is scaled to
            the whole network's latency on the target. One that does not run here takes a size only.
        context: tokens in the cache when ``decode`` is measured. ``prompt``: tokens of ``prefill``.
        widths: one of ``WIDTHS``; empty: ``equal`` for a decoder of Hugging Face whose structures the method removes, if a
            configuration can state them, ``free`` for other networks.

    Raises:
        UserError: an unknown method, budget or target, or a target that is not installed. Later, a model that cannot be
            traced, or a budget that cannot be met.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs | None = None,
        *,
        budget: Budget | str = "speedup=2x",
        method: str = "auto",
        threads: int = 1,
        table: Mapping[str, Any] | None = None,
        target: str = "onnxruntime",
        context: int = CONTEXT,
        prompt: int = PROMPT,
        widths: str = "",
    ) -> None:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        if not isinstance(model, nn.Module):
            raise UserError(f"the model is of type {type(model).__name__}", "give a torch.nn.Module")
        _whole_number(threads, "threads")
        if not isinstance(budget, Budget | str):
            raise UserError(f"a budget of type {type(budget).__name__}", 'give "latency=5ms", "speedup=2x" or "size=4MB"')
        self.model, self.method, self.threads = model, method, threads
        self.budget = budget if isinstance(budget, Budget) else Budget.parse(budget)
        if self.budget.kind == "accuracy":
            raise UserError(f"{self.budget} needs the data", "give latency, speedup or size, or use `paceline slim`")
        self.target = target_for(target, method, self.budget)
        self.target.check_installed()
        self.context, self.prompt = context, prompt
        if phase := self.budget.phase:
            if target not in TOKEN_RUNTIMES or not isinstance(METHODS[method], RemoveStructures):
                what = f"{self.budget} with {method} on {target}"
                raise UserError(
                    what, f"decoders are timed by token on {', '.join(TOKEN_RUNTIMES)}, with the methods auto and ssl"
                )
            _whole_number(context, "tokens of context")
            _whole_number(prompt, "tokens of a prompt")
            inputs = (torch.zeros(1, 1 if phase == "decode" else prompt, dtype=torch.long),)
        self.widths = widths or (EQUAL if self._may_be_equal else FREE)
        if self.widths not in WIDTHS:
            raise unknown("widths", widths, WIDTHS)
        if self.widths == EQUAL and not self._may_be_equal:
            what = f"{EQUAL} widths for {type(model).__name__} with {method}"
            raise UserError(what, "leave them out: they are of decoders of Hugging Face, with the methods auto, ssl and iss")
        self._given_widths = widths
        self.round_to = self.target.vector_width()
        self.plan: SlimPlan | None = None
        self.predicted_s: float | None = None
        self.notes: tuple[str, ...] = ()
        self._kept: Mapping[str, str] | None = None
        self._inputs = None if inputs is None else in_order(model, inputs)
        self._table = dict(table or {})
        self._whole: Latency | None = None
        self._structures: Structures | None = None
        self._equal: EqualWidths | None = None
        self._subject: nn.Module | None = None
        self._times: LayerTimes | None = None
        self._shell = None if is_sharded(model) else shell(model)
        self._batch: tuple[Any, ...] | None = None
        self._watch = None if inputs is not None else model.register_forward_pre_hook(self._record_shape, with_kwargs=True)

    @staticmethod
    def load(plan: SlimPlan | str | Path, model: nn.Module | None = None) -> nn.Module:
        """Return a smaller copy of a whole network by a plan or its file. It takes the small network's weights by
        ``load_state_dict``.

        Args:
            plan: without ``model`` the folder that ``save_pretrained`` of a slimmed model of Hugging Face wrote, loaded with
                its weights.

        Raises:
            UserError: the file is no plan, the plan is of another network, or the folder holds no slimmed model.
        """
        if model is None:
            if isinstance(plan, SlimPlan) or Path(plan).is_file():
                raise UserError("a plan without its network", "give the whole network too: slim.load(plan, Network())")
            return load_folder(plan)
        plan = plan if isinstance(plan, SlimPlan) else SlimPlan.load(plan)
        return with_true_config(load(plan, model), model, plan)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Example inputs. Raises UserError before they are known."""
        if self._inputs is None:
            if self._batch is None:
                raise UserError("no example of the inputs is known yet", "give inputs=(x,), or run the model once")
            self._inputs = self._batch if is_sharded(self.model) else one_sample(self.model, self._batch)
            self._batch = None
        return self._inputs

    @property
    def structures(self) -> Structures:
        """Structures that may be removed. Raises UserError for a model that cannot be traced, or without any for the method."""
        if self._structures is None:
            self._not_sharded()
            device = next((each.device for each in self.model.parameters()), torch.device("cpu"))
            inputs = tuple(each.to(device) if isinstance(each, Tensor) else each for each in self.inputs)
            found = METHODS[self.method].structures(self.traced(inputs), self.subject, inputs)
            self._equal = equal_widths(self.model, found) if self.widths == EQUAL else None
            if self._equal is None and self._given_widths == EQUAL:
                what = f"no config.json of {type(self.model).__name__} can state fewer structures, equal over its layers"
                raise UserError(what, "give `widths` free")
            self._structures = self._equal.structures if self._equal else found
        return self._structures

    @property
    def equal(self) -> tuple[tuple[str, ...], ...]:
        """Names of layers that keep one width; () if widths are free, or if no configuration can state them."""
        self.structures  # noqa: B018
        return self._equal.groups if self._equal else ()

    @property
    def unstated(self) -> tuple[str, ...]:
        """Kinds of layers that stay whole because a configuration cannot state their widths."""
        return self._equal.whole if self.equal and self._equal else ()

    @property
    def _may_be_equal(self) -> bool:
        return isinstance(METHODS[self.method], RemoveStructures) and is_decoder(self.model)

    def traced(self, inputs: tuple[Any, ...]) -> Structures:
        """Return all structures of the subject, from which the method selects."""
        return structures_of(self.subject, inputs)

    @property
    def subject(self) -> nn.Module:
        """Network that becomes narrower, which is the model or the widest student that replaces it."""
        if self._subject is None:
            self._subject = METHODS[self.method].subject(self)
        return self._subject

    @property
    def kept(self) -> Mapping[str, str]:
        """Layers and operations that stay whole, with reasons; for some methods known only after ``shrink``."""
        return self.structures.kept if self._kept is None else self._kept

    @property
    def whole(self) -> Latency:
        """Latency of the whole network on the target."""
        if self._whole is None:
            given = self._table.get("whole")
            self._whole = Latency(**given) if given else self.latency({"whole": self.model})["whole"]
        return self._whole

    @property
    def least_s(self) -> float:
        """Least latency of many runs of the whole network on ONNX Runtime, the scale of ``force`` and ``sparse``."""
        if "least_s" not in self._table:
            with tempfile.TemporaryDirectory() as directory:
                inputs = tuple(each.cpu() if isinstance(each, Tensor) else each for each in self.inputs)
                file = to_onnx(on_cpu(self.model), inputs, Path(directory) / "whole.onnx")
                self._table["least_s"] = least_seconds({"": (file, inputs)}, self.threads)[""]
        return float(self._table["least_s"])

    @property
    def table(self) -> dict[str, Any]:
        """Measurements before training, as plain data: ``whole``, and those of the method."""
        if "whole" not in self._table:
            self._table = {**self._table, "whole": asdict(self.whole), **METHODS[self.method].measure(self)}
        return self._table

    @property
    def measured(self) -> Mapping[str, Any]:
        """Return the part of ``table`` measured so far."""
        return self._table

    @property
    def times(self) -> LayerTimes:
        """Predicted latencies at other widths, measured layer by layer at the first use."""
        if self._times is None:
            if "layers" in self._table:
                self._times = LayerTimes.from_json(self._table["layers"], self.structures)
            else:
                whole = self.whole if self.subject is self.model else self._relative(self.subject)
                times = LayerTimes(self.structures, whole, round_to=self.round_to, threads=self.threads)
                self._times = self._corrected(times)
        return self._times

    def correct(self, removed: Collection[int], ratio: float) -> None:
        """Correct the tables by a measured network without some structures, and its time over the whole network's."""
        self._times = self.times.corrected(removed, ratio)

    def _relative(self, network: nn.Module) -> Latency:
        """Measure a network in turns with the whole one, on the scale of ``whole``."""
        found = self.latency({"whole": self.model, "": network})
        scale = self.whole.median_s / found["whole"].median_s
        each = found[""]
        return Latency(scale * each.median_s, scale * each.low_s, scale * each.high_s, each.turns)

    def _corrected(self, times: LayerTimes) -> LayerTimes:
        """Correct the tables by one measured network: that of the budget, if a layer's structures are equally important, or the
        smallest for a budget that cannot be met.

        Its widths are rounded as the plan's will be, since runtimes are slower at others.
        """
        if self.budget.kind == "size":
            return times
        try:
            alike = dict.fromkeys((each.number for each in self.structures.every), 1.0)
            removed, _ = nearest_widths(self.structures, alike, times.seconds, self.goal, self.round_to, self.equal)
            small = load(SlimPlan.of(self.structures, removed), self.subject).eval()
            found = self.latency({"whole": self.subject, "small": small})
        except UserError:  # a budget that is met, or a network that is not exported at these widths
            return times
        return times.corrected(removed, found["small"].median_s / found["whole"].median_s)

    @property
    def cost(self) -> Cost:
        """Return the cost that the budget limits: seconds, or bytes in the weights' own types, without some structures."""
        structures = self.structures
        if self.budget.kind != "size":
            return self.times.seconds
        stored = stored_bytes(self.subject)
        return lambda gone: weight_bytes(structures, gone, stored)

    @property
    def goal(self) -> float:
        """Return the budget in seconds or bytes. Raises UserError if the whole network meets it."""
        return self.budget.of(module_bytes(self.model, stored=True) if self.budget.kind == "size" else self.whole.median_s)

    def to(self, budget: Budget) -> Slim:
        """Return the same network and table with another budget."""
        return Slim(self.model, self.inputs, budget=budget, table=self.table, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        """Return the settings besides the budget."""
        names = ("method", "threads", "context", "prompt")
        return {
            **{name: getattr(self, name) for name in names},
            **{"target": self.target.name, "widths": self._given_widths},
        }

    def check(self) -> None:
        """Check the budget. Raises UserError if it is met already, cannot be met, or is not supported by the method."""
        self._share()
        METHODS[self.method].check(self)
        self.goal  # noqa: B018

    def wrap(self, optimizer: Optimizer, steps: int = STEPS) -> Optimizer:
        """Return the optimizer with a penalty whose strength adapts during training.

        Args:
            steps: over which the network becomes small. A few more steps let the remaining weights settle.
        """
        _whole_number(steps, "steps")
        if not isinstance(optimizer, Optimizer):
            raise UserError(f"an optimizer of type {type(optimizer).__name__}", "give a torch.optim.Optimizer")
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if held.isdisjoint(map(id, self.model.parameters())):
            raise UserError("the optimizer holds no parameter of this network", "give the one that trains it")

        def begin(inner: Optimizer) -> WrappedOptimizer:
            if is_sharded(self.model) and isinstance(METHODS[self.method], Replace):
                raise UserError(
                    f"{self.method} needs whole weights, and the network is sharded", "train it without `fully_shard`"
                )
            self._share()
            return METHODS[self.method].penalty(self, inner, steps)

        return _Begun(optimizer, begin, self)

    def shrink(self) -> nn.Module:
        """Return a smaller copy that meets the budget. ``plan`` then has remaining parts, ``predicted_s`` the latency.

        Before the end of the path, or without one, it removes nonzero weights: a ``UserWarning`` and ``notes`` report it.

        Raises:
            UserError: the method cannot meet the budget.
        """
        if is_sharded(self.model):
            return self._shrink_gathered()
        planned = METHODS[self.method].plan(self)
        self.plan, self.predicted_s, self.notes, self._kept = planned.plan, planned.predicted_s, planned.notes, planned.kept
        for note in planned.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        return with_true_config(load(self.plan, self.model), self.model, self.plan, self.inputs)

    def _not_sharded(self) -> None:
        if is_sharded(self.model):
            raise UserError("the network was sharded before it was traced", "call `slim.check()` before `fully_shard`")

    def _share(self) -> None:
        """Share rank 0's measurements with all ranks; a size needs no measurement."""
        if self.budget.kind != "size":
            self._table = same_on_all_ranks(lambda: self.table)
            self._whole = self._times = None

    def _shrink_gathered(self) -> nn.Module:
        """Shrink a sharded network, with norms that are equal on every rank."""
        if self._shell is None:
            raise UserError("the network was sharded before it was traced", "make `slim` before `fully_shard`")
        whole = gathered(self.model, self._shell)
        slim = Slim(whole, self.inputs, budget=self.budget, table=self._table, **self._settings)
        small = slim.shrink()
        self.plan, self.predicted_s, self.notes, self._kept = slim.plan, slim.predicted_s, slim.notes, slim.kept
        return small

    def latency(self, models: Mapping[str, nn.Module]) -> dict[str, Latency]:
        """Measure the latencies of these networks on the target's timer by name, in turns with the first."""
        self._not_sharded()
        if phase := self.budget.phase:
            return {name: getattr(each, phase) for name, each in self._by_token(models).items()}
        timer = self.target.timer
        with tempfile.TemporaryDirectory() as directory:
            files = {}
            for number, (name, model) in enumerate(models.items()):
                inputs = tuple(each.cpu() if isinstance(each, Tensor) else each for each in self.inputs)
                file = Path(directory) / f"{number}{timer.suffix}"
                files[name] = timer.export(on_cpu(model), inputs, file), inputs
            return timer.latencies(files, self.threads)

    def _by_token(self, models: Mapping[str, nn.Module]) -> dict[str, TokenLatency]:
        """Measure decoders with their caches."""
        runtime, most = TOKEN_RUNTIMES[self.target.name], max(self.context, self.prompt)
        with tempfile.TemporaryDirectory() as directory:
            files = {
                name: runtime.export(on_cpu(model), Path(directory) / f"{number}{runtime.target.suffix}", most)
                for number, (name, model) in enumerate(models.items())
            }
            vocabulary = int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
            return runtime.latencies(files, vocabulary, context=self.context, prompt=self.prompt, threads=self.threads)

    def show(self, cost: float) -> str:
        """Format a cost with its unit, and with the speed-up if the budget is one."""
        if self.budget.kind == "size":
            return format_bytes(cost)
        factor = floor(100 * self.whole.median_s / cost) / 100 if cost else inf
        return f"{format_seconds(cost)} ({factor:g}x)" if self.budget.kind == "speedup" else format_seconds(cost)

    def _record_shape(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        batch = in_order(module, given, named)
        self._batch = tuple(each.detach() if isinstance(each, Tensor) else each for each in batch)
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def remember(self, table: Mapping[str, Any]) -> None:
        """Take the measurements of an interrupted run, unless there are newer ones."""
        self._table = self._table or dict(table)


def in_order(model: nn.Module, inputs: Inputs, named: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """Return inputs as a tuple in the order of the model's arguments, as exporters take them.

    Raises:
        UserError: they are of another kind, or do not fit its arguments.
    """
    given: Any = (inputs,) if isinstance(inputs, Tensor) else inputs
    if isinstance(inputs, Mapping):
        given, named = (), dict(inputs)
    if not isinstance(given, tuple | list):
        raise UserError(f"inputs of type {type(inputs).__name__}", "give a tensor, a tuple, or a dict by argument")
    if not named:
        return tuple(given)
    takes = signature(model.forward)
    try:
        bound = takes.bind(*given, **named)
    except TypeError as error:
        raise UserError(f"inputs of {type(model).__name__}: {error}", f"its arguments are {takes}") from error
    kinds = {name: takes.parameters[name].kind for name in bound.arguments}
    if alone := [name for name, kind in kinds.items() if kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)]:
        what = f"{type(model).__name__} takes {', '.join(alone)} by name alone, and exported files go by order"
        raise UserError(what, "give its forward ordinary arguments")
    last = max(map(list(takes.parameters).index, kinds))
    bound.apply_defaults()
    return bound.args[: last + 1]


class _Begun(WrappedOptimizer):
    """Optimizer that creates its penalty before the first step, once example inputs are known."""

    def __init__(self, optimizer: Optimizer, make: Callable[[Optimizer], WrappedOptimizer], slim: Slim) -> None:
        super().__init__(optimizer, 1.0)
        self._make, self._slim = make, slim
        self._penalty: WrappedOptimizer | None = None
        self._state: dict[str, Any] | None = None

    @property
    def penalty(self) -> WrappedOptimizer:
        """Penalty, created at the first use."""
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
        state = self._state if self._penalty is None else self._penalty.own_state()
        return {"penalty": state, "table": self._slim.measured}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self._state = state["penalty"]
        self._slim.remember(state.get("table", {}))
        if self._penalty is not None and self._state is not None:
            self._penalty.load_own_state(self._state)


def one_sample(model: nn.Module, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the first sample of a batch if the network gives the same output for it as in the batch.

    Otherwise return the batch with a ``UserWarning``, since the first dimension may be time.
    """
    many = next((len(each) for each in batch if isinstance(each, Tensor) and each.dim()), 1)
    first = tuple(each[:1] if isinstance(each, Tensor) and each.dim() and len(each) == many else each for each in batch)
    if many == 1:
        return batch
    try:
        with eval_mode(model), torch.no_grad():
            whole, one = (list(tensors_in(model(*each)))[:1] for each in (batch, first))
        if (
            whole
            and len(one[0]) == 1
            and torch.allclose(one[0], whole[0][:1], rtol=1e-2, atol=1e-2 * float(whole[0].abs().max()))
        ):
            return first
    except Exception:  # any error of the network for one sample
        pass
    shapes = ", ".join(str(tuple(each.shape)) for each in batch if isinstance(each, Tensor))
    warnings.warn(
        f"latencies are of inputs of shape {shapes}: one sample of them is another thing; give inputs=(x,)", stacklevel=2
    )
    return batch


def _whole_number(value: object, name: str) -> None:
    """Check a number of steps. Raises UserError below 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{value!r} {name}", "give a whole number from 1 up")


def on_cpu(model: nn.Module) -> nn.Module:
    """Return the model if it is on the CPU, else a copy there."""
    there = all(each.device.type == "cpu" for each in model.parameters())
    return model if there else copy.deepcopy(model).cpu()


slim = Slim
"""The verb ``paceline.slim``."""
