"""One or two clouds that lend to each other, exactly: the stationary Markov chain of their machines and queues.

It stands for the performance model of SC-Share (Lin, Pal, Paolieri, Golubchik, ICDCS 2017, arXiv 1703.10318), of which the
abstract was at hand, not the formulas. Assumed here: Poisson arrivals, exponential work, requests of one machine. A request
takes a machine of its own cloud, else one that the other may still lend, else it waits or goes to the public cloud. A freed
machine serves its own cloud's queue first. A machine that is lent comes back when its request ends.

When a request goes to the public cloud is one of three rules, since the paper's was not at hand. The expected wait behind k
requests is (k + 1) mean_s / machines: all own machines busy, nothing lent or borrowed, the next start after k + 1 ends.

- ``patience``: it waits, and leaves after an exponential time.
- ``expected``: it waits only where the expected wait is at most the allowed one. This bounds the queue by itself.
- ``probability``: it waits with the probability that the wait, Erlang of k + 1 stages, is at most the allowed one.

``simulation`` is tested against this chain with the first rule. The other two are tested against closed forms only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, gmres, spilu, splu
from scipy.special import gammainc

from paceline.array_types import Array
from paceline.errors import UserError, check_name, shown

TAIL = 1e-10
"""Probability of a queue beyond which it is cut."""
MOST_STATES = 200_000
MOST_DIRECT = 10_000
"""States whose balance is solved directly; beyond, by GMRES."""
FORWARDING = ("patience", "expected", "probability")
State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cloud:
    """A small cloud.

    Attributes:
        machines: its own. ``lends``: at a time at most.
        arrivals_per_s: of its requests. ``mean_s``: of a request's work.
        patience_s: that a request waits: on average before it leaves (rule ``patience``), or at most (the other rules).
            0: it never waits; infinite: for ever.
        forwards: the rule of ``FORWARDING`` by which a request goes to the public cloud.

    Raises:
        UserError: numbers of no use, or a queue that grows for ever.
    """

    machines: int
    lends: int
    arrivals_per_s: float
    mean_s: float
    patience_s: float = math.inf
    forwards: str = "patience"

    def __post_init__(self) -> None:
        if self.machines < 1 or not 0 <= self.lends <= self.machines:
            raise UserError(
                f"a cloud of {self.machines} machines that lends {self.lends}", "lend 0 to all of at least one machine"
            )
        for what, value in (("arrival rate", self.arrivals_per_s), ("mean time", self.mean_s)):
            if not 0 < value < math.inf:
                raise UserError(f"a cloud's {what} is {shown(value)}", "give a number above 0")
        if not self.patience_s >= 0:
            raise UserError(f"a cloud's patience is {shown(self.patience_s)}", "give seconds from 0 up")

        check_name("rule of forwarding", self.forwards, FORWARDING)

    def queues(self, ahead: int, devices: int = 1) -> float:
        """Probability that a request of some machines waits, where those ahead of it in the queue want ``ahead`` machines."""
        if self.patience_s == 0 or self.patience_s == math.inf or self.forwards == "patience":
            return float(self.patience_s > 0)
        allowed = self.patience_s * self.machines / self.mean_s
        if self.forwards == "expected":
            return float(ahead + devices <= allowed * (1 + 1e-9))
        return float(gammainc(ahead + devices, allowed))

    @property
    def leaves_per_s(self) -> float:
        """Rate at which each request that waits leaves."""
        return 1 / self.patience_s if self.forwards == "patience" and self.patience_s > 0 else 0.0

    @property
    def longest_queue(self) -> int:
        """Requests that wait at most, but for a probability of ``TAIL``, where nothing is lent.

        Raises:
            UserError: the queue grows for ever.
        """
        served = self.machines / self.mean_s
        if self.patience_s == math.inf and self.arrivals_per_s >= served:
            raise UserError("a cloud whose requests wait for ever has more work than its machines do", "give a patience")
        share, length = 1.0, 0
        while share > TAIL and (joins := self.queues(length)) > 0:
            length += 1
            share *= self.arrivals_per_s * joins / (served + length * self.leaves_per_s)
        return length


@dataclass(frozen=True)
class SharingFigures:
    """What becomes of clouds that share; arrays of shape (clouds,).

    Attributes:
        forwarded_per_s: requests a second that go to the public cloud. ``waiting``: mean number that wait.
        borrowed, lent: mean number of machines. ``utilisation``: mean part of the own machines that work, for anybody.
    """

    forwarded_per_s: Array
    waiting: Array
    borrowed: Array
    lent: Array
    utilisation: Array


def stationary(clouds: Sequence[Cloud]) -> SharingFigures:
    """The figures of one or two clouds.

    Queues that no rule bounds are cut where they are longer with a probability of less than about ``TAIL``.

    Raises:
        UserError: more than two clouds, a queue that grows for ever, or more than ``MOST_STATES`` states: simulate those.
    """
    if not 1 <= len(clouds) <= 2:
        raise UserError(f"{len(clouds)} clouds", "the chain is exact for one or two; simulate more")
    longest = [cloud.longest_queue for cloud in clouds]
    likely = tuple(n for cloud in clouds for n in (min(cloud.machines, int(cloud.arrivals_per_s * cloud.mean_s)), 0, 0))
    while True:
        order, generator = _generator(clouds, longest)
        share = _balance(generator, order.index(likely))
        table = np.array(order, float)
        # A queue grows longer than alone while machines are with the other's slow requests.
        cut = [
            i
            for i, (cloud, most) in enumerate(zip(clouds, longest, strict=True))
            if cloud.queues(most) > 0 and share[table[:, 3 * i + 2] == most].sum() * cloud.queues(most) > 10 * TAIL
        ]
        if not cut:
            return _figures(clouds, share, order, longest)
        for i in cut:
            longest[i] *= 2


def _generator(clouds: Sequence[Cloud], longest: Sequence[int]) -> tuple[list[State], sparse.csc_array]:
    """Every state that is reached from the empty one, and the generator, transposed: a row holds what flows into a state."""
    states: dict[State, int] = {(0,) * (3 * len(clouds)): 0}
    order = list(states)
    rows, columns, rates = [], [], []
    for state in order:  # it grows
        for after, rate in _moves(state, clouds, longest):
            if after not in states:
                if len(states) >= MOST_STATES:
                    raise UserError(f"clouds with more than {MOST_STATES:,} states", "give smaller ones, or simulate them")
                states[after] = len(order)
                order.append(after)
            rows.append(states[state])
            columns.append(states[after])
            rates.append(rate)
    size = len(order)
    leaving = np.bincount(rows, rates, size)
    every = range(size)
    rates, columns, rows = [*rates, *-leaving], [*columns, *every], [*rows, *every]
    return order, sparse.coo_array((rates, (columns, rows)), shape=(size, size)).tocsc()


def _balance(generator: sparse.csc_array, likely: int) -> Array:
    """The stationary probabilities, shape (states,). ``likely``: a state that is not rare, to which the others are related."""
    size = generator.shape[0]
    others = np.delete(np.arange(size), likely)  # its own balance follows from those of the others
    inner, inflow = (-generator[others][:, others]).tocsc(), generator[others][:, [likely]].toarray().ravel()
    options = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    if size > MOST_DIRECT:
        rough = LinearOperator(inner.shape, spilu(inner, drop_tol=1e-3, fill_factor=10, **options).solve)
        found, _ = gmres(inner, inflow, rtol=1e-13, atol=0, restart=60, maxiter=1, M=rough)
        share = _normed(np.insert(found, likely, 1.0))
        if np.abs(generator @ share).max() <= 1e-14 * np.abs(generator.diagonal()).max():
            return share
    return _normed(np.insert(splu(inner, **options).solve(inflow), likely, 1.0))


def _normed(weights: Array) -> Array:
    probabilities: Array = weights / weights.sum()
    return probabilities


def _figures(clouds: Sequence[Cloud], share: Array, order: Sequence[State], longest: Sequence[int]) -> SharingFigures:
    count, table = len(clouds), np.array(order, float)
    refused = np.array([[_refused(state, clouds, longest, i) for i in range(count)] for state in order])
    own, away, waiting = (share @ table[:, 3 * np.arange(count) + part] for part in range(3))
    lent = away[::-1] if count == 2 else np.zeros(1)
    arrivals = np.array([cloud.arrivals_per_s for cloud in clouds])
    leaves = np.array([cloud.leaves_per_s for cloud in clouds])
    machines = np.array([cloud.machines for cloud in clouds])
    return SharingFigures(arrivals * (share @ refused) + leaves * waiting, waiting, away, lent, (own + lent) / machines)


def _busy(state: State, cloud: int) -> int:
    """Machines of a cloud that work: for its own requests, and for the other's."""
    other = 3 * (1 - cloud) + 1
    return state[3 * cloud] + (state[other] if len(state) == 6 else 0)


