"""Start and end of each waiting job, from many futures of the queue under its scheduler's rule.

A future draws the length of each job from its distribution, given how long it has run, and the jobs still to come from the
history. Draws are stratified, and correlated between jobs of one owner and between all jobs: the sum of many lengths is less
certain than independent lengths would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.starts.arrivals import Arrivals, Dependents, merged, predecessors
from paceline.scheduling.starts.backfill import UNLIMITED_S, Shape, ShapeOnNodes
from paceline.scheduling.starts.future import Coming, JobTable, starts_of_many
from paceline.scheduling.starts.lengths import LengthDistribution, LengthModel
from paceline.scheduling.starts.policy_futures import Progress, futures_under_policy
from paceline.scheduling.starts.preemptions import Preemptions
from paceline.scheduling.starts.queue_nodes import QueueNodes, guessed_placements
from paceline.scheduling.starts.waiting_queue import WaitingQueue, start_order
from paceline.scheduling.traces.record import LoggedJob

FUTURES = 64
"""Futures of a forecast."""
POLICY_FUTURES = 32
"""Most futures under a policy with the settings of the scheduler, which takes longer."""
FEW_FUTURES, FEW_POLICY_FUTURES = 8, 2
"""Futures that tell how far ahead jobs to come matter, and the same under a policy."""
LOW, HIGH = 0.1, 0.9
"""Probabilities at the ends of the 80 % range."""
DEPTH = 16
"""Number of waiting jobs for which nodes are reserved in a future. Slurm's 500 take 20 times longer."""
DEPTH_OF_DEVICES = 500
"""The same if no job names nodes, so that devices of one type are equal: Slurm's default ``bf_max_job_test``."""


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """Choices of a forecast.

    Attributes:
        futures: number of simulated futures; 0: ``FUTURES``, or ``POLICY_FUTURES``. ``seed``: seed of their draws.
        arrivals: whether jobs still to come are drawn from the history.
        depth: number of waiting jobs for which devices are reserved; 0: ``DEPTH``, or ``DEPTH_OF_DEVICES`` if no job names
            nodes.
        lengths: ``model``, or ``limits``: every job runs to its limit, as Slurm expects.
    """

    futures: int = 0
    seed: int = 0
    arrivals: bool = True
    depth: int = 0
    lengths: str = "model"


@dataclass(frozen=True)
class StartForecast:
    """Forecast of one waiting job, in seconds after the present.

    Attributes:
        start_s: start in each future; inf: later than the simulation looks. ``length_s``: time from start to end in each.
        source: what its length is from.
    """

    job: LoggedJob
    start_s: Array
    length_s: Array
    source: str = ""

    def start(self, share: float = 0.5) -> float:
        """Return the start that it precedes with a probability."""
        return _quantile(self.start_s, share)

    def end(self, share: float = 0.5) -> float:
        """Return the end that it precedes with a probability."""
        return _quantile(self.start_s + self.length_s, share)

    def sampling_error(self) -> float:
        """Return the standard error of the median start from the number of futures, by the order statistics around it.

        The rank of the median in a sample of n is binomial, with standard deviation sqrt(n) / 2 (David and Nagaraja, "Order
        statistics", 2003, section 7.1).
        """
        half = 0.5 / math.sqrt(len(self.start_s))
        low, high = self.start(max(0.5 - half, 0.0)), self.start(min(0.5 + half, 1.0))
        return (high - low) / 2 if math.isfinite(high) else math.inf


@dataclass(frozen=True)
class QueueForecast:
    """Forecasts of all waiting jobs of a queue, the next one first."""

    queue: WaitingQueue
    jobs: tuple[StartForecast, ...]
    options: ForecastOptions
    notes: tuple[str, ...] = ()
    preemptions: Preemptions = field(default_factory=Preemptions)

    def of(self, name: str) -> StartForecast:
        """Return the forecast of a job by its name."""
        return next(forecast for forecast in self.jobs if forecast.job.name == name)


