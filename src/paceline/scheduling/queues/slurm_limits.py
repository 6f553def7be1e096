"""Limits of Slurm that bind a job: those of its QOS, its user's association, the accounts above it, and its partition.

Slurm 25.05, resource_limits.html. A QOS comes before associations, and that of the partition before that of the job. The first
of them that states a limit counts. Limits of groups (``Grp*``) of associations bind at every level of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from paceline.errors import shorten
from paceline.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """Bounds on devices. None: no bound; 0: no job starts.

    Attributes:
        max_devices: most devices of the running jobs (``GrpTRES``).
        max_devices_per_job: ``MaxTRES``. ``max_devices_per_user``: ``MaxTRESPU``. ``max_devices_per_account``: ``MaxTRESPA``.
    """

    max_devices: int | None = None
    max_devices_per_job: int | None = None
    max_devices_per_user: int | None = None
    max_devices_per_account: int | None = None


@dataclass(frozen=True, kw_only=True)
class Limits(DeviceLimits):
    """Limits of an account, of a user in an account, or of a QOS. A limit per user or per account counts within the holder.

    Attributes:
        max_jobs: most running jobs (``GrpJobs``).
        max_jobs_per_user: ``MaxJobs`` of an account or user, ``MaxJobsPU`` of a QOS. ``max_jobs_per_account``: ``MaxJobsPA``.
        max_limit_s: longest time limit of a job (``MaxWall``); 0: no bound.
        max_submitted, max_submitted_per_user, max_submitted_per_account: the same of waiting and running jobs (``GrpSubmit``,
            ``MaxSubmit``, ``MaxSubmitPU``, ``MaxSubmitPA``).
        of_type: bounds on devices of one type (``gres/gpu:a100``).
        of_resource: bounds on other resources, by their names in ``RESOURCES``.
    """

    max_jobs: int | None = None
    max_jobs_per_user: int | None = None
    max_jobs_per_account: int | None = None
    max_submitted: int | None = None
    max_submitted_per_user: int | None = None
    max_submitted_per_account: int | None = None
    max_limit_s: float = 0.0
    of_type: Mapping[str, DeviceLimits] = field(default_factory=dict)
    of_resource: Mapping[str, DeviceLimits] = field(default_factory=dict)


DEVICES = "devices"
"""Amount of a job that GPU minutes multiply: its devices."""
RESOURCES: Mapping[str, tuple[str, float, str]] = {
    "cpu": ("processors", 1.0, "cpu"),
    "mem": ("GiB of memory", 2.0**30, "mem"),
    "node": ("nodes", 1.0, "node"),
    "gpu_minutes": ("GPU minutes", 1.0, DEVICES),
    "cpu_minutes": ("processor minutes", 1.0, "cpu"),
    "node_minutes": ("node minutes", 1.0, "node"),
}
"""Resources besides devices: word, size of its unit, and what a job states of it.

