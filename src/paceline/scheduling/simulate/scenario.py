"""Scenario of a simulation: jobs, nodes, the true speed of each job, and the knowledge of policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from paceline.errors import UserError, known_name
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import CHOICES, Choice, Job
from paceline.scheduling.policies.registry import POLICIES, check_types, configured, policy_named
from paceline.scheduling.policies.wrappers.ageing import OVERDUE, PATIENCE
from paceline.scheduling.policies.wrappers.early_stop import EarlyStop, stopping_early
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.queues.unknown_names import ignored_limits, unknown_names
from paceline.scheduling.simulate.fairness import alone_under, finish_time_fairness
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.replayed_log import ReplayedLog
from paceline.scheduling.simulate.run import DurationRun, JobRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.speeds.expected_speed import EstimatePool, MeasuredEstimate, OnlineEstimate, SpeedEstimate
from paceline.scheduling.speeds.predicted_jobs import Predictions
from paceline.scheduling.speeds.profiles import ModelProfile
from paceline.scheduling.state import Policy
from paceline.strategy.sharding import DDP

Knowledge = Literal["measured", "online", "predicted"]
"""Knowledge of policies about speeds and remaining work: the truth, what a job saw since it began, or a prediction."""
KNOWLEDGE: tuple[Knowledge, ...] = get_args(Knowledge)
FairnessRule = Literal["estimate", "alone"]
FAIRNESS: tuple[FairnessRule, ...] = get_args(FairnessRule)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Jobs on a cluster, before a policy is chosen.

    A job whose model has a profile runs as measured. Otherwise, a job whose model is a network runs as predicted. The others
    run for their duration.

    Attributes:
        jobs, fleet: jobs and nodes.
        profiles: measured profiles by model.
        knowledge: knowledge of the policies.
        settings: behaviour of the cluster.
        predictions: predictions of networks; None: no job can be predicted.
        stop_early: rule that ends a job that no longer learns; None: never.
        ageing: let no job starve under a named policy that could; False: the policy as published.
        fairness: ``estimate`` fairness from the devices that a job held, or simulate each job ``alone`` on its share.
        notes: remarks on the jobs.
        queues: settings of the policies ``slurm`` or ``kueue``; None: their defaults.
        log: log of a cluster that the jobs come from; None: they come from elsewhere.
    """

    jobs: tuple[Job, ...]
    fleet: Fleet
    profiles: Mapping[str, ModelProfile] = field(default_factory=dict)
    knowledge: Knowledge = "online"
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    predictions: Predictions | None = None
    stop_early: EarlyStop | None = None
    fairness: FairnessRule = "estimate"
    ageing: bool = True
    notes: tuple[str, ...] = ()
    log: ReplayedLog | None = None
    queues: SlurmSettings | KueueSettings | None = None

    def __post_init__(self) -> None:
        known_name("knowledge", self.knowledge, KNOWLEDGE)
        known_name("fairness", self.fairness, FAIRNESS)
        if self.knowledge == "predicted" and self.predictions is None:
            raise UserError("these jobs cannot be predicted", _MEASURED)
        if not self.jobs:
            raise UserError("no jobs", "give a trace with a row for each")

    def run(self, policy: str | Policy, progress: Callable[[float, int], None] | None = None) -> SimulatedSchedule:
        """Simulate the jobs under a policy, given by name or as a function.

        Args:
            progress: callback that receives the time and the number of jobs that have ended.

        Raises:
            UserError: an unknown policy, a policy for one device type on several, or a job of unknown speed or length.
        """
        if isinstance(policy, str):
            entry = policy_named(policy)
            name = next(name for name, other in POLICIES.items() if other is entry)
            decide = configured(name, self.queues, self.ageing)
            adapts, trusts = entry.adapts, entry.needs_lengths
            check_types(name, len(self.fleet.groups))
        else:
            name, decide, adapts, trusts = getattr(policy, "__name__", "policy"), policy, frozenset(CHOICES), False
        trusts = trusts or self.knowledge == "measured"
        kinds: Counter[str] = Counter()
        stated, jobs, makers = [], [], {}
        pool = self.predictions.pool(self.profiles) if self.predictions else None
        for given in self.jobs:
            kind, job, make = self._truth(given, pool, "strategy" in adapts, trusts)
            kinds[kind] += 1
            stated.append(replace(given, adapts=_RIGID) if kind == "duration" else given)
            jobs.append(replace(job, adapts=stated[-1].adapts & adapts))
            makers[given.name] = make
        if self.knowledge == "predicted" and kinds["duration"] == len(jobs):
            raise UserError("jobs that state only a duration cannot be predicted", _MEASURED)
        if self.stop_early is not None:
            self._check_reports(kinds)
        steered = decide if self.stop_early is None else stopping_early(decide, self.stop_early)
        schedule = simulate(jobs, self.fleet, steered, lambda job: makers[job.name](job), self.settings, progress)
        ratios = self._ratios(schedule, decide, "strategy" in adapts, trusts) if self.fairness == "alone" else None
        for outcome, job in zip(schedule.outcomes, stated, strict=True):
            outcome.job = job  # as its owner stated it, whatever this policy may choose
        return SimulatedSchedule(
            policy=name,
            schedule=schedule,
            settings=self.settings,
            adapts=adapts,
            knowledge=self.knowledge,
            ratios=ratios,
            log=self.log,
            notes=(
                *self.notes,
                *self._kinds(kinds),
                *self._remarks(name, kinds["duration"] if trusts else 0),
                *((*unknown_names(self.jobs, self.queues), *ignored_limits(self.queues)) if name in ("slurm", "kueue") else ()),
                *_aged(schedule),
            ),
        )

    def _remarks(self, policy: str, trusted: int) -> list[str]:
        """Return remarks on early stops, and on the number of jobs whose stated duration the policy takes as known."""
        remarks = [f"A job is ended when {self.stop_early}."] if self.stop_early else []
        if trusted and self.knowledge != "measured":
            jobs = "1 job states" if trusted == 1 else f"{trusted:,} jobs state"
            remarks.append(f"{policy} needs lengths: it takes the durations that {jobs} as known.")
        return remarks

    def _check_reports(self, kinds: Counter[str]) -> None:
        """Raise UserError for jobs without learning curves. Only measured profiles have them."""
        for kind, why in _UNREPORTED:
            if kinds[kind]:
                what = f"{kinds[kind]:,} of {len(self.jobs):,} jobs {why}, and nothing says how they learn"
                raise UserError(what, "leave `stop_early` out, or choose jobs of `profiles` that were measured")

    def _ratios(self, schedule: ClusterSchedule, decide: Policy, chooses: bool, trusts: bool) -> Mapping[str, float]:
        """Return the finish-time fairness of each job that ended, against a simulation of it alone under the same policy."""
        pool = self.predictions.pool(self.profiles) if self.predictions else None

        def run(job: Job, part: Fleet) -> JobRun:
            return replace(self, fleet=part)._truth(job, pool, chooses, trusts)[2](job)

        return finish_time_fairness(schedule, alone_under(decide, run, self.fleet, self.settings)).ratio

    def _truth(
        self, job: Job, pool: EstimatePool | None, chooses: bool, trusts: bool
    ) -> tuple[str, Job, Callable[[Job], JobRun]]:
        """Return the kind of a job, the job as policies see it, and the function that creates its run.

        Args:
            chooses: True if the policy changes strategies.
            trusts: True if the policy takes stated durations as known.
        """
        if job.model in self.profiles:
            return "profile", job, self._profiled(job, pool)
        if self.predictions is not None and self.predictions.knows(job.model) and _has_work(job):
            if job.strategy or "strategy" in job.adapts:
                planned = self.predictions.planned(job, chooses)
                return "strategy", planned.job, lambda job: planned.run(job, self.knowledge == "measured")
            stated, profile = self.predictions.profile(job)
            fitting = replace(job, device_types=tuple(profile.speeds))
            return "prediction", fitting, self._run_factory(profile, pool, stated.batch, DDP.name)
        if not job.duration_s:
            known = f"profiles: {', '.join(self.profiles)}" if self.profiles else "no profiles were given"
            what = f"no profile of {job.model!r}, and no duration" if job.model else "neither a model nor a duration"
            raise UserError(f"job {job.name!r}: {what} ({known})", "give its duration_s, or `profiles` that have it")
        return "duration", job, lambda job: DurationRun(job, trusts)

    def _profiled(self, job: Job, pool: EstimatePool | None) -> Callable[[Job], JobRun]:
        profile = self.profiles[job.model]
        if job.strategy or "strategy" in job.adapts:
            which = "was measured with one strategy"
            raise UserError(f"job {job.name!r} states or adapts a strategy, and its profile {which}", "leave it out")
        for name in ("steps", "samples", "epochs"):
            if getattr(job, name):
                whole = f"its profile trains for {profile.epochs.count} epochs"
                raise UserError(f"job {job.name!r} states {name}, and {whole}", f"leave {name} out, or give another model")
        if self.knowledge == "predicted" and not (self.predictions and self.predictions.knows(job.model)):
            raise UserError(f"job {job.name!r} runs by the profile {job.model!r}, which cannot be predicted", _MEASURED)
        for group in self.fleet.groups:
            if job.may_use(group.device):
                profile.speed(group.device)
        return self._run_factory(profile, pool, job.batch)

    def _run_factory(
        self, profile: ModelProfile, pool: EstimatePool | None, batch: int, strategy: str = ""
    ) -> Callable[[Job], JobRun]:
        """Return the function that creates the run of a job by its measured or predicted profile."""

        def make(job: Job) -> JobRun:
            beliefs: SpeedEstimate = OnlineEstimate()
            if self.knowledge == "measured":
                beliefs = MeasuredEstimate(profile)
            elif self.knowledge == "predicted" and pool is not None:
                beliefs = pool.of(profile.model)
            stated = replace(job, batch=batch) if batch else job
            known = self.knowledge == "measured" or _has_work(job)
            adapts = "batch" in job.adapts
            return ProfiledRun(
                stated, profile, self.fleet, adapts_batch=adapts, beliefs=beliefs, work_stated=known, strategy=strategy
            )

        return make

    def _kinds(self, kinds: Counter[str]) -> list[str]:
        elastic = kinds["duration"] and any(job.adapts and job.model not in self.profiles for job in self.jobs)
        texts = {
            "profile": "run as their profile was measured",
            "prediction": "run as predicted",
            "strategy": "run as predicted with the strategy that they state or that is best; policies believe these speeds",
            "duration": "run for their duration on the devices they ask for"
            + ("; without a profile none adapts" if elastic else ""),
        }
        return [f"{kinds[kind]:,} of {len(self.jobs):,} jobs {text}." for kind, text in texts.items() if kinds[kind]]


def _aged(schedule: ClusterSchedule) -> list[str]:
    """Return a remark on the jobs that were overdue; none if no job was."""
    overdue = sum(any(span.reason.startswith(OVERDUE) for span in outcome.spans) for outcome in schedule.outcomes)
    jobs = "1 job was" if overdue == 1 else f"{overdue:,} jobs were"
    rule = f"above {PATIENCE:g} times the mean time on devices so far, and above its own"
    return [f"{jobs} overdue, after a wait {rule}; overdue jobs come first."] if overdue else []


def _has_work(job: Job) -> bool:
    """Return whether the work of a job is stated other than by its duration."""
    return bool(job.samples or job.steps or job.epochs or job.target)


_UNREPORTED = (
    ("duration", "run for their duration"),
    ("prediction", "run as predicted"),
    ("strategy", "run as their strategy is predicted"),
)
_RIGID: frozenset[Choice] = frozenset()
_MEASURED = "choose `knowledge` online or measured"