def _may_borrow(state: State, clouds: Sequence[Cloud], cloud: int) -> bool:
    if len(clouds) == 1:
        return False
    other = 1 - cloud
    return _busy(state, other) < clouds[other].machines and state[3 * cloud + 1] < clouds[other].lends


def _refused(state: State, clouds: Sequence[Cloud], longest: Sequence[int], cloud: int) -> float:
    """Probability that a request that comes goes to the public cloud at once."""
    if _busy(state, cloud) < clouds[cloud].machines or _may_borrow(state, clouds, cloud):
        return 0.0
    waiting = state[3 * cloud + 2]
    return 1.0 if waiting == longest[cloud] else 1 - clouds[cloud].queues(waiting)


def _moves(state: State, clouds: Sequence[Cloud], longest: Sequence[int]) -> Iterator[tuple[State, float]]:
    """What may happen next, at which rate. A state is, for each cloud, requests at home, at the other's, and in the queue."""
    for i, cloud in enumerate(clouds):
        if _busy(state, i) < cloud.machines:
            yield _changed(state, (3 * i, 1)), cloud.arrivals_per_s
        elif _may_borrow(state, clouds, i):
            yield _changed(state, (3 * i + 1, 1)), cloud.arrivals_per_s
        elif (refused := _refused(state, clouds, longest, i)) < 1:
            yield _changed(state, (3 * i + 2, 1)), cloud.arrivals_per_s * (1 - refused)
        at_home, away, waiting = state[3 * i : 3 * i + 3]
        if waiting and cloud.leaves_per_s:
            yield _changed(state, (3 * i + 2, -1)), waiting * cloud.leaves_per_s
        if at_home:
            yield _freed(_changed(state, (3 * i, -1)), clouds, i), at_home / cloud.mean_s
        if away:
            yield _freed(_changed(state, (3 * i + 1, -1)), clouds, 1 - i), away / cloud.mean_s


def _freed(state: State, clouds: Sequence[Cloud], cloud: int) -> State:
    """A machine of a cloud is free: its own queue comes first, then the other's."""
    if state[3 * cloud + 2]:
        return _changed(state, (3 * cloud + 2, -1), (3 * cloud, 1))
    other = 1 - cloud
    if len(clouds) == 2 and state[3 * other + 2] and state[3 * other + 1] < clouds[cloud].lends:
        return _changed(state, (3 * other + 2, -1), (3 * other + 1, 1))
    return state


def _changed(state: State, *changes: tuple[int, int]) -> State:
    after = list(state)
    for place, step in changes:
        after[place] += step
    return tuple(after)


__all__ = ["FORWARDING", "Cloud", "SharingFigures", "stationary"]
