"""Goodput of a predicted strategy at a rate of failures: what a failure stops, and what the workers lose by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.hardware import Cluster
from paceline.planning.failures.failures import Failures
from paceline.planning.failures.local_goodput import SiteFailures
from paceline.prediction import Prediction
from paceline.strategy import Strategy
from paceline.units import format_seconds


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput of a strategy by what its workers do at a failure.

    Attributes:
        workers: number of workers that can fail one by one. ``mean_s``: mean seconds of one of them between failures.
        all_stop: share of the time whose steps stay if a failure stops all of them.
        peers, decoupled: the same if the others continue, and if none waits for others; None with an exchange in every step.
        round_s: seconds of a round.
    """

    workers: int
    mean_s: float
    all_stop: float
    peers: float | None
    decoupled: float | None
    round_s: float

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return what the workers do at a failure, each with the goodput in words."""
        each = "device" if self.peers is None else "worker"
        rows = [("all restart", self.all_stop), ("peers continue", self.peers), ("decoupled", self.decoupled)]
        said = tuple((name, f"{share:.1%}") for name, share in rows if share is not None)
        return (("failures", f"of one {each} every {format_seconds(self.mean_s)}, {self.workers:,} of them"), *said)

    @property
    def brief(self) -> str:
        """Goodput in a clause."""
        return "goodput " + ", ".join(f"{share} if {name}" for name, share in self.pairs()[1:])

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {name: getattr(self, name) for name in self.__slots__}


def run_goodput(prediction: Prediction, cluster: Cluster, strategy: Strategy, failures: Failures) -> Goodput | None:
    """Return the goodput of a strategy at a stated rate of failures; None without a rate.

    A worker of local steps fails with any of its devices. Peers wait for a failed one up to the deadline of the strategy.

    Raises:
        UserError: failures that let no run end.
    """
    cost = failures.on(cluster)
    if cost is None or failures.between_s is None:
        return None
    if strategy.sync_every == 1:
        return Goodput(strategy.world_size, cost.device_s, 1 / cost.factor, None, None, prediction.step_time_s)
    local = strategy.local
    case = SiteFailures(
        sites=strategy.worker_count,
        mean_s=cost.device_s / strategy.worker_devices,
        round_s=strategy.sync_every * prediction.step_time_s,
        rejoin_s=failures.restart_s,
        wait_s=local.round_deadline_s or 0.0,
        fragments=local.fragments,
        write_s=failures.write_s,
    )
    return Goodput(case.sites, case.mean_s, 1 / cost.factor, case.peers(), case.decoupled(), case.round_s)
