"""Learning rate over a run: a warm-up, a peak that depends on the batch, and a decay.

Rules and published rows: Goyal et al. 2017, Accurate, Large Minibatch SGD, section 2.1 (linear scaling); You et al. 2020,
LAMB, ICLR, section 3 and tables 4 and 5 (square root of the batch, warm-up in proportion to it, untuned); MLPerf Training's
reference convergence points. The published rows are in ``recipes.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from numbers import Integral
from typing import Any, Literal

from paceline.errors import UserError, unknown

RateScaling = Literal["linear", "sqrt"]
RATE_SCALINGS: tuple[RateScaling, ...] = ("linear", "sqrt")
POWER = 2.0
REACH = 2.0
"""Largest batch to which a rate is scaled, over the largest published batch. Above some batch size no rate trains (Shallue et
al. 2019, section 4.7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Learning rates of a run with their source.

    Attributes:
        optimizer: its name in ``OPTIMIZERS``.
        lr: peak rate. ``end_lr``: rate at ``total_steps``.
        warmup_steps: steps over which the rate grows linearly to the peak. ``steps_ahead``: warm-up steps that count as done
            before the first step, so that the rate does not begin near zero.
        power: exponent of the polynomial decay from the end of the warm-up to the end of the run; 0: no decay.
        source: rule or published row from which the numbers follow.
        options: options of the optimizer, such as ``weight_decay`` and ``variant``.
    """

    optimizer: str
    lr: float
    total_steps: int
    warmup_steps: int = 0
    power: float = POWER
    end_lr: float = 0.0
    source: str = "given"
    options: Mapping[str, float | str] | None = None
    steps_ahead: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UserError(f"learning rate {self.lr:g}", "give a positive number")
        if not 0 <= self.end_lr <= self.lr:
            raise UserError(f"the rate ends at {self.end_lr:g} and its peak is {self.lr:g}", "give an end from 0 to the peak")
        if not isinstance(self.total_steps, Integral) or not isinstance(self.warmup_steps, Integral):
            raise UserError(f"{self.warmup_steps} of {self.total_steps} steps are warm-up", "give whole numbers of steps")
        if self.total_steps < 1 or not 0 <= self.warmup_steps <= self.total_steps:
            raise UserError(
                f"{self.warmup_steps} of {self.total_steps} steps are warm-up", "give at least one step, warm-up within them"
            )
        if not isinstance(self.steps_ahead, Integral) or self.steps_ahead < 0:
            raise UserError(f"{self.steps_ahead} steps of the warm-up done before the first", "give 0 or more")
        if not 0 <= self.power < math.inf:
            raise UserError(f"decay of power {self.power:g}", "give 0 (none), 1 (linear), 2 or another power")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0. It peaks at ``warmup_steps``, or at the last warm-up step.

        A warm-up of W steps gives (step + 1) / W of the peak, so that no step is lost to a rate of 0, or with A steps ahead
        (step + 1 + A) / (W + A). After the run the rate is ``end_lr``, or the peak without a decay.
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1 + self.steps_ahead) / (self.warmup_steps + self.steps_ahead)
        left = self.total_steps - self.warmup_steps
        gone = min(1.0, (step - self.warmup_steps) / left) if left else 1.0
        return self.end_lr + (self.lr - self.end_lr) * (1.0 if not self.power else (1 - gone) ** self.power)

    def factor(self, step: int) -> float:
        """Return ``rate`` as a share of the peak: the factor of a PyTorch scheduler."""
        return self.rate(step) / self.lr

    @property
    def arguments(self) -> dict[str, Any]:
        """The ``options`` in the form that the optimizer takes: ``LARS(params, recipe.lr, **recipe.arguments)``."""
        arguments: dict[str, Any] = dict(self.options or {})
        betas = tuple(arguments.pop(name) for name in ("beta1", "beta2") if name in arguments)
        return arguments | ({"betas": betas} if betas else {})

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {**asdict(self), "options": dict(self.options or {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Read the output of ``to_json``."""
        return cls(**data)

    def __str__(self) -> str:
        decay = f"decay of power {self.power:g} to {self.end_lr:g}" if self.power else "no decay"
        warm = f"after {self.warmup_steps} of {self.total_steps} steps" if self.warmup_steps else "from the first step"
        if self.warmup_steps and self.steps_ahead:
            warm += f" from {self.rate(0) / self.lr:.0%} of it"
        given = (self.options or {}).items()
        options = "".join(f", {name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in given)
        return f"{self.optimizer}, rate {self.lr:.4g} {warm}, {decay}{options} ({self.source})"


def scaled(lr: float, base_batch: int, batch: int, rule: RateScaling) -> float:
    """Scale ``lr`` from ``base_batch`` to another batch, linearly or by the square root. Raises UserError for another rule."""
    if not (1 <= base_batch < math.inf and 1 <= batch < math.inf):
        raise UserError(f"batches of {base_batch} and {batch}", "give whole numbers from 1 up")
    if rule not in RATE_SCALINGS:
        raise unknown("scaling rule", rule, RATE_SCALINGS)
    if not 0 < lr < math.inf:
        raise UserError(f"learning rate {lr:g}", "give a positive number")
    ratio = batch / base_batch
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))