class Forecaster:
    """Queue with the lengths of its jobs, which forecasts it and variants of it on the same draws.

    Args:
        predicted: length of a job from its command line, by name.
        progress: callback that receives the number of futures that are done, and of all.
        stretched: correction of a forecast by what the past of the queue shows.

    Attributes:
        reasons: the policy's reason why a job waits at present, by name; empty without a policy.
    """

    def __init__(
        self,
        queue: WaitingQueue,
        options: ForecastOptions | None = None,
        model: LengthModel | None = None,
        predicted: Mapping[str, LengthDistribution] | None = None,
        progress: Progress | None = None,
        stretched: Callable[[StartForecast], StartForecast] | None = None,
    ) -> None:
        self._stretched = stretched
        given = options or ForecastOptions()
        usual = FUTURES if queue.cluster is None else POLICY_FUTURES
        self.options, self._given = replace(given, futures=given.futures or usual), given.futures
        self.progress = progress
        self.reasons: dict[str, str] = {}
        self.by_node = any(job.nodes and job.devices > 1 for job in (*queue.running, *queue.waiting))
        keeps_nodes = self.by_node or queue.cluster is not None
        self.queue = queue if keeps_nodes else replace(queue, nodes=queue.nodes.joined())
        self.model = model or LengthModel.of(queue.history, queue.running)
        self.predicted = predicted or {}
        past = (*queue.history, *queue.running, *queue.waiting)
        self.arrivals = Arrivals.of(past if self.options.arrivals else (), queue.now_s)
        self._placements = guessed_placements(self.queue.nodes, queue.running)
        self._lengths: dict[str, Array] = {}
        self._left_s: dict[str, float] = {}
        self._factors = _Factors(self.options)
        self._coming, self._past = self._jobs_to_come()

    def forecast(self, targets: Sequence[LoggedJob] = (), queue: WaitingQueue | None = None) -> QueueForecast:
        """Return the forecasts of waiting jobs; of all of them without ``targets``.

        Args:
            queue: variant of the queue with other waiting jobs.
        """
        chosen = self.queue if queue is None else replace(queue, nodes=self.queue.nodes)
        found = self._forecast(targets, chosen, self.options.futures)
        return replace(found, jobs=tuple(map(self._stretched, found.jobs))) if self._stretched else found

    def _forecast(self, targets: Sequence[LoggedJob], chosen: WaitingQueue, futures: int) -> QueueForecast:
        """Return the forecasts from the first ones of the futures."""
        asked = [job.name for job in targets or chosen.waiting]
        if not asked:
            return QueueForecast(chosen, (), self.options, self.notes())
        names = {job.name: index for index, job in enumerate(chosen.waiting, start=len(chosen.running))}
        rows = [names[name] for name in asked]
        jobs = [*chosen.running, *chosen.waiting, *self._past]
        lengths = np.column_stack([self._drawn(job)[:futures] for job in jobs])
        present = len(chosen.running) + len(chosen.waiting)
        later = self._later(chosen)
        coming = [merged(later, (moments, rows + present)) for moments, rows in self._coming[:futures]]
        starts, spans, preemptions = self._with_dependents(chosen, jobs, lengths, coming, rows)
        forecasts = tuple(
            StartForecast(jobs[row], starts[:, at], spans[:, at], self.distribution(jobs[row]).source)
            for at, row in enumerate(rows)
        )
        return QueueForecast(chosen, forecasts, self.options, self.notes(), preemptions)

    def _with_dependents(
        self, queue: WaitingQueue, jobs: Sequence[LoggedJob], lengths: Array, coming: Sequence[Coming], rows: Sequence[int]
    ) -> tuple[Array, Array, Preemptions]:
        """Return what ``_simulated`` does, where jobs may wait for others."""
        present = [*queue.running, *queue.waiting]
        after = {
            row: found
            for row, job in enumerate(queue.waiting, start=len(queue.running))
            if job.after and (found := predecessors(job, present)) is not None
        }
        if not after:
            return self._simulated(queue, jobs, lengths, coming, rows)
        left = {row: np.maximum(lengths[:, row] - max(job.run_s, 0.0), 1.0) for row, job in enumerate(queue.running)}
        last = [Preemptions()]

        def simulate(added: Sequence[Coming], asked: Sequence[int]) -> tuple[Array, Array]:
            starts, spans, last[0] = self._simulated(queue, jobs, lengths, added, asked)
            return starts, spans

        starts, spans = Dependents(after, left).simulated(simulate, coming, rows)
        return starts, spans, last[0]

    def _simulated(
        self, queue: WaitingQueue, jobs: Sequence[LoggedJob], lengths: Array, coming: Sequence[Coming], rows: Sequence[int]
    ) -> tuple[Array, Array, Preemptions]:
        """Return the start of jobs in each future, the time from there to the end, and the preemptions."""
        if queue.cluster is None:
            return starts_of_many(self._table(queue, jobs), lengths, coming, rows), lengths[:, rows], Preemptions()
        found = futures_under_policy(
            queue.cluster, jobs, self._placements, queue.now_s, lengths, coming, rows, queue.blocked, self.progress
        )
        self.reasons |= {jobs[row].name: why for row, why in found.reasons.items()}
        present = len(queue.running) + len(queue.waiting)
        return found.start_s, found.length_s, Preemptions(found.preemptions.of(jobs, present))

    def _later(self, queue: WaitingQueue) -> tuple[Array, Ints]:
        """Return when jobs that wait for a time may start, and their rows."""
        found = [
            (job.eligible_s - queue.now_s, row)
            for row, job in enumerate(queue.waiting, start=len(queue.running))
            if job.eligible_s > queue.now_s and not job.after
        ]
        found.sort()
        return np.array([moment for moment, _ in found], float), np.array([row for _, row in found], np.int64)

    def _jobs_to_come(self) -> tuple[list[tuple[Array, Ints]], list[LoggedJob]]:
        """Return arrivals and rows of the jobs to come in each future, and these jobs.

        None comes after twice the time at which, without any, all waiting jobs have started in each of a few futures.
        """
        none = [(np.zeros(0), np.zeros(0, np.int64)) for _ in range(self.options.futures)]
        if not self.arrivals or not self.queue.waiting:
            return none, []
        self._coming, self._past = none, []
        few = FEW_FUTURES if self.queue.cluster is None else FEW_POLICY_FUTURES
        starts = np.concatenate([found.start_s for found in self._forecast((), self.queue, few).jobs])
        horizon_s = 2 * float(starts[np.isfinite(starts)].max(initial=3600.0))
        drawn = self.arrivals.draw(self.options.futures, self.options.seed, horizon_s)
        if self.queue.cluster is not None and not self._given:
            arriving = float(np.mean([len(moments) for moments, _ in drawn]))
            futures = _affordable(len(self.queue.running) + len(self.queue.waiting) + arriving)
            if futures < self.options.futures:
                self.options = replace(self.options, futures=futures)
                self._factors, self._lengths = _Factors(self.options), {}
                drawn = self.arrivals.draw(futures, self.options.seed, horizon_s)
        used, rows = np.unique(np.concatenate([rows for _, rows in drawn]), return_inverse=True)
        ends = np.cumsum([len(moments) for moments, _ in drawn])
        parts = np.split(rows, ends[:-1])
        coming = [(moments, part.astype(np.int64)) for (moments, _), part in zip(drawn, parts, strict=True)]
        past = [self.arrivals.jobs[row] for row in used.tolist()]
        # the priorities that Slurm prints contain the age
        fresh: dict[str, float] = {"priority": 0.0} if self.queue.scheduler == "slurm" else {}
        now_s = self.queue.now_s
        return coming, [replace(job, submit_s=now_s, array="", throttle=0, after=(), **fresh) for job in past]

    def variant(self, job: LoggedJob, changed: LoggedJob, length: LengthDistribution) -> StartForecast:
        """Return the forecast of a waiting job with other properties, on the same draws.

        Args:
            length: length of the changed job.
        """
        self._lengths[_key(changed)] = length.capped(changed.limit_s).quantile(self._factors.shares(job, self.model))
        waiting = [other for other in self.queue.waiting if other.name != job.name]
        queue = replace(self.queue, waiting=tuple(sorted((*waiting, changed), key=start_order)))
        return self.forecast([changed], queue).jobs[0]

    def distribution(self, job: LoggedJob) -> LengthDistribution:
        """Return the distribution of a job's whole length."""
        if self.options.lengths == "limits":
            limit_s = job.limit_s or UNLIMITED_S
            return LengthDistribution(np.array([limit_s]), np.ones(1), "its limit")
        return self.model.distribution(job, self.predicted.get(job.name))

    def expected_left(self, job: LoggedJob) -> float:
        """Return the median of the seconds that a running job still runs."""
        if job.name not in self._left_s:
            self._left_s[job.name] = max(float(np.median(self._drawn(job))) - max(job.run_s, 0.0), 0.0)
        return self._left_s[job.name]

    def notes(self) -> tuple[str, ...]:
        """Return sentences on what the forecast assumes."""
        found = list(self.queue.notes)
        if self.options.arrivals and not self.arrivals and self.queue.history:
            found.append("The history is too short to draw the jobs still to come: none come.")
        return tuple(found)

    def _drawn(self, job: LoggedJob) -> Array:
        """Return the length of a job in each future. A job to come that ended when it came before has the same length again."""
        if job.state == "ended":
            return np.full(self.options.futures, job.run_s)
        key = _key(job)
        if key not in self._lengths:
            found = self.distribution(job)
            elapsed = job.run_s if job.state == "running" and job.run_s > 0 else 0.0
            if elapsed:
                found = found.after(elapsed, job.limit_s).capped(max(job.limit_s, elapsed + 60.0) if job.limit_s else 0.0)
            self._lengths[key] = found.quantile(self._factors.shares(job, self.model))
        return self._lengths[key]

    def _depth(self) -> int:
        """Return the number of waiting jobs for which devices are reserved. Kueue and Ray reserve none: what fits starts."""
        if self.queue.scheduler != "slurm":
            return 0
        return self.options.depth or (DEPTH if self.by_node else DEPTH_OF_DEVICES)

    def _table(self, queue: WaitingQueue, jobs: Sequence[LoggedJob]) -> JobTable:
        free = queue.nodes.devices.copy()
        for placement in self._placements:
            for node, count in placement:
                free[node] -= count
        free = np.maximum(free, 0)
        shapes: dict[Shape, int] = {}
        pools: dict[tuple[str, tuple[str, ...], str], tuple[int, ...]] = {}
        shape_of, array_of = [], []
        arrays: dict[str, int] = {}
        for job in jobs:
            key = (job.queue, job.device_types, job.profile)
            if key not in pools:
                pools[key] = queue.nodes.pool(job)
            array_of.append(arrays.setdefault(job.array, len(arrays)) if job.throttle else -1)
            shape_of.append(shapes.setdefault(_fitting_shape(job, pools[key], queue.nodes), len(shapes)))
        return JobTable(
            free=free,
            shapes=tuple(map(ShapeOnNodes, shapes)),
            shape_of=tuple(shape_of),
            limit_s=tuple(job.limit_s or UNLIMITED_S for job in jobs),
            ran_s=tuple(job.run_s if job.state == "running" and job.run_s > 0 else 0.0 for job in jobs),
            held=tuple(self._placements[index] if index < len(queue.running) else () for index in range(len(jobs))),
            priority=tuple(-start_order(job)[0] for job in jobs),
            submit_s=tuple(start_order(job)[1] - queue.now_s for job in jobs),
            waiting=tuple(
                row
                for row, job in enumerate(queue.waiting, start=len(queue.running))
                if not job.eligible_s > queue.now_s and not job.after
            ),
            depth=self._depth(),
            array_of=tuple(array_of),
            throttle=tuple({job.array: job.throttle for job in jobs if job.throttle}.values()),
        )


