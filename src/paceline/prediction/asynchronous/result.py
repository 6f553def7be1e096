"""What a simulated asynchronous job says."""

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
        samples_per_s: of all workers together; ``low_samples_per_s`` to ``high_samples_per_s`` is its 80 % interval.
        updates_per_s: gradients of the whole model applied a second.
        step_s: mean seconds of a worker's step, from one answer of the servers to the next.
        staleness: share of the updates with 0, 1, 2, ... updates by others to the same parameters since the worker read them.
        utilisation: share of the time that each resource works: ``workers`` (mean), ``worker links up``, ``worker links down``
            (mean), and of every server ``server 0 link in``, ``server 0 link out`` and ``server 0 update``.
        assumptions: what the numbers rest on, in words.
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
        """Updates by others between a worker's reading of a parameter and its own update of it, on average."""
        return sum(k * share for k, share in enumerate(self.staleness))

    def staleness_quantile(self, share: float) -> int:
        """The least staleness that at least ``share`` of the updates do not exceed; of 1 the largest that was seen."""
        sums = accumulate(self.staleness)
        return next((k for k, reached in enumerate(sums) if reached >= share - 1e-9), len(self.staleness) - 1)

    @property
    def bottleneck(self) -> str:
        """The resource that works most of the time."""
        return max(self.utilisation, key=self.utilisation.__getitem__)

    @property
    def limit(self) -> str:
        """What kind of resource that is: worker compute, worker network, server network or server update."""
        if self.bottleneck == "workers":
            return "worker compute"
        host, *_, what = self.bottleneck.split()
        return f"{host} update" if what == "update" else f"{host} network"

    def to_json(self) -> dict[str, Any]:
        """A plain dict without the timeline."""
        values = {k: v for k, v in asdict(self).items() if k != "timeline"}
        quantiles = {"median": 0.5, "p90": 0.9, "max": 1.0}
        return {
            **values,
            "mean_staleness": self.mean_staleness,
            **{f"{name}_staleness": self.staleness_quantile(share) for name, share in quantiles.items()},
            "bottleneck": self.bottleneck,
            "limit": self.limit,
        }
