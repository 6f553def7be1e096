"""The result of a simulated asynchronous job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from paceline.record import Event


@dataclass(frozen=True, kw_only=True)
class AsyncResult:
    """Throughput and staleness of an asynchronous job in its steady state, after the first steps of every worker.

    Attributes:
        samples_per_s: samples/s of all workers; ``low_samples_per_s`` to ``high_samples_per_s`` is its 80 % interval.
        updates_per_s: gradients of the whole model that the servers apply per second.
        step_s: mean seconds of a worker's step, from one answer of the servers to the next.
        staleness: share of the updates with 0, 1, 2, ... updates by others to the same parameters since the worker read them.
        utilisation: busy share of the time for each resource: ``workers`` (mean), ``worker links up``, ``worker links down``
            (mean), and for every server ``server 0 link in``, ``server 0 link out`` and ``server 0 update``.
        assumptions: the assumptions behind the numbers, in sentences.
        timeline: the first steps; ``rank`` is the worker, or the number of workers plus the server's number.
    """

    workers: int
    servers: int
    samples_per_s: float
    low_samples_per_s: float
    high_samples_per_s: float
    updates_per_s: float
    step_s: float
    staleness: tuple[float, ...]
    utilisation: Mapping[str, float]
    assumptions: tuple[str, ...] = ()
    timeline: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def mean_staleness(self) -> float:
        """Mean number of updates by other workers from a worker's read of a parameter to its own update of it."""
        return sum(k * share for k, share in enumerate(self.staleness))

    def staleness_quantile(self, share: float) -> int:
        """Return the least staleness that at least ``share`` of the updates do not exceed; for 1 the largest that occurred."""
        sums = accumulate(self.staleness)
        return next((k for k, reached in enumerate(sums) if reached >= share - 1e-9), len(self.staleness) - 1)

    @property
    def bottleneck(self) -> str:
        """The resource with the highest utilisation."""
        return max(self.utilisation, key=self.utilisation.__getitem__)

    @property
    def limit(self) -> str:
        """Kind of the bottleneck: worker compute, worker network, server network or server update."""
        if self.bottleneck == "workers":
            return "worker compute"
        host, *_, what = self.bottleneck.split()
        return f"{host} update" if what == "update" else f"{host} network"

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict without the timeline."""
        values = {k: v for k, v in asdict(self).items() if k != "timeline"}
        quantiles = {"median": 0.5, "p90": 0.9, "max": 1.0}
        return {
            **values,
            "mean_staleness": self.mean_staleness,
            **{f"{name}_staleness": self.staleness_quantile(share) for name, share in quantiles.items()},
            "bottleneck": self.bottleneck,
            "limit": self.limit,
        }
