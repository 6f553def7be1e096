"""Gain of each change in time and cost, and of all together: ``whatif(...)``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster, Link
from paceline.hardware.prices import of_devices, price
from paceline.hardware.upgrade_price import UpgradePrice, parse_upgrade_price
from paceline.planning.compare.changes import OF_FABRIC, BatchScaling, Change, apply, changed_predictor, is_upgrade
from paceline.planning.compare.scaling import curves
from paceline.planning.compare.scaling import scaling as scales
from paceline.planning.compare.speedup_range import speedup_factor
from paceline.planning.search.training_target import MILLION
from paceline.prediction import ORDINARY, Prediction, StepPredictor
from paceline.prediction.learning.convergence import epoch_samples
from paceline.prediction.transports import clusters_by_transport
from paceline.strategy import Strategy
from paceline.strategy.codec_place import IN_CARD
from paceline.strategy.usual_precision import usual_precision
from paceline.tabular import Row, Tabular
from paceline.workload.table import Workload

TOGETHER = "all together"
TRANSPORTS = ("RDMA", "TCP")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Prediction of one cluster and strategy, compared with the base.

    Attributes:
        speedup: samples/s relative to the base, with the ends of its 80 % interval; exactly 1 without a difference.
        usd_per_hour: dollars of the cluster for an hour; NaN without a price, also for an upgrade without a given price.
        usd: dollars for ``WhatIf.priced_samples`` samples, with the 80 % interval of the step; NaN without a price.
        price: source of the price.
        pays_below: dollars an hour below which an upgrade of unknown price saves money; NaN for any other change.
        scaling: ``strong`` if the global batch is unchanged, ``weak`` if it grew with the devices, empty if the number of
            devices is unchanged.
        batch_note: why the batch changed: the old one does not divide among the new replicas. Empty if unchanged.
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
    pays_below: float = math.nan
    scaling: str = ""
    batch_note: str = ""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the prediction, and of its comparison with the base."""
        other = f"{self.batch_note}. The speed-up compares samples a second, not steps."
        return (*((other,) if self.batch_note else ()), *self.prediction.assumptions)

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        texts = ("title", "price", "scaling", "batch_note")
        numbers = ("speedup", "speedup_low", "speedup_high", "usd_per_hour", "usd", "usd_low", "usd_high", "pays_below")
        own = {**{k: getattr(self, k) for k in (*texts, *numbers)}, "assumptions": list(self.assumptions)}
        return {**self.prediction.to_json(), **own}


