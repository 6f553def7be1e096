"""Every method on one number of sites with one bandwidth between them: bytes, time computing and waiting, goodput."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.site_map import EVERY, check_sites, link_between
from paceline.planning.compare.site_methods import SITE_METHODS, USUAL, SiteMethod
from paceline.planning.failures.failures import Failures
from paceline.planning.failures.local_goodput import SiteFailures
from paceline.prediction import ORDINARY, Prediction, StepPredictor
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.learning.local_loss import Finding, FurtherTokens, finding_of, further_of, law_range, sources
from paceline.prediction.step.worker_step import sent_bytes
from paceline.strategy import Strategy
from paceline.tabular import Row, Tabular
from paceline.workload.table import Workload

Further = Mapping[int, Mapping[str, FurtherTokens]]
"""Further tokens by number of sites and by name of the method, of those for which a law was published."""
TokensOfLaws = FurtherTokens
"""Further tokens where laws were published."""
LAWS = sources
"""Function that returns the sources of the laws of loss by tokens."""
LAW_RANGE = law_range
"""Function that describes where the laws hold."""


@dataclass(frozen=True, kw_only=True)
class MethodOutcome:
    """One method on the sites.

    Attributes:
        computing: share of time computing: the step of a site alone over this step.
        site_bytes: bytes that a site sends to others in a step, on average over local steps (``between_bytes``).
        goodput: share of the sites' time whose steps stay in the trained model; NaN without a rate of failures.
        further: further tokens to an equal loss; None where no law was published.
        finding: what the method's authors found on its loss; None for gradients in every step.
    """

    method: SiteMethod
    prediction: Prediction
    computing: float
    site_bytes: float
    goodput: float
    further: FurtherTokens | None = None
    finding: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class SiteTable(Tabular):
    """Methods on one number of sites, the fastest first.

    Attributes:
        alone: prediction of a site without others.
        bandwidth: bytes/s of a site in one direction.
        impossible: why a method cannot run, by its name.
    """

    alone: Prediction
    sites: int
    bandwidth: float
    sync_every: int
    outcomes: tuple[MethodOutcome, ...]
    impossible: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> tuple[Row, ...]:
        """Return one row for each method."""
        return tuple(
            {
                "method": o.method.name,
                "step_time_s": o.prediction.step_time_s,
                "samples_per_s": o.prediction.samples_per_s,
                "computing": o.computing,
                "site_bytes": o.site_bytes,
                "memory_bytes": o.prediction.memory_bytes,
                "goodput": o.goodput,
            }
            for o in self.outcomes
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {
            "alone": self.alone.to_json(),
            "sites": self.sites,
            "bandwidth_bytes_per_s": self.bandwidth,
            "sync_every": self.sync_every,
            "methods": [
                {
                    **row,
                    "goodput": None if math.isnan(row["goodput"]) else row["goodput"],
                    "further_tokens": None if o.further is None else {name: getattr(o.further, name) for name in _OF_LAW},
                    "published": "" if o.finding is None else f"{o.finding.said} ({o.finding.source})",
                    "prediction": o.prediction.to_json(),
                }
                for row, o in zip(self.rows(), self.outcomes, strict=True)
            ],
            "impossible": dict(self.impossible),
        }


_OF_LAW = ("loss_low", "loss_high", "low", "high", "workers", "source")


def further_by_method(
    workload: Workload, strategy: Strategy, sites: int, sync_every: int, methods: Sequence[SiteMethod] = SITE_METHODS
) -> dict[str, FurtherTokens]:
    """Return the further tokens of the methods for which a law was published, by name. ``strategy``: of one site alone."""
    found: dict[str, FurtherTokens] = {}
    for method in methods:
        with suppress(UserError):
            known = further_of(workload, method.on_sites(strategy, sites, sync_every)) if method.local else None
            if known is not None:
                found[method.name] = known
    return found


def site_table(
    workload: Workload,
    site: Cluster,
    strategy: Strategy,
    *,
    sites: int,
    bandwidth: float,
    sync_every: int = EVERY,
    latency_s: float | None = None,
    between: Mapping[str, Any] = USUAL,
    failures: Failures | None = None,
    methods: Sequence[SiteMethod] = SITE_METHODS,
    predictor: StepPredictor = ORDINARY,
) -> SiteTable:
    """Predict every method on ``sites`` sites. Arguments as in ``site_map``; ``failures``: of devices or nodes.

    Raises:
        UserError: as ``site_map``.
    """
    check_sites(site, strategy, (bandwidth,), (sites,))
    alone = predictor.step(workload, site, strategy)
    cluster = site.changed(num_nodes=sites, network=link_between(bandwidth, latency_s))
    outcomes: list[MethodOutcome] = []
    impossible: dict[str, str] = {}
    strategies: dict[str, Strategy] = {}
    for method in methods:
        try:
            strategies[method.name] = method.on_sites(strategy, sites, sync_every, between)
            p = predictor.step(workload, cluster, strategies[method.name])
        except UserError as error:
            impossible[method.name] = str(error)
            continue
        goodput = _goodput(method, p, site, sites, sync_every, failures)
        sent = between_bytes(workload, cluster, strategies[method.name], (alone, p))
        computing = min(1.0, alone.step_time_s / p.step_time_s)
        local = strategies[method.name] if method.local else None
        outcomes.append(
            MethodOutcome(
                method=method,
                prediction=p,
                computing=computing,
                site_bytes=sent,
                goodput=goodput,
                further=further_of(workload, local) if local else None,
                finding=finding_of(workload, local) if local else None,
            )
        )
    if not outcomes:
        raise UserError(f"no method runs on these sites: {next(iter(impossible.values()))}", "give another network or site")
    return SiteTable(
        alone=alone,
        sites=sites,
        bandwidth=bandwidth,
        sync_every=sync_every,
        outcomes=tuple(sorted(outcomes, key=lambda outcome: outcome.prediction.step_time_s)),
        impossible=impossible,
    )


def between_bytes(workload: Workload, cluster: Cluster, strategy: Strategy, steps: tuple[Prediction, Prediction]) -> float:
    """Return the bytes that a site, a node of the cluster, sends to other sites in a step.

    Workers of a site send their payloads. A hierarchical exchange sends ``2 (M - 1) / M`` payloads of a site for M sites. An
    exchange among all devices sends the share of its bytes that goes to other sites. The rest sends what a site alone does not:
    an all-reduce of n bytes ``2 (M - 1) / M n``.

    Args:
        steps: of a site alone, and with the others.
    """
    alone, together = (step.wire_bytes_per_device for step in steps)
    devices, sites, x = cluster.devices_per_node, cluster.num_nodes, strategy.gradient_exchange
    if strategy.worker_devices > 1:
        plan = exchange_plan(workload, strategy, cluster.places)
        return float(devices * strategy.local.per_step(sent_bytes(plan, apart=devices)))
    if x.exchange.uses_nodes:
        return 2 * (sites - 1) / sites * float(strategy.description.format.push_bytes(workload.num_parameters))
    if devices > 1 and not strategy.parallelism.sharding.weights and not x.exchange.by_engine:
        return together * devices * (sites - 1) * devices / (sites * devices - 1)
    return float(max(0, together - alone) * devices)


def _goodput(method: SiteMethod, p: Prediction, site: Cluster, sites: int, sync_every: int, failures: Failures | None) -> float:
    """Return the goodput of a method: peers continue between local steps; an exchange in every step stops all sites."""
    if failures is None or failures.between_s is None:
        return math.nan
    mean_s = failures.between_s if failures.of_node else failures.between_s / site.world_size
    every = sync_every if method.local else 1
    case = SiteFailures(
        sites=sites,
        mean_s=mean_s,
        round_s=every * p.step_time_s,
        rejoin_s=failures.restart_s,
        write_s=failures.write_s,
        fragments=method.choices.get("fragments", 1),
    )
    return case.peers() if method.local else case.all_stop()
