"""``whatif(...)``: what each change gains in time and money, then all changes together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster, Link
from paceline.hardware.prices import price
from paceline.planning.changes import BatchScaling, Change, apply, changed_predictor
from paceline.planning.scaling import curves
from paceline.planning.scaling import scaling as scales
from paceline.planning.speedup_range import speedup_factor
from paceline.planning.training_target import MILLION
from paceline.prediction import ORDINARY, Prediction, Predictor
from paceline.prediction.convergence import epoch_samples
from paceline.strategy import Strategy
from paceline.tabular import Row, Tabular
from paceline.workload.table import Workload

TOGETHER = "all together"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The prediction of one cluster and strategy, compared with the base.

    Attributes:
        speedup: samples/s divided by those of the base, with the ends of its 80 % interval; exactly 1 where nothing changes.
        usd_per_hour: dollars of the cluster for an hour; NaN without a price.
        usd: dollars for ``WhatIf.priced_samples`` samples, with the 80 % interval of the step; NaN without a price.
        price: where the dollars come from.
        scaling: ``strong`` where the global batch stayed, ``weak`` where it grew with the devices, empty where the number of
            devices stayed.
        batch_note: why the batch changed: the old one does not divide among the new replicas. Empty where it stayed.
    """

    title: str
    cluster: Cluster
    strategy: Strategy
    prediction: Prediction
    speedup: float
    speedup_low: float
    speedup_high: float
    usd_per_hour: float
    usd: float
    usd_low: float
    usd_high: float
    price: str
    scaling: str = ""
    batch_note: str = ""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the prediction, and of its comparison with the base."""
        other = f"{self.batch_note}. The speed-up compares samples a second, not steps."
        return (*((other,) if self.batch_note else ()), *self.prediction.assumptions)

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        texts = ("title", "price", "scaling", "batch_note")
        numbers = ("speedup", "speedup_low", "speedup_high", "usd_per_hour", "usd", "usd_low", "usd_high")
        own = {**{k: getattr(self, k) for k in (*texts, *numbers)}, "assumptions": list(self.assumptions)}
        return {**self.prediction.to_json(), **own}


@dataclass(frozen=True, kw_only=True)
class WhatIf(Tabular):
    """The base, each change by itself, and all of them together where there are several.

    Attributes:
        impossible: why a change, or all of them together, cannot be, by its title.
        priced_samples: the number of samples that ``usd`` pays for: an epoch where the data is known, else a million.
        scaling: the base on other numbers of devices, by kind of scaling.
    """

    base: Outcome
    changes: tuple[Outcome, ...]
    together: Outcome | None
    priced_samples: int
    unit: str
    impossible: Mapping[str, str] = field(default_factory=dict)
    scaling: Mapping[str, Sequence[Prediction]] = field(default_factory=dict)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The base, the changes, all together."""
        return (self.base, *self.changes, *((self.together,) if self.together else ()))

    def rows(self) -> tuple[Row, ...]:
        """A row for each outcome, the base first."""
        names = ("speedup", "speedup_low", "speedup_high", "usd_per_hour", "usd", "usd_low", "usd_high")
        return tuple(
            {
                "change": outcome.title,
                "step_time_s": outcome.prediction.step_time_s,
                **{name: getattr(outcome, name) for name in names},
            }
            for outcome in self.outcomes
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions that all outcomes share, then the others with the titles of their outcomes."""
        whose: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            for text in dict.fromkeys(outcome.assumptions):
                whose.setdefault(text, []).append(outcome.title)
        every = [text for text, titles in whose.items() if len(titles) == len(self.outcomes)]
        return (*every, *(f"{', '.join(titles)}: {text}" for text, titles in whose.items() if text not in every))

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return {
            "base": self.base.to_json(),
            "changes": [outcome.to_json() for outcome in self.changes],
            "together": self.together.to_json() if self.together else None,
            "impossible": dict(self.impossible),
            "amount": self.priced_samples,
            "unit": self.unit,
            "scaling": curves(self.scaling),
        }


def whatif(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    changes: Sequence[Change],
    *,
    scaling: BatchScaling = "strong",
    prices: Mapping[str, float] | None = None,
    predictor: Predictor = ORDINARY,
) -> WhatIf:
    """Predict the base, each change by itself, and all together.

    Args:
        scaling: with other numbers of devices, whether the global batch stays (``strong``) or grows with them (``weak``).
        prices: dollars a device and hour by device, or for all under the empty name; else the listings.

    Raises:
        UserError: no change, or none that can be; or as ``predict`` of the base.
    """
    if not changes:
        raise UserError("no change is given", "give a change, such as nodes+1 or network=100Gb/s")
    epoch = epoch_samples(workload.name)
    priced_samples = epoch or MILLION
    base = predictor.step(workload, cluster, strategy)

    def outcome(title: str, chosen: Sequence[Change]) -> Outcome:
        c, s, scaled = apply(chosen, cluster, strategy, scaling)
        model = changed_predictor(chosen, predictor)
        p = model.step(workload, c, s) if chosen else base
        listing = price(c.device.name, prices)
        hourly = listing.usd_per_device_hour * c.world_size if listing else math.nan
        ratio = p.samples_per_s / base.samples_per_s
        factor = speedup_factor(p, base, c, cluster)
        low, high = ratio / factor, ratio * factor
        if (c.changed(network=cluster.network), s, model) == (
            cluster,
            strategy,
            predictor,
        ):  # only the network changed: a better link cannot make the step slower
            low = max(low, min(1.0, ratio)) if _no_worse(c.network, cluster.network) else low
            high = min(high, max(1.0, ratio)) if _no_worse(cluster.network, c.network) else high
        usd = hourly * priced_samples / p.samples_per_s / 3600
        return Outcome(
            title=title,
            cluster=c,
            strategy=s,
            prediction=p,
            speedup=ratio,
            speedup_low=low,
            speedup_high=high,
            usd_per_hour=hourly,
            usd=usd,
            usd_low=usd * p.low_s / p.step_time_s,
            usd_high=usd * p.high_s / p.step_time_s,
            price=str(listing) if listing else f"no price of {c.device.name} is known",
            scaling=scaled,
            batch_note=_batch_note(s, strategy, chosen, scaled),
        )

    outcomes: dict[str, Outcome] = {}
    errors: dict[str, UserError] = {}
    alone = [(str(change), [change]) for change in changes]
    for title, chosen in [*alone, *([(TOGETHER, [*changes])] if len(changes) > 1 else [])]:
        try:
            outcomes[title] = outcome(title, chosen)
        except UserError as error:
            errors[title] = error
    if not outcomes:
        raise next(iter(errors.values()))
    return WhatIf(
        base=outcome("as it is", ()),
        changes=tuple(outcomes[title] for title, _ in alone if title in outcomes),
        together=outcomes.get(TOGETHER),
        impossible={title: str(error) for title, error in errors.items()},
        priced_samples=priced_samples,
        unit="epoch" if epoch else "1M samples",
        scaling=scales(workload, cluster, strategy, predictor),
    )


def _no_worse(link: Link, than: Link) -> bool:
    return link.bandwidth.value >= than.bandwidth.value and link.latency.value <= than.latency.value


def _batch_note(after: Strategy, before: Strategy, changes: Sequence[Change], scaled: str) -> str:
    given = any(change.name == "global-batch" for change in changes)
    if given or scaled == "weak" or after.global_batch_size == before.global_batch_size:
        return ""
    whom = "workers" if after.parallelism.model_devices == 1 else "replicas"
    times = f" in {after.parallelism.micro_batches} micro steps" if after.parallelism.micro_batches > 1 else ""
    return (
        f"global batch {after.global_batch_size} instead of {before.global_batch_size}, which does not divide among "
        f"{after.parallelism.data} {whom}{times}"
    )