def scaled_recipe(
    optimizer: str,
    base_lr: float,
    base_batch: int,
    batch: int,
    samples: float,
    *,
    rule: RateScaling | None = None,
    base_warmup_samples: float = 0.0,
    power: float = POWER,
) -> Recipe:
    """Return a recipe at ``batch`` from one at ``base_batch``: the peak by ``rule``, the warm-up in proportion to the batch.

    Args:
        samples: samples of the whole run.
        rule: scaling rule; by default ``linear`` for SGD and LARS, ``sqrt`` for Adam and LAMB.
        base_warmup_samples: samples of the warm-up at ``base_batch``. They grow with the batch, so that the number of steps is
            constant (You et al. 2020, section 4.1), up to half of the run.
    """
    chosen = rule or usual_rule(optimizer)
    peak = scaled(base_lr, base_batch, batch, chosen)
    if not (0 < samples < math.inf and 0 <= base_warmup_samples < math.inf):
        raise UserError(f"a run of {samples:g} samples, {base_warmup_samples:g} of them warm-up", "give a finite run")
    steps = max(1, math.ceil(samples / batch))
    warmup = round(base_warmup_samples / base_batch)
    return Recipe(
        optimizer=optimizer,
        lr=peak,
        total_steps=steps,
        warmup_steps=min(steps // 2, warmup),
        power=power,
        source=f"{chosen} scaling from {base_lr:g} at batch {base_batch}{_cut(warmup, steps)}",
    )


def _cut(warmup: int, steps: int) -> str:
    return f", its warm-up of {warmup} steps cut to half of the run" if warmup > steps // 2 else ""


def usual_rule(optimizer: str) -> RateScaling:
    """Return the usual rule: ``linear`` if steps are linear in the gradient, ``sqrt`` if they are divided by its moments
    (Krizhevsky 2014, One Weird Trick, section 5; Hoffer et al. 2017, section 3). Raises UserError for an optimizer without a
    rule."""
    if optimizer not in _USUAL:
        raise unknown("optimizer", optimizer, _USUAL, "give the scaling rule")
    return _USUAL[optimizer]


_USUAL: dict[str, RateScaling] = {
    **dict.fromkeys(("sgd", "momentum", "nesterov", "lars"), "linear"),
    **dict.fromkeys(("adam", "adamw", "lamb"), "sqrt"),
}


def published(workload: str, batch: int, samples: float, *, optimizer: str = "", target: str = "") -> Recipe:
    """Return the recipe of a network, scaled from the published row nearest in batch on a logarithmic scale.

    Args:
        samples: number of samples of the whole run.
        optimizer, target: take only rows with this optimizer and this target, such as ``mlperf``, ``pre-training`` or
            ``90-epochs``; by default those of the first table.

    Raises:
        UserError: no such row of that network, the run is shorter than half of the published one, or the batch more than
            ``REACH`` times the largest published one.
    """
    if not (1 <= batch < math.inf and 0 < samples < math.inf):
        raise UserError(f"a batch of {batch} and a run of {samples} samples", "give a batch from 1 up and a finite run")
    of_network = [t for t in _tables() if workload in t["workloads"]]
    if not of_network:
        raise unknown("published recipe", workload, networks(), "give `lr`, and `warmup` in epochs")
    tables = [t for t in of_network if target in ("", t["target"])]
    if not tables:
        raise unknown(f"target of a published recipe of {workload}", target, dict.fromkeys(t["target"] for t in of_network))
    table = next((t for t in tables if optimizer in ("", t["rows"][0]["optimizer"])), None)
    if table is None:
        known_optimizers = list(dict.fromkeys(t["rows"][0]["optimizer"] for t in tables))
        raise unknown(f"optimizer of a published recipe of {workload}", optimizer, known_optimizers)
    row = min(table["rows"], key=lambda r: abs(math.log(r["batch"] / batch)))
    if batch > REACH * row["batch"]:
        raise UserError(
            f"a batch of {batch:,} is far beyond those of {workload} with {row['optimizer']}, up to {row['batch']:,}",
            "give `lr`, and `warmup` in epochs",
        )
    if samples < row["samples"] / 2:
        raise UserError(
            f"{samples:,.0f} samples are too few for the published recipe of {workload}, whose run is of {row['samples']:,}",
            "give `lr`, and `warmup` in epochs",
        )
    steps, warmup = max(1, math.ceil(samples / batch)), round(row["warmup_samples"] / row["batch"])
    ahead = round(row.get("samples_ahead", 0) / row["batch"])
    rule = usual_rule(row["optimizer"])
    same = row["batch"] == batch
    return Recipe(
        optimizer=row["optimizer"],
        lr=scaled(row["lr"], row["batch"], batch, rule),
        total_steps=steps,
        warmup_steps=min(steps // 2, warmup),
        power=row.get("power", table["power"]),
        source=table["source"] + ("" if same else f", {rule} scaling from its batch {row['batch']}") + _cut(warmup, steps),
        options=table.get("options", {}) | row.get("options", {}),
        steps_ahead=ahead,
    )


def reference_points(workload: str) -> list[tuple[int, float]]:
    """Return batch and samples to the target of MLPerf's reference runs of ``workload``; empty without such runs."""
    table = next((t for t in _tables() if workload in t["workloads"] and t["target"] == "mlperf"), None)
    if table is None:
        return []
    return sorted([*((row["batch"], row["samples"]) for row in table["rows"]), *map(tuple, table.get("points", ()))])


def reference_optimizer(workload: str) -> str:
    """Return the optimizer of MLPerf's reference runs of ``workload``; empty without such runs."""
    return next(iter(optimizers(workload, "mlperf")), "")


def optimizers(workload: str, target: str = "") -> list[str]:
    """Return the optimizers with published rows of ``workload``, for one target or any."""
    tables = (t for t in _tables() if workload in t["workloads"] and target in ("", t["target"]))
    return list(dict.fromkeys(t["rows"][0]["optimizer"] for t in tables))


def networks() -> list[str]:
    """Return the names of networks with published rows."""
    return list(dict.fromkeys(name for t in _tables() for name in t["workloads"]))


@cache
def _tables() -> list[dict[str, Any]]:
    import tomllib
    from importlib.resources import files

    tables: list[dict[str, Any]] = tomllib.loads(
        files("paceline.strategy").joinpath("recipes.toml").read_text(encoding="utf-8")
    )["table"]
    return tables