@dataclass(frozen=True, kw_only=True)
class WhatIf(Tabular):
    """The base, each change alone, and all of them together if there are several.

    Attributes:
        impossible: why a change, or all of them together, is impossible, by its title.
        priced_samples: number of samples that ``usd`` pays for: an epoch if the data is known, else a million.
        scaling: the base on other numbers of devices, by kind of scaling.
        by_transport: the same over ``RDMA`` and over ``TCP``, if the network gives only its speed. This answer takes ``TCP``.
            Empty if the transport is given or unused.
    """

    base: Outcome
    changes: tuple[Outcome, ...]
    together: Outcome | None
    priced_samples: int
    unit: str
    impossible: Mapping[str, str] = field(default_factory=dict)
    scaling: Mapping[str, Sequence[Prediction]] = field(default_factory=dict)
    by_transport: Mapping[str, WhatIf] = field(default_factory=dict)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The base, the changes one by one, then all together."""
        return (self.base, *self.changes, *((self.together,) if self.together else ()))

    def rows(self) -> tuple[Row, ...]:
        """Return one row for each outcome, the base first."""
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
        """Convert to a plain dict."""
        return {
            "base": self.base.to_json(),
            "changes": [outcome.to_json() for outcome in self.changes],
            "together": self.together.to_json() if self.together else None,
            "impossible": dict(self.impossible),
            "amount": self.priced_samples,
            "unit": self.unit,
            "scaling": curves(self.scaling),
            "by_transport": {name: [_gain(outcome) for outcome in other.outcomes] for name, other in self.by_transport.items()},
        }


def whatif(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    changes: Sequence[Change],
    *,
    scaling: BatchScaling = "strong",
    prices: Mapping[str, float] | None = None,
    upgrade_price: str = "",
    scale: bool = True,
    predictor: StepPredictor = ORDINARY,
    precision_given: bool = True,
) -> WhatIf:
    """Predict the base, each change alone, and all together.

    Args:
        scaling: behaviour of the global batch on other numbers of devices: unchanged (``strong``) or proportional (``weak``).
        prices: dollars a device and hour by device; the empty name means the only device. Default: listings.
        upgrade_price: price of the one change of the network, as ``parse_upgrade_price`` takes it. Without it that price is
            unknown, and so are the dollars of the upgraded cluster.
        scale: whether to predict other numbers of devices too.
        precision_given: whether the user named the precision; if not, another device selects its usual one.

    Raises:
        UserError: no possible change; a price of no upgrade, or of several; or as ``predict`` of the base.
    """
    if not changes:
        raise UserError("no change is given", "give a change, such as nodes+1 or network=100Gb/s")
    upgrade, prices = _upgrade(changes, upgrade_price), of_devices(prices, {cluster.device.name})
    asked = _Asked(workload, strategy, tuple(changes), scaling, prices, upgrade, predictor, precision_given)
    answer = asked.of(cluster)
    in_card = any(outcome.strategy.gradient_exchange.codec_at is IN_CARD for outcome in answer.outcomes)  # it follows TCP
    if not in_card and any(clusters_by_transport(outcome.cluster, predictor) for outcome in answer.outcomes):
        both = {name: answer if name == "TCP" else asked.of(cluster, name) for name in TRANSPORTS}
        answer = replace(answer, by_transport=both)
    return replace(answer, scaling=scales(workload, cluster, strategy, predictor)) if scale else answer


def _upgrade(changes: Sequence[Change], text: str) -> UpgradePrice | None:
    """Return the price of the upgrade; None if not given. Raises UserError."""
    if not text:
        return None
    upgrades = [str(change) for change in changes if change.name in OF_FABRIC]
    if len(upgrades) != 1:
        given = f"a price of one upgrade for {len(upgrades)}{': ' if upgrades else ''}{', '.join(upgrades)}"
        raise UserError(given, "give it with one change of the network, such as network=400Gb/s")
    return parse_upgrade_price(text)


@dataclass(frozen=True)
class _Asked:
    """Arguments of ``whatif`` except for the cluster."""

    workload: Workload
    strategy: Strategy
    changes: tuple[Change, ...]
    scaling: BatchScaling
    prices: Mapping[str, float] | None
    upgrade: UpgradePrice | None
    predictor: StepPredictor
    precision_given: bool

    def of(self, cluster: Cluster, transport: str = "") -> WhatIf:
        """Return the answer on ``cluster``; ``transport`` is the default one. Raises UserError as ``whatif``."""
        cluster = self._with_transport(cluster, transport)
        base = self.predictor.step(self.workload, cluster, self.strategy)
        outcomes: dict[str, Outcome] = {}
        errors: dict[str, UserError] = {}
        alone = [(str(change), [change]) for change in self.changes]
        together = [(TOGETHER, [*self.changes])] if len(self.changes) > 1 else []
        for title, chosen in [*alone, *together]:
            try:
                outcomes[title] = self._outcome(title, chosen, cluster, base, transport)
            except UserError as error:
                errors[title] = error
        if not outcomes:
            raise next(iter(errors.values()))
        epoch = epoch_samples(self.workload.name)
        return WhatIf(
            base=self._outcome("as it is", (), cluster, base, transport),
            changes=tuple(outcomes[title] for title, _ in alone if title in outcomes),
            together=outcomes.get(TOGETHER),
            impossible={title: str(error) for title, error in errors.items()},
            priced_samples=epoch or MILLION,
            unit="epoch" if epoch else "1M samples",
        )

    def _with_transport(self, cluster: Cluster, transport: str) -> Cluster:
        """Return the cluster with that transport, unless its transport is stated."""
        return clusters_by_transport(cluster, self.predictor).get(transport, cluster)

    def _outcome(self, title: str, chosen: Sequence[Change], cluster: Cluster, base: Prediction, transport: str) -> Outcome:
        """Return the outcome of the changes on ``cluster``, with ``base`` as its step. Raises UserError if impossible."""
        strategy, predictor = self.strategy, self.predictor
        c, s, scaled = apply(chosen, cluster, strategy, self.scaling)
        if not self.precision_given and c.device != cluster.device and all(change.name != "precision" for change in chosen):
            s = s.changed(precision=usual_precision(self.workload, c.device).name)
            title = title if s.precision == strategy.precision else f"{title}, {s.precision}"
        c, model = self._with_transport(c, transport), changed_predictor(chosen, predictor)
        p = model.step(self.workload, c, s) if chosen else base
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
        listing, upgraded = price(c.device.name, self.prices, c.node_sizes), is_upgrade(chosen, cluster, c)
        listed = listing.usd_per_hour(c.node_sizes) if listing else math.nan
        hourly, text = listed, str(listing) if listing else f"no price of {c.device.name} is known"
        pays_below = math.nan
        if upgraded and self.upgrade:
            hourly, text = listed + self.upgrade.hourly(c.world_size), f"{text}; {self.upgrade}"
        elif upgraded:
            before = price(cluster.device.name, self.prices, cluster.node_sizes)
            pays_below = before.usd_per_hour(cluster.node_sizes) * ratio - listed if before else math.nan
            hourly, text = math.nan, f"{title}: the price of the upgrade is unknown"
        samples = epoch_samples(self.workload.name) or MILLION
        usd = hourly * samples / p.samples_per_s / 3600
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
            price=text,
            pays_below=pays_below,
            scaling=scaled,
            batch_note=_batch_note(s, strategy, chosen, scaled),
        )


def _gain(outcome: Outcome) -> dict[str, Any]:
    """Return the main figures of an outcome."""
    gain = {name: getattr(outcome, name) for name in ("title", "speedup", "speedup_low", "speedup_high", "usd")}
    return {**gain, "step_time_s": outcome.prediction.step_time_s, "network": outcome.cluster.network.name}


def _no_worse(link: Link, than: Link) -> bool:
    rates = [(of.bandwidth.value, of.bandwidth.value * (of.carried.value if of.carried else 1.0)) for of in (link, than)]
    faster = all(own >= other for own, other in zip(*rates, strict=True))
    return faster and link.latency.value <= than.latency.value


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
