"""Preemptions in the futures of a queue: which jobs start by them, and which jobs lose their devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.scheduling.policies.backfill.slurm_preemption import may_preempt
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.simulate.schedule import JobOutcome
from paceline.scheduling.traces.record import LoggedJob

TO_COME = "a job to come"
"""Name of every job that is not in the queue yet."""


@dataclass(frozen=True)
class JobPreemptions:
    """Preemptions of one job, as shares of the futures.

    Attributes:
        starts: share in which its first start is by preemption. ``victims``: jobs that are stopped for it, the likeliest first.
        stopped: share in which it loses its devices. ``stoppers``: jobs for which it does, the likeliest first.
    """

    starts: float = 0.0
    victims: tuple[tuple[str, float], ...] = ()
    stopped: float = 0.0
    stoppers: tuple[tuple[str, float], ...] = ()


NONE = JobPreemptions()


class PreemptionCounts:
    """Preemptions of futures, by the rows of the jobs."""

    def __init__(self) -> None:
        self._futures = 0
        self._starts: Counter[int] = Counter()
        self._victims: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._stopped: Counter[int] = Counter()
        self._stoppers: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def add(self, outcomes: Mapping[str, JobOutcome]) -> None:
        """Count those of one future. The names of its jobs are their rows."""
        self._futures += 1
        starters = set()
        for name, outcome in outcomes.items():
            stoppers = {int(other) for _, other in outcome.preempted}
            self._stopped[int(name)] += bool(stoppers)
            self._stoppers[int(name)].update(stoppers)
            for time_s, other in outcome.preempted:
                started = outcomes[other].spans
                if started and time_s <= started[0].start_s:
                    self._victims[int(other)][int(name)] += 1
                    starters.add(int(other))
        self._starts.update(starters)

    def of(self, jobs: Sequence[LoggedJob], present: int) -> dict[str, JobPreemptions]:
        """Return the preemptions of each job that has any, by its name. ``present``: number of jobs that do not come later."""
        every = max(self._futures, 1)

        def shares(counts: Counter[int]) -> tuple[tuple[str, float], ...]:
            named: Counter[str] = Counter()
            for row, number in counts.items():
                named[jobs[row].name if row < present else TO_COME] += number
            return tuple((name, min(number / every, 1.0)) for name, number in named.most_common())

        rows = [row for row in {*self._starts, *self._stopped} if row < present and (self._starts[row] or self._stopped[row])]
        return {
            jobs[row].name: JobPreemptions(
                self._starts[row] / every,
                shares(self._victims[row]),
                self._stopped[row] / every,
                shares(self._stoppers[row]),
            )
            for row in sorted(rows)
        }


@dataclass(frozen=True)
class Preemptions:
    """Preemptions of a queue, by the names of its jobs. Jobs without any are missing."""

    of_job: Mapping[str, JobPreemptions] = field(default_factory=dict)

    def of(self, name: str) -> JobPreemptions:
        """Return those of a job."""
        return self.of_job.get(name, NONE)

    def starters(self, jobs: Iterable[LoggedJob]) -> list[str]:
        """Return a sentence for each job that starts by preemption."""
        return [f"{job.name} {text}" for job in jobs if (text := starts_text(self.of(job.name)))]

    def stopped(self, jobs: Iterable[LoggedJob]) -> list[str]:
        """Return a sentence for each job that may lose its devices."""
        return [f"{job.name} {text}" for job in jobs if (text := stopped_text(self.of(job.name)))]


FEW = 3
"""Most names in a sentence."""


def starts_text(found: JobPreemptions) -> str:
    """Return how a job starts by preemption, as the predicate of its name; empty if it does not."""
    if not found.starts:
        return ""
    return f"starts by preemption in {_futures(found.starts)}: it stops {_names(found.victims, found.starts)}"


def stopped_text(found: JobPreemptions) -> str:
    """Return how a job loses its devices, as the predicate of its name; empty if it does not."""
    if not found.stopped:
        return ""
    return f"is preempted in {_futures(found.stopped)}: {_names(found.stoppers, found.stopped)} takes its devices"


def _names(found: Sequence[tuple[str, float]], share: float) -> str:
    """Return names, each with its share of the futures if that is another one."""
    few = [name + (f" ({_percent(part)})" if part < share else "") for name, part in found[:FEW]]
    more = f" and {len(found) - FEW} more" if len(found) > FEW else ""
    return ", ".join(few[:-1]) + (" or " if few[:-1] and not more else ", " if more and few[:-1] else "") + few[-1] + more


def _percent(share: float) -> str:
    return f"{max(100 * share, 1):.0f} %"


def _futures(share: float) -> str:
    return "all futures" if share == 1 else f"{_percent(share)} of the futures"


def preemptable_text(job: LoggedJob, settings: SlurmSettings) -> str:
    """Return which jobs may preempt a job under the settings of Slurm, as a sentence; empty if none may."""
    own = settings.kind(job.account, job.user, job.queue.split(",")[0], job.qos)
    if settings.preempt == "qos":
        kinds = {name: settings.kind("", "", job.queue.split(",")[0], name) for name in settings.qos}
    else:
        kinds = {name: settings.kind("", "", name, "") for name in settings.partitions}
    found = [name for name, kind in kinds.items() if may_preempt(kind, own, settings)]
    if not found:
        return ""
    holder = "QOS" if settings.preempt == "qos" else f"partition{'s' * (len(found) > 1)}"
    return f"Jobs of {holder} {', '.join(found[:FEW])}{' and others' * (len(found) > FEW)} may preempt it."
