"""``whatif(...)``: what each change gains in time and money, then all changes together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline import hardware
from paceline.calibration.uncertainty import Z80, log_spread
from paceline.errors import UserError, unknown
from paceline.hardware import Cluster, Link
from paceline.hardware.prices import price
from paceline.planning.scaling import curves
from paceline.planning.scaling import scaling as scales
from paceline.planning.strategy_text import ALIASES, EXAMPLES, fixed, yes_or_no
from paceline.planning.training_target import MILLION
from paceline.prediction import ORDINARY, Prediction, Predictor
from paceline.prediction.convergence import epoch_samples
from paceline.strategy import EXCHANGES, Strategy
from paceline.strategy.recompute import recompute_choice
from paceline.units import parse_bytes
from paceline.workload.table import Workload

BatchScaling = Literal["strong", "weak"]
OF_CLUSTER = ("nodes", "devices-per-node", "network", "device")
OF_STRATEGY = {
    "precision": "precision",
    "compression": "compression",
    "exchange": "exchange",
    "servers": "servers",
    "sharding": "sharding",
    "shard-devices": "shard_devices",
    "offload": "offload",
    "global-batch": "global_batch_size",
    "accumulation": "grad_accum_steps",
    "bucket": "bucket_bytes",
    "recompute": "recompute",
    "recompute-layers": "recompute_layers",
    "optimizer": "optimizer",
    "tensor": "tensor",
    "pipeline": "pipeline",
    "context": "context",
    "expert": "expert",
    "expert-tensor": "expert_tensor",
    "expert-imbalance": "expert_imbalance",
    "expert-exchange": "expert_exchange",
    "expert-overlap": "expert_overlap",
    "virtual-stages": "virtual_stages",
    "schedule": "schedule",
    "first-stage-layers": "first_stage_layers",
    "last-stage-layers": "last_stage_layers",
}
NUMBERS = (
    "global-batch",
    "accumulation",
    "servers",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "expert-tensor",
    "virtual-stages",
    "shard-devices",
    "recompute-layers",
    "first-stage-layers",
    "last-stage-layers",
)
SERVERLESS = frozenset(EXCHANGES) - {"parameter_server"}
SHARED = {"same": 0.6, "other": 0.25}
"""Assumed correlation of the errors of two predictions of one network: on the same device, and on two different ones. The model
repeats after a change the error that it made before. Five sets of measurements give 0.6 to 0.9 on the same device and 0.0 to
0.9 on different ones (``benchmarks/speedup_error.py``). These values are near the lower end, where ranges are wider."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: ``nodes+1``, ``network=100Gb/s``. ``operator`` is ``=``, ``+``, ``-`` or ``x``."""

    name: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


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
        batch_note: why the batch changed: the old one does not divide among the new devices. Empty where it stayed.
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
class WhatIf:
    """The base, each change by itself, and all of them together where there are several.

    Attributes:
        priced_samples: the number of samples that ``usd`` pays for: an epoch where the data is known, else a million.
        scaling: the base on other numbers of devices, by kind of scaling.
    """

    base: Outcome
    changes: tuple[Outcome, ...]
    together: Outcome | None
    priced_samples: int
    unit: str
    scaling: Mapping[str, Sequence[Prediction]] = field(default_factory=dict)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The base, the changes, all together."""
        return (self.base, *self.changes, *((self.together,) if self.together else ()))

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
            "amount": self.priced_samples,
            "unit": self.unit,
            "scaling": curves(self.scaling),
        }


def parse_change(text: str) -> Change:
    """``nodes+1``, ``nodes=4``, ``nodesx2``, ``network=100Gb/s``, ``device=H100-SXM``. Raises UserError for anything else."""
    names = sorted((*OF_CLUSTER, *OF_STRATEGY), key=len, reverse=True)
    text = text.strip()
    for word in (*names, *ALIASES):
        name, rest = ALIASES.get(word, word), text[len(word) :].strip()
        if text.startswith(word) and rest in ("", "=", "+", "-", "x"):
            example = {"nodes": "nodes+1", "network": "network=100Gb/s"}.get(name, f"{name}={EXAMPLES.get(name, 'VALUE')}")
            raise UserError(f"{name} has no value", f"write {example}")
        if text.startswith(word) and rest[:1] in ("=", "+", "-", "x") and len(rest) > 1:
            if rest[0] != "=" and name not in ("nodes", "devices-per-node", *NUMBERS):
                raise UserError(f"{name} is not a number: {rest!r} cannot change it", f"write it as {name}=VALUE")
            return Change(name, rest[0], rest[1:].strip())
    given = text.rstrip("0123456789").partition("=")[0].rstrip("+-x ")
    raise fixed(given) or unknown("change", given, sorted(names), "write it as nodes+1 or network=100Gb/s")


def apply(
    changes: Iterable[Change], cluster: Cluster, strategy: Strategy, scaling: BatchScaling
) -> tuple[Cluster, Strategy, str]:
    """Cluster, strategy and kind of scaling after the changes. A batch that does not divide among the new
    devices becomes the nearest that does. A dense hierarchical exchange on one node becomes an all-reduce.

    Raises:
        UserError: an illegal value, or an illegal combination, with the nearest legal one.
    """
    before = cluster.world_size
    fields: dict[str, Any] = {}
    for change in changes:
        if change.name in OF_CLUSTER:
            cluster = _cluster(change, cluster)
        else:
            fields |= _fields(change, strategy)
    n = cluster.world_size
    scaled = ""
    if n != before:
        scaled = "global batch given" if "global_batch_size" in fields else scaling
        if scaled == "weak":
            fields["global_batch_size"] = strategy.global_batch_size * n // before
        elif scaled == "strong":
            shares = n * fields.get("grad_accum_steps", strategy.parallelism.micro_batches)
            fields["global_batch_size"] = _nearest_multiple(strategy.global_batch_size, shares)
    if strategy.gradient_exchange.exchange == "hierarchical" and "exchange" not in fields:
        fields["ranks_per_node"] = cluster.devices_per_node
    after = strategy.changed(world_size=n, **fields)
    x = after.gradient_exchange
    if cluster.num_nodes == 1 and (x.exchange, x.compression) == ("hierarchical", "dense"):
        after = after.changed(exchange="allreduce", ranks_per_node=1)
    return cluster, after, scaled


def _nearest_multiple(value: int, of: int) -> int:
    """The nearest multiple of ``of`` above 0; the smaller of two equally near ones."""
    below = max(1, value // of) * of
    return below + of if 2 * (value - below) > of else below


def _number(change: Change, before: int) -> int:
    try:
        value = int(change.value)
    except ValueError:
        raise UserError(f"{change.value!r} in {change} is not a whole number", f"write it as {change.name}+1") from None
    after = {"=": value, "+": before + value, "-": before - value, "x": before * value}[change.operator]
    if after < 1:
        raise UserError(f"{change} leaves {after} of {before} {change.name}", "keep at least 1")
    return after


def _factor(change: Change) -> float:
    try:
        return float(change.value)
    except ValueError:
        raise UserError(f"{change.value!r} in {change} is not a number", f"write it as {change.name}=1.2") from None


def _cluster(change: Change, cluster: Cluster) -> Cluster:
    if change.name == "nodes":
        many = _number(change, cluster.num_nodes)
        if many > 1 and cluster.num_nodes == 1 and cluster.network == cluster.intra_link:
            raise UserError(f"{many} nodes have no network", "give one, such as network=100Gb/s")
        return cluster.changed(num_nodes=many)
    if change.name == "devices-per-node":
        return cluster.changed(devices_per_node=_number(change, cluster.devices_per_node))
    if change.name == "network":
        return cluster.changed(network=hardware.network(change.value))
    device = hardware.device(change.value)
    return cluster.changed(device=device, intra_link=hardware.link(device.link))


def _fields(change: Change, strategy: Strategy) -> dict[str, Any]:
    """The fields of the strategy that a change sets. A new compression takes its own exchange and options, so do servers."""
    field, value = OF_STRATEGY[change.name], change.value
    if change.name in NUMBERS:
        given = {field: _number(change, strategy.choice(field))}
        return {**given, "exchange": "parameter_server"} if change.name == "servers" else given
    if change.name == "bucket":
        return {field: int(parse_bytes(value))}
    if change.name == "recompute":
        return {field: recompute_choice(value)}
    if change.name == "expert-overlap":
        return {field: yes_or_no(change.name, value)}
    if change.name == "expert-imbalance":
        return {field: _factor(change)}
    alone = {"servers": 1} if change.name == "compression" or value in SERVERLESS else {}
    return {field: value, **alone}


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
        UserError: no change; or as ``apply`` and ``predict``.
    """
    if not changes:
        raise UserError("no change is given", "give a change, such as nodes+1 or network=100Gb/s")
    epoch = epoch_samples(workload.name)
    priced_samples = epoch or MILLION
    base = predictor.step(workload, cluster, strategy)

    def outcome(title: str, chosen: Sequence[Change]) -> Outcome:
        c, s, scaled = apply(chosen, cluster, strategy, scaling)
        p = predictor.step(workload, c, s) if chosen else base
        listing = price(c.device.name, prices)
        hourly = listing.usd_per_device_hour * c.world_size if listing else math.nan
        ratio = p.samples_per_s / base.samples_per_s
        shared = SHARED["same" if c.device == cluster.device else "other"]
        spreads = log_spread(base.low_s, base.high_s), log_spread(p.low_s, p.high_s)
        factor = 1.0 if _unchanged(p, base) else math.exp(Z80 * ratio_spread(*spreads, shared))
        low, high = ratio / factor, ratio * factor
        if (c.changed(network=cluster.network), s) == (
            cluster,
            strategy,
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
            batch_note=_batch_note(s, strategy, scaled),
        )

    return WhatIf(
        base=outcome("as it is", ()),
        changes=tuple(outcome(str(change), [change]) for change in changes),
        together=outcome("all together", changes) if len(changes) > 1 else None,
        priced_samples=priced_samples,
        unit="epoch" if epoch else "1M samples",
        scaling=scales(workload, cluster, strategy, predictor),
    )


def _unchanged(p: Prediction, base: Prediction) -> bool:
    """Whether every predicted time equals that of the base."""
    here, there = ((x.step_time_s, x.low_s, x.high_s, x.samples_per_s, x.exposed) for x in (p, base))
    return here == there


def _no_worse(link: Link, than: Link) -> bool:
    return link.bandwidth.value >= than.bandwidth.value and link.latency.value <= than.latency.value


def _batch_note(after: Strategy, before: Strategy, scaled: str) -> str:
    if scaled != "strong" or after.global_batch_size == before.global_batch_size:
        return ""
    times = f" in {after.parallelism.micro_batches} micro steps" if after.parallelism.micro_batches > 1 else ""
    return (
        f"global batch {after.global_batch_size} instead of {before.global_batch_size}, which does not divide among "
        f"{after.world_size} workers{times}"
    )


def ratio_spread(before: float, after: float, shared: float) -> float:
    """Standard deviation of log(speed-up) from those of both steps. Shared errors cancel in the ratio."""
    return math.sqrt(max(0.0, before * before + after * after - 2 * shared * before * after))