Minutes are those until the time limit of a job, times its devices, processors or nodes (``GrpTRESRunMins``, ``MaxTRESMins``).
"""
MINUTES = "_minutes"
UNLIMITED_S = 365 * 86_400.0
"""Time limit of a job without one, as Slurm plans it: one year."""


def amount_of(
    resource: str, devices: int, left_s: float, stated: Mapping[str, float] | Sequence[tuple[str, float]]
) -> float | None:
    """Return how much of a resource a job asks for or holds; None if it does not state it.

    Args:
        left_s: time until its limit; 0: it has none. ``stated``: its processors, bytes of memory and nodes.
    """
    base = RESOURCES[resource][2]
    amount = float(devices) if base == DEVICES else dict(stated).get(base)
    if amount is None or not resource.endswith(MINUTES):
        return amount
    return amount * (left_s or UNLIMITED_S) / 60.0


Scope = tuple[str, ...]
"""Holder of a limit, with the user or the account if it counts for each: ``("qos", "high", "user", "ann")``."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Most devices or jobs of a scope.

    Attributes:
        what: ``devices`` or ``jobs`` that run at a time, ``job`` for the devices of one job, ``seconds`` for its time limit,
            ``submitted`` for jobs that wait or run.
        device_type: type of the devices; empty: all. ``resource``: another resource that is counted instead.
    """

    scope: Scope
    what: str
    most: float
    device_type: str = ""
    resource: str = ""

    def asked(self, devices: int, limit_s: float, stated: Mapping[str, float] | Sequence[tuple[str, float]]) -> float | None:
        """Return how much a waiting job asks for of what is bounded; None if it does not state it."""
        if self.resource:
            return amount_of(self.resource, devices, limit_s, stated)
        return {"seconds": limit_s, "jobs": 1.0, "submitted": 1.0}.get(self.what, float(devices))

    def text(self, used: float, asked: float) -> str:
        """Return why a job waits: ``used`` devices or jobs are counted, and it asks for ``asked``."""
        if self.what == "devices":
            return f"{self._may()}: {self._number(used)} were held, and it asks for {self._number(asked)}"
        return f"{self._may()}: {used:,.0f} ran" if self.what == "jobs" else self.text_alone(asked)

    def text_alone(self, asked: float) -> str:
        """Return why a job that asks for ``asked`` devices never starts."""
        if self.what == "seconds":
            return f"its time limit is longer than {self._may()}"
        return (
            self._may()
            if self.what in ("jobs", "submitted")
            else f"it asks for {self._number(asked)} {self._unit}, and {self._may()}"
        )

    @property
    def _unit(self) -> str:
        return RESOURCES[self.resource][0] if self.resource else "devices"

    def _number(self, amount: float) -> str:
        return f"{amount / (RESOURCES[self.resource][1] if self.resource else 1.0):,.0f}"

    def _may(self) -> str:
        kind = f"{self.device_type} devices" if self.device_type else self._unit
        holder = scope_text(self.scope)
        if self.what == "seconds":
            return f"the {format_seconds(self.most)} that {holder} allows"
        if self.what == "jobs":
            return f"{holder} may run {self.most:,} jobs"
        if self.what == "submitted":
            return f"{holder} may have {self.most:,} jobs in the queue"
        return f"{'a job of ' * (self.what == 'job')}{holder} may hold {self._number(self.most)} {kind}"


def scope_text(scope: Scope) -> str:
    """Return a scope in words: ``user ann of QOS high``."""
    names = {"qos": "QOS", "cluster": "the cluster"}
    pairs = [f"{names.get(kind, kind)} {shorten(name, 40)}".strip() for kind, name in zip(scope[::2], scope[1::2], strict=True)]
    return " of ".join(reversed(pairs))


@dataclass(frozen=True)
class JobBounds:
    """Bounds of jobs of one user, account, partition and QOS.

    Attributes:
        scopes: scopes in which such a job counts. ``bounds``: bounds that it must keep.
        submits: bounds on the jobs that wait or run, which it must keep when it comes.
        most_s: longest time limit; 0: no bound.
    """

    scopes: tuple[Scope, ...]
    bounds: tuple[Bound, ...]
    submits: tuple[Bound, ...] = ()

    @property
    def most_s(self) -> float:
        """Longest time limit that a job may have; 0: no bound."""
        return min((bound.most for bound in self.bounds if bound.what == "seconds"), default=0.0)


Level = tuple[Scope, Limits]


def job_bounds(qualities: Sequence[Level], associations: Sequence[Level], user: str, account: str) -> JobBounds:
    """Return the bounds of a job.

    Args:
        qualities: qualities of service of its partition and its own, the first that counts first.
        associations: its user's association, its account, and the accounts above, up to the root.
    """
    levels = [*qualities, *associations]
    types = dict.fromkeys(("type", kind) for _, limits in levels for kind in limits.of_type)
    resources = dict.fromkeys(("resource", name) for _, limits in levels for name in limits.of_resource)
    bounds = [*_job_counts(qualities, associations, user, account, "jobs")]
    for kind in (("type", ""), *types, *resources):
        parts = [[(scope, _of_kind(limits, *kind)) for scope, limits in part] for part in (qualities, associations)]
        bounds += _device_counts(parts[0], parts[1], user, account, kind)
    for scope, limits in levels:
        if limits.max_limit_s:
            bounds.append(Bound(scope, "seconds", limits.max_limit_s))
            break
    submits = tuple(_job_counts(qualities, associations, user, account, "submitted"))
    return JobBounds(tuple(dict.fromkeys(_counted(qualities, associations, user, account))), tuple(bounds), submits)


def _counted(qualities: Sequence[Level], associations: Sequence[Level], user: str, account: str) -> Iterator[Scope]:
    """Yield the scopes in which a job counts and some limit binds, of this job or of others."""
    for scope, limits in qualities:
        every = (limits, *limits.of_type.values(), *limits.of_resource.values())
        if limits.max_jobs is not None or any(each.max_devices is not None for each in every):
            yield scope
        if limits.max_jobs_per_user is not None or any(each.max_devices_per_user is not None for each in every):
            yield (*scope, "user", user)
        if limits.max_jobs_per_account is not None or any(each.max_devices_per_account is not None for each in every):
            yield (*scope, "account", account)
    for place, (scope, limits) in enumerate(associations):
        handed_down = not place and any(each.max_jobs_per_user is not None for _, each in associations)
        devices = any(each.max_devices is not None for each in (limits, *limits.of_type.values(), *limits.of_resource.values()))
        if limits.max_jobs is not None or devices or handed_down:
            yield scope


def _of_kind(limits: Limits, what: str, name: str) -> DeviceLimits:
    """Return the limits on all devices, on those of a type, or on another resource."""
    if not name:
        return limits
    return (limits.of_type if what == "type" else limits.of_resource).get(name, _NO_LIMITS)


_NO_LIMITS = DeviceLimits()


def _job_counts(
    qualities: Sequence[Level], associations: Sequence[Level], user: str, account: str, what: str
) -> Iterator[Bound]:
    """Yield the bounds on the number of jobs that run, or of those that wait or run (``submitted``)."""

    def stated(levels: Sequence[Level], per: str = "") -> list[tuple[Scope, int]]:
        found = [(scope, getattr(limits, f"max_{what}{per}")) for scope, limits in levels]
        return [(scope, most) for scope, most in found if most is not None]

    yield from [Bound(scope, what, most) for scope, most in stated(qualities)[:1] or stated(associations)]
    each = [Bound((*scope, "user", user), what, most) for scope, most in stated(qualities, "_per_user")]
    # an account hands its limit down to its users, each of whom has it for himself
    each += [Bound(associations[0][0], what, most) for _, most in stated(associations, "_per_user")]
    yield from each[:1]
    yield from [Bound((*scope, "account", account), what, most) for scope, most in stated(qualities, "_per_account")][:1]


def _device_counts(
    qualities: Sequence[tuple[Scope, DeviceLimits]],
    associations: Sequence[tuple[Scope, DeviceLimits]],
    user: str,
    account: str,
    kind: tuple[str, str],
) -> Iterator[Bound]:
    """Yield the bounds on devices of a type, or on another resource."""
    of = ("", kind[1]) if kind[0] == "resource" else (kind[1], "")
    groups = [
        Bound(scope, "devices", limits.max_devices, *of) for scope, limits in qualities if limits.max_devices is not None
    ][:1]
    yield from groups or (
        Bound(scope, "devices", limits.max_devices, *of) for scope, limits in associations if limits.max_devices is not None
    )
    yield from [
        Bound(scope, "job", limits.max_devices_per_job, *of)
        for scope, limits in (*qualities, *associations)
        if limits.max_devices_per_job is not None
    ][:1]
    for name, most_of in (("user", "max_devices_per_user"), ("account", "max_devices_per_account")):
        yield from [
            Bound((*scope, name, user if name == "user" else account), "devices", most, *of)
            for scope, limits in qualities
            if (most := getattr(limits, most_of)) is not None
        ][:1]


def is_bounded(limits: Limits) -> bool:
    """Return whether any limit is stated."""
    stated = any(getattr(limits, each.name) is not None for each in fields(DeviceLimits))
    jobs = (limits.max_jobs, limits.max_jobs_per_user, limits.max_jobs_per_account)
    other = limits.max_limit_s or limits.of_type or limits.of_resource
    return stated or any(each is not None for each in jobs) or bool(other)


def bounds_submits(limits: Limits) -> bool:
    """Return whether any limit on the jobs that wait or run is stated."""
    submits = (limits.max_submitted, limits.max_submitted_per_user, limits.max_submitted_per_account)
    return any(each is not None for each in submits)