def _affordable(jobs: float) -> int:
    """Return the number of futures under a policy, by the jobs of one. Its time grows with their square.

    It is ``POLICY_FUTURES`` up to 300 jobs, and never below 8.
    """
    return max(FEW_FUTURES, min(POLICY_FUTURES, int(POLICY_FUTURES * (300.0 / max(jobs, 1.0)) ** 2)))


def _key(job: LoggedJob) -> str:
    """Return the key of a job's drawn lengths."""
    return f"{job.name}|{job.devices}|{job.limit_s}|{job.device_types}"


def _fitting_shape(job: LoggedJob, pool: tuple[int, ...], nodes: QueueNodes) -> Shape:
    """Return the shape of a job, whose devices are of one type. Stated nodes that could never hold it are ignored."""
    count = max(job.devices, 1)
    if job.nodes and count >= job.nodes:
        per_node = -(-count // job.nodes)
        if sum(int(nodes.devices[node]) >= per_node for node in pool) >= job.nodes:
            return Shape(pool, count, job.nodes)
    if len({nodes.types[node] for node in pool}) > 1:
        return Shape(
            pool, count, next(number for number in range(1, count + 1) if _holds(nodes, pool, -(-count // number), number))
        )
    return Shape(pool, count)


def _holds(nodes: QueueNodes, pool: tuple[int, ...], per_node: int, number: int) -> bool:
    """Return whether enough nodes of one type have that many devices; True for one device, which ends a search."""
    kinds = [nodes.types[node] for node in pool if nodes.devices[node] >= per_node]
    return per_node == 1 or any(kinds.count(kind) >= number for kind in set(kinds))


class _Factors:
    """Uniform draws of each job in all futures: each is stratified, and jobs share factors of the period and of their owner."""

    def __init__(self, options: ForecastOptions) -> None:
        self._futures, self._seed = options.futures, options.seed
        self._normal: dict[str, Array] = {}

    def shares(self, job: LoggedJob, model: LengthModel) -> Array:
        """Return the probabilities at which the length of a job is read from its distribution, of shape (futures,)."""
        from scipy.special import ndtr

        period, owner = model.correlation_period, model.correlation_owner
        owner = min(owner, 1.0 - period)
        factors = math.sqrt(period) * self._normals("period") + math.sqrt(owner) * self._normals(
            f"owner {job.user or job.queue}"
        )
        own = math.sqrt(max(1.0 - period - owner, 0.0)) * self._normals(f"job {job.name}")
        return np.asarray(ndtr(factors + own))

    def _normals(self, name: str) -> Array:
        """Return stratified normal numbers that depend on a name and the seed alone."""
        from scipy.special import ndtri

        if name not in self._normal:
            generator = np.random.default_rng([self._seed, *name.encode()])
            shares = (generator.permutation(self._futures) + generator.random(self._futures)) / self._futures
            self._normal[name] = np.asarray(ndtri(np.clip(shares, 1e-6, 1 - 1e-6)))
        return self._normal[name]


def _quantile(values: Array, share: float) -> float:
    """Return a quantile between order statistics; inf where the upper one is."""
    ordered = np.sort(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    if not math.isfinite(ordered[high]):
        return float(ordered[low] if at == low else math.inf)
    return float(ordered[low] + (at - low) * (ordered[high] - ordered[low]))
