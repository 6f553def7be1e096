"""Answer to "when will my job start?": starts and ends with ranges, reasons, and what would start sooner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from paceline.scheduling.starts.forecast import HIGH, LOW, StartForecast
from paceline.scheduling.starts.preemptions import JobPreemptions, Preemptions
from paceline.scheduling.starts.sooner import Sooner
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import LoggedJob
from paceline.tabular import Row, Tabular

SHARES = (("low_s", LOW), ("median_s", 0.5), ("high_s", HIGH))
_DATED_S = 1e8
"""Least time that is a date and not a count from a log's own start."""


@dataclass(frozen=True, kw_only=True)
class StartAnswer(Tabular):
    """Forecast of a queue.

    Attributes:
        jobs: forecasts of the jobs that were asked for, the next one first.
        reasons: sentences on the wait of each of them, by name.
        sooner: changes with which a single job would start sooner.
        preemptions: preemptions in the futures.
        checked: past starts of the queue inside their 80 % range, and past starts checked.
        seconds: time of the computation.
        asked: name of the single job; empty: the whole queue.
    """

    queue: WaitingQueue
    jobs: tuple[StartForecast, ...]
    reasons: dict[str, tuple[str, ...]]
    sooner: tuple[Sooner, ...] = ()
    preemptions: Preemptions = field(default_factory=Preemptions)
    notes: tuple[str, ...] = ()
    checked: tuple[int, int] = (0, 0)
    futures: int = 0
    seed: int = 0
    seconds: float = 0.0
    asked: str = ""

    def rows(self) -> Sequence[Row]:
        """Return a row per job: start and end in seconds after the present, each with its 80 % range."""
        return [self._row(forecast) for forecast in self.jobs]

    def moment(self, after_s: float) -> str:
        """Return a time after the present as ISO 8601 on the clock of the queue; empty if it has no date or never comes."""
        if self.queue.now_s < _DATED_S or not math.isfinite(after_s):
            return ""
        return datetime.fromtimestamp(round(self.queue.now_s + after_s), UTC).replace(tzinfo=None).isoformat()

    def _row(self, forecast: StartForecast) -> Row:
        job = forecast.job
        return {
            **_job(job),
            **{f"start_{name}": _finite(forecast.start(share)) for name, share in SHARES},
            **{f"end_{name}": _finite(forecast.end(share)) for name, share in SHARES},
            "start_at": self.moment(forecast.start()),
            "end_at": self.moment(forecast.end()),
            "scheduler_start_s": _finite(job.planned_start_s - self.queue.now_s),
            "start_error_s": _finite(forecast.sampling_error()),
            "length_from": forecast.source,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a plain dict. A time that never comes, or is unknown, is None."""
        return {
            "now": self.moment(0.0),
            "scheduler": self.queue.scheduler,
            "devices": self.queue.nodes.total,
            "running": len(self.queue.running),
            "waiting": len(self.queue.waiting),
            "jobs": [
                {
                    **dict(row),
                    **_preemptions(self.preemptions.of(str(row["name"]))),
                    "why": list(self.reasons.get(str(row["name"]), ())),
                }
                for row in self.rows()
            ],
            "running_jobs_preempted": [
                {"name": job.name, **_preemptions(found)}
                for job in self.queue.running
                if (found := self.preemptions.of(job.name)).stopped
            ],
            "held": [{**_job(job), "reason": job.reason} for job in self.queue.held],
            "skipped": [
                {"place": row.place, "name": row.name, "reason": row.reason, "detail": row.detail} for row in self.queue.skipped
            ],
            "remarks": list(self.queue.remarks),
            "sooner": [
                {
                    "change": each.change,
                    "remark": each.remark,
                    **{f"start_{name}": _finite(each.forecast.start(share)) for name, share in SHARES},
                    **{f"end_{name}": _finite(each.forecast.end(share)) for name, share in SHARES},
                }
                for each in self.sooner
            ],
            "range": {"probability": round(HIGH - LOW, 3), "inside": self.checked[0], "checked": self.checked[1]},
            "futures": self.futures,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
        }

    def metrics(self) -> str:
        """Return the forecast in Prometheus' text format, version 0.0.4. A time that never comes is +Inf."""
        lines = [
            "# HELP paceline_queue_jobs Jobs of the queue by state.",
            "# TYPE paceline_queue_jobs gauge",
            f'paceline_queue_jobs{{state="running"}} {len(self.queue.running)}',
            f'paceline_queue_jobs{{state="waiting"}} {len(self.queue.waiting)}',
            f'paceline_queue_jobs{{state="held"}} {len(self.queue.held)}',
            "# HELP paceline_queue_devices Devices of the cluster.",
            "# TYPE paceline_queue_devices gauge",
            f"paceline_queue_devices {self.queue.nodes.total}",
            "# HELP paceline_queue_time_seconds Time at which the queue was printed.",
            "# TYPE paceline_queue_time_seconds gauge",
            f"paceline_queue_time_seconds {self.queue.now_s:.0f}",
        ]
        for what, of in (("start", StartForecast.start), ("end", StartForecast.end)):
            name = f"paceline_job_{what}_seconds"
            lines += [f"# HELP {name} Expected {what} of a waiting job after the present, by quantile.", f"# TYPE {name} gauge"]
            for forecast in self.jobs:
                job = forecast.job
                labels = f'job="{_label(job.name)}",user="{_label(job.user)}",queue="{_label(job.queue)}"'
                for share in (LOW, 0.5, HIGH):
                    value = of(forecast, share)
                    lines.append(
                        f'{name}{{{labels},quantile="{share:g}"}} {value:.0f}'
                        if math.isfinite(value)
                        else f'{name}{{{labels},quantile="{share:g}"}} +Inf'
                    )
        return "\n".join(lines) + "\n"


def _job(job: LoggedJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "title": job.title,
        "user": job.user,
        "queue": job.queue,
        "devices": job.devices,
        "slice": job.profile or None,
        "nodes": job.nodes,
        "limit_s": job.limit_s or None,
    }


def _preemptions(found: JobPreemptions) -> dict[str, Any]:
    """Return the preemptions of a job, as shares of the futures."""
    return {
        "starts_by_preemption": round(found.starts, 3),
        "preempts": [{"name": name, "share": round(share, 3)} for name, share in found.victims],
        "preempted": round(found.stopped, 3),
        "preempted_by": [{"name": name, "share": round(share, 3)} for name, share in found.stoppers],
    }


def _finite(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
