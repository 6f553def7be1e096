"""Training run as a value: the settings of the command line, of the workers and of a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict

from paceline.errors import UserError, shorten, unknown
from paceline.hardware.precision import PRECISIONS
from paceline.record import parse_json
from paceline.strategy import OPTIMIZERS, Strategy
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.recipe import RATE_SCALINGS, RateScaling, Recipe, scaled_recipe
from paceline.strategy.strategy import CHOICES, untrained
from paceline.strategy.updates.batch_growth import BatchGrowth
from paceline.training.attach.attach_options import TIMEOUT_S, AttachOptions, check_runs
from paceline.units import parse_seconds
from paceline.workload import Workload, catalogue

MOST_TIMEOUT_S = 7 * 86400.0
MOST_EPOCHS = 10**9
DIRECTORIES = ("mnist", "fashion-mnist", "cifar10")
"""Kinds of data that are read from a directory, ``KIND:DIR``."""
SHAPED = "digits"
"""Kind of data that takes a shape, ``KIND:CxHxW``."""
TRAINING_SAMPLES: Mapping[str, int] = {"digits": 1438, "mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}
"""Samples of an epoch by kind of data: as published; of the digits, four of every five."""
_LARGEST = 10**15
_TEXTS = ("model", "data", "out", "resume", "label", "start", "plan", "teacher", "checkpoint_every", "batch_growth")
_RESUMABLE = tuple(name for name, item in CHOICES.items() if item.resumable)
_SLIMMING = ("start", "plan", "teacher", "distill", "slimming")


class RunKeywords(TypedDict, total=False):
    """Keywords of ``paceline.train``: the fields of ``TrainingRun`` that have defaults. A test compares them."""

    epochs: int
    lr: float
    warmup: float
    decay: float
    scale_from: int
    scaling: RateScaling | None
    optimizer_options: Mapping[str, float | str]
    seed: int
    out: str
    resume: str
    timeout_s: float
    label: str
    start: str
    plan: str
    teacher: str
    distill: float
    slimming: Mapping[str, Any]
    checkpoint_every: str
    elastic: bool
    compile: bool
    batch_growth: str


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Settings that determine a run's result, and its output directory.

    Attributes:
        model: a network's name or ``module:function``; ``data`` likewise.
        strategy: one without an optimizer takes the network's usual one, by ``usual_optimizer``; that of a
            ``module:function``, whose layers are not known here, is momentum.
        epochs: passes over the training data, counted from the very beginning, also when resuming.
        lr: learning rate, the peak; 0 takes the optimizer's default.
        warmup: epochs over which the rate rises to it. ``decay``: power of its fall to 0 by the last epoch; 0 keeps it.
        scale_from: the batch that ``lr`` and ``warmup`` are for; 0: the run's own. ``scaling``: scaling of the rate, ``linear``
            or ``sqrt``; None takes the optimizer's usual rule. The warm-up grows in proportion to the batch.
        optimizer_options: options among those that ``OPTIMIZERS`` names for the optimizer; others have the optimizer's default.
        out: directory of the results; ``resume``: a directory to continue from, empty for a fresh start.
        timeout_s: seconds that a rank waits for another before it ends: for a worker that hangs or a cable that is cut. A
            worker that has ended is noticed at once.
        label: label of this run within ``out``.
        start: initial weights, a run's directory or a file of a ``state_dict``; empty: the seed's.
        plan: file of a ``SlimPlan``: the network that is trained is a slimmed one, of the weights that ``start`` has.
        teacher: a run's directory or a file of weights of the whole network, from which this one learns too.
        distill: weight of the teacher's outputs, 0 to 1; the labels have the rest.
        checkpoint_every: when a checkpoint is written, steps such as ``100`` or a time such as ``1min``, and at the end; empty:
            after each epoch.
        elastic: continue from the state in ``out`` of this run, also with another number of workers, and leave the last step
            there when a rank is lost.
        compile: compile the network by ``torch.compile``, block by block; this is a choice of software, as in ``Predictor``.
        batch_growth: later stages of the global batch, such as ``128@20k,256@80k``: from 20,000 samples on it is 128. The rate
            grows by ``scaling``, or by the optimizer's usual rule.
        slimming: how structures are removed while it trains (``slimming.methods.path_training.settings``); empty: not at all.

    Raises:
        UserError: values of another type or out of range, options that the optimizer does not have, a strategy that can be
            predicted but not run.
    """

    model: str
    data: str
    strategy: Strategy
    epochs: int = 10
    lr: float = 0.0
    warmup: float = 0.0
    decay: float = 0.0
    scale_from: int = 0
    scaling: RateScaling | None = None
    optimizer_options: Mapping[str, float | str] = field(default_factory=dict)
    seed: int = 0
    out: str = "runs/train"
    resume: str = ""
    timeout_s: float = TIMEOUT_S
    label: str = ""
    start: str = ""
    plan: str = ""
    teacher: str = ""
    distill: float = 0.0
    slimming: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_every: str = ""
    elastic: bool = False
    compile: bool = False
    batch_growth: str = ""

    def __post_init__(self) -> None:
        self._check_types()
        if not self.strategy.optimizer:
            known = Workload.named(self.model) if self.model in catalogue.names() else None
            object.__setattr__(self, "strategy", replace(self.strategy, optimizer=usual_optimizer(known)))
        if not 1 <= self.epochs <= MOST_EPOCHS:
            raise UserError(f"{shorten(str(self.epochs))} epochs", f"give a whole number from 1 up to {MOST_EPOCHS:,}")
        if not 1 <= self.timeout_s <= MOST_TIMEOUT_S:
            raise UserError(f"a timeout of {self.timeout_s:g} s", f"give 1 s to {MOST_TIMEOUT_S:g} s")
        self._check_runnable()
        if not 0 <= self.lr < float("inf"):
            raise UserError(f"learning rate {self.lr}", "give a positive number")
        if not 0 <= self.warmup <= self.epochs:
            raise UserError(
                f"a warm-up of {self.warmup:g} epochs in a run of {self.epochs}",
                "give 0 or more, at most the epochs of the run",
            )
        if self.scale_from < 0:
            raise UserError(f"a batch of {self.scale_from} to scale the rate from", "give a whole number from 1 up")
        if self.scaling and self.scaling not in RATE_SCALINGS:
            raise unknown("scaling rule", self.scaling, RATE_SCALINGS)
        if self.scaling and not self.scale_from and not self.batch_growth:
            raise UserError(
                f"{self.scaling} scaling has no batch to scale from", "give `scale_from`, the batch that the rate is for"
            )
        if not 0 <= self.distill <= 1:
            raise UserError(f"a share of {self.distill:g} of the teacher", "give `distill` from 0 to 1")
        if bool(self.teacher) != bool(self.distill):
            given, other = ("teacher", "distill") if self.teacher else ("distill", "teacher")
            raise UserError(f"`{given}` without `{other}`", f"give `{other}` too, or neither")
        self._check_optimizer_options()
        self.recipe(1)
        _ = self.save_every

    def _check_types(self) -> None:
        """Refuse values of wrong types, which an edited or damaged file may hold."""
        for kind, legal, names in (
            (str, "text", _TEXTS),
            (int, "a whole number", ("epochs", "scale_from", "seed")),
            (int | float, "a number", ("lr", "warmup", "decay", "timeout_s", "distill")),
            (bool, "True or False", ("elastic", "compile")),
            (Strategy, "a paceline.Strategy", ("strategy",)),
            (Mapping, "names with values", ("optimizer_options", "slimming")),
        ):
            for name in names:
                value = getattr(self, name)
                large = isinstance(value, int) and name != "seed" and abs(value) > _LARGEST
                if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or large:
                    raise UserError(f"{name} is {shorten(repr(value), 80)}", f"give {legal}")

    def _check_optimizer_options(self) -> None:
        name = self.strategy.optimizer
        for option, value in self.optimizer_options.items():
            if option not in OPTIMIZERS[name].options:
                having = [
                    optimizer.name for optimizer in OPTIMIZERS.values() if optimizer.trained and option in optimizer.options
                ]
                if not having:
                    raise unknown(f"option of {name}", option, OPTIMIZERS[name].options)
                raise UserError(f"{name} has no {option.replace('_', ' ')}", f"leave it out, or use {' or '.join(having)}")
            if option == "variant":
                continue  # the optimizer knows them
            below = 1.0 if option == "momentum" else float("inf")
            if isinstance(value, str) or not 0 <= value < below:
                legal = "a number from 0 to less than 1" if option == "momentum" else "0 or a positive number"
                raise UserError(f"{option.replace('_', ' ')} {value}", f"give {legal}")

    def _check_runnable(self) -> None:
        """Refuse settings that can be predicted but not run."""
        x, mesh, delay = self.strategy.gradient_exchange, self.strategy.parallelism, self.strategy.local.sync_delay
        check_runs(x)
        _ = self.growth.strategies(self.strategy)
        for refusal in untrained(self.strategy):
            raise UserError(f"train cannot run {refusal.message}: only predict can", refusal.fix)
        for what, is_on, instead in (
            (
                f"an elastic run with sync_delay {delay}",
                self.elastic and bool(delay),
                "leave out elastic, or sync_delay: an elastic run keeps each step in memory, which waits for the exchange",
            ),
            (
                f"{self.strategy.precision} with sharding {mesh.sharding}",
                PRECISIONS[self.strategy.precision].scales_loss and mesh.sharding.shares_out,
                "give precision bf16: torch's gradient scaler looks at whole gradients",
            ),
            (
                f"batch growth with {self.strategy.sync_every} local steps",
                bool(self.batch_growth) and self.strategy.sync_every > 1,
                "exchange in every step",
            ),
            (
                f"slimming with precision {self.strategy.precision}",
                bool(self.slimming) and not PRECISIONS[self.strategy.precision].full,
                "slim in fp32",
            ),
            (
                f"slimming with sharding {mesh.sharding}",
                bool(self.slimming) and mesh.sharding.shares_out,
                "slim with sharding ddp",
            ),
            (
                f"an elastic run of workers of {self.strategy.worker_devices} devices",
                self.elastic and self.strategy.worker_devices > 1,
                "leave out elastic: a worker that lacks a device has lost its shard",
            ),
            (
                f"structures that are removed while {self.strategy.sync_every} local steps are taken",
                bool(self.slimming) and self.strategy.sync_every > 1,
                "exchange in every step",
            ),
        ):
            if is_on:
                raise UserError(f"train cannot run {what}: only predict can", instead)

    @property
    def growth(self) -> BatchGrowth:
        """Stages of the global batch. Raises UserError for another text."""
        return BatchGrowth.of(self.batch_growth)

    @property
    def learning_rate(self) -> float:
        """The given rate, else the optimizer's default; at ``scale_from`` if there is one."""
        return self.lr or OPTIMIZERS[self.strategy.optimizer].lr

    @property
    def attach_options(self) -> AttachOptions:
        """Options of the attached exchange."""
        mesh = self.strategy.parallelism
        return AttachOptions(
            seed=self.seed, timeout_s=self.timeout_s, gather_bits=mesh.gather_bits, gather_format=mesh.gather_format
        )

    def recipe(self, steps_per_epoch: int) -> Recipe:
        """Return the rates of the whole run. Raises UserError for an impossible decay."""
        name, batch = self.strategy.optimizer, self.strategy.global_batch_size
        steps = steps_per_epoch * self.epochs
        if self.scale_from:
            return scaled_recipe(
                name,
                self.learning_rate,
                self.scale_from,
                batch,
                float(steps * batch),
                rule=self.scaling,
                base_warmup_samples=self.warmup * steps_per_epoch * batch,
                power=self.decay,
            )
        return Recipe(
            optimizer=name,
            lr=self.learning_rate,
            total_steps=steps,
            warmup_steps=round(self.warmup * steps_per_epoch),
            power=self.decay,
            source="given" if self.lr else f"the default rate of {name}",
        )

    @property
    def save_every(self) -> tuple[int, float]:
        """Steps, and seconds, between two checkpoints; (0, 0.0) writes one after each epoch. Raises UserError."""
        text = self.checkpoint_every.strip()
        if not text:
            return 0, 0.0
        if re.fullmatch(r"[+-]?\d+", text):
            if not 1 <= int(text) <= MOST_EPOCHS:
                raise UserError(
                    f"a checkpoint every {shorten(text)} steps", "give a whole number from 1 up, or a time such as 1min"
                )
            return int(text), 0.0
        try:
            seconds = parse_seconds(text)
        except UserError as error:
            raise UserError(
                f"a checkpoint every {shorten(text)!r}",
                "give `checkpoint_every` as steps, such as 100, or as a time, such as 1min",
            ) from error
        return 0, seconds

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that must not change when a run is resumed. The number of workers may change, since the global batch is
        divided again, as may all other choices that leave the computed numbers the same but for roundings.
        """
        kept = ("model", "data", "seed", "warmup", "decay", "scale_from", "scaling", *_SLIMMING)
        # where the rates lead to the last epoch, more epochs would have had others from the start
        end = {"epochs": self.epochs} if self.decay or (self.warmup and self.scale_from) else {}
        options = {**OPTIMIZERS[self.strategy.optimizer].options, **self.optimizer_options}
        strategy = {k: v for k, v in self.strategy.to_json().items() if k not in ("world_size", *_RESUMABLE)}
        strategy["dense_bits"] = self.strategy.choice("dense_bits")
        stages = {"batch_growth": self.batch_growth} if self.batch_growth else {}
        return {**{k: getattr(self, k) for k in kept}, **stages, "lr": self.learning_rate, **end, **strategy, **options}

    @property
    def code(self) -> dict[str, str]:
        """Fields among ``model`` and ``data`` that name a function of the user, ``module:function``."""
        return {
            name: value
            for name, value in (("model", self.model), ("data", self.data))
            if ":" in value and not (name == "data" and value.partition(":")[0] in (SHAPED, *DIRECTORIES))
        }

    def on_nodes_of(self, ranks: int) -> TrainingRun:
        """Return the run with the ranks of a node, if its exchange needs nodes and leaves their size open."""
        x = self.strategy.gradient_exchange
        if not x.exchange.uses_nodes or x.ranks_per_node != 1 or ranks == 1:
            return self
        return replace(self, strategy=replace(self.strategy, gradient_exchange=replace(x, ranks_per_node=ranks)))

    def to_json(self) -> str:
        """Convert to one line of JSON."""
        return json.dumps({**asdict(self), "strategy": self.strategy.to_json()})

    @classmethod
    def from_json(cls, text: str) -> TrainingRun:
        """Read a line of ``to_json``, also of earlier versions. Raises UserError for anything else."""
        try:
            data = dict(parse_json(text))
            return cls(**{**data, "strategy": Strategy.of(**data["strategy"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"this is not a training run: {shorten(f'{type(error).__name__}: {error}')}") from error
