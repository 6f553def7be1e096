"""One or two clouds that lend to each other, exactly: the stationary Markov chain of their machines and queues.

It stands for the performance model of SC-Share (Lin, Pal, Paolieri, Golubchik, ICDCS 2017, arXiv 1703.10318), of which the
abstract was at hand, not the formulas. Assumed here: Poisson arrivals, exponential work, requests of one machine, and
exponential patience with the mean that the service level allows, after which a request goes to the public cloud. Own requests
come first. A machine that is lent comes back when its request ends. The simulator follows the same rules, for any times, and
is tested against this chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from paceline.array_types import Array
from paceline.errors import UserError, shown

TAIL = 1e-10
"""Probability of a queue beyond which it is cut."""
MOST_STATES = 200_000
State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cloud:
    """A small cloud.

    Attributes:
        machines: its own. ``lends``: at a time at most.
        arrivals_per_s: of its requests. ``mean_s``: of a request's work.
        patience_s: mean time that a request waits before it goes to the public cloud; 0: it never waits; infinite: for ever.

    Raises:
        UserError: numbers of no use, or a queue that grows for ever.
    """

    machines: int
    lends: int
    arrivals_per_s: float
    mean_s: float
    patience_s: float = math.inf

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

    @property
    def longest_queue(self) -> int:
        """Requests that wait at most, but for a probability of ``TAIL``. Raises UserError where the queue grows for ever."""
        if self.patience_s == 0:
            return 0
        leaving, served = 1 / self.patience_s, self.machines / self.mean_s
        if leaving == 0 and self.arrivals_per_s >= served:
            raise UserError("a cloud whose requests wait for ever has more work than its machines do", "give a patience")
        share, length = 1.0, 0
        while share > TAIL:
            length += 1
            share *= self.arrivals_per_s / (served + length * leaving)
        return length


@dataclass(frozen=True)
class SharingFigures:
    """What becomes of clouds that share; arrays of shape (clouds,).

    Attributes:
        forwarded_per_s: requests that go to the public cloud. ``waiting``: mean number that wait.
        borrowed, lent: mean number of machines. ``utilisation``: mean part of the own machines that work, for anybody.
    """

    forwarded_per_s: Array
    waiting: Array
    borrowed: Array
    lent: Array
    utilisation: Array


def stationary(clouds: Sequence[Cloud]) -> SharingFigures:
    """The figures of one or two clouds.

    Raises:
        UserError: more than two clouds, or more than ``MOST_STATES`` states: simulate those.
    """
    if not 1 <= len(clouds) <= 2:
        raise UserError(f"{len(clouds)} clouds", "the chain is exact for one or two; simulate more")
    queues = tuple(cloud.longest_queue for cloud in clouds)
    states: dict[State, int] = {(0,) * (3 * len(clouds)): 0}
    order = list(states)
    rows, columns, rates = [], [], []
    for state in order:  # it grows
        for after, rate in _moves(state, clouds, queues):
            if after not in states:
                if len(states) >= MOST_STATES:
                    raise UserError(f"clouds with more than {MOST_STATES:,} states", "give smaller ones, or simulate them")
                states[after] = len(order)
                order.append(after)
            rows.append(states[state])
            columns.append(states[after])
            rates.append(rate)
    size = len(order)
    generator = sparse.coo_array((rates, (columns, rows)), shape=(size, size)).tolil()  # transposed: what flows into a state
    generator.setdiag(-np.bincount(rows, rates, size))
    generator[0, :] = 1.0  # one balance follows from the others; the probabilities add up to 1
    share = spsolve(generator.tocsc(), np.eye(1, size).ravel())
    table = np.array(order, float)
    blocked = np.array([[_blocked(state, clouds, queues, i) for i in range(len(clouds))] for state in order], float)
    return _figures(clouds, share, table, blocked)


def _figures(clouds: Sequence[Cloud], share: Array, table: Array, blocked: Array) -> SharingFigures:
    count = len(clouds)
    own, away, waiting = (share @ table[:, 3 * np.arange(count) + part] for part in range(3))
    lent = away[::-1] if count == 2 else np.zeros(1)
    arrivals = np.array([cloud.arrivals_per_s for cloud in clouds])
    leaving = np.array([0.0 if cloud.patience_s == 0 else 1 / cloud.patience_s for cloud in clouds])
    machines = np.array([cloud.machines for cloud in clouds])
    return SharingFigures(arrivals * (share @ blocked) + leaving * waiting, waiting, away, lent, (own + lent) / machines)


def _busy(state: State, cloud: int) -> int:
    """Machines of a cloud that work: for its own requests, and for the other's."""
    other = 3 * (1 - cloud) + 1
    return state[3 * cloud] + (state[other] if len(state) == 6 else 0)


def _may_borrow(state: State, clouds: Sequence[Cloud], cloud: int) -> bool:
    if len(clouds) == 1:
        return False
    other = 1 - cloud
    return _busy(state, other) < clouds[other].machines and state[3 * cloud + 1] < clouds[other].lends


def _blocked(state: State, clouds: Sequence[Cloud], queues: Sequence[int], cloud: int) -> bool:
    """Whether a request that comes goes to the public cloud at once."""
    full = _busy(state, cloud) == clouds[cloud].machines and not _may_borrow(state, clouds, cloud)
    return full and state[3 * cloud + 2] == queues[cloud]


def _moves(state: State, clouds: Sequence[Cloud], queues: Sequence[int]) -> Iterator[tuple[State, float]]:
    """What may happen next, at which rate. A state is, for each cloud, requests at home, at the other's, and in the queue."""
    for i, cloud in enumerate(clouds):
        if not _blocked(state, clouds, queues, i):
            if _busy(state, i) < cloud.machines:
                yield _changed(state, (3 * i, 1)), cloud.arrivals_per_s
            elif _may_borrow(state, clouds, i):
                yield _changed(state, (3 * i + 1, 1)), cloud.arrivals_per_s
            else:
                yield _changed(state, (3 * i + 2, 1)), cloud.arrivals_per_s
        at_home, away, waiting = state[3 * i : 3 * i + 3]
        if waiting and 0 < cloud.patience_s < math.inf:
            yield _changed(state, (3 * i + 2, -1)), waiting / cloud.patience_s
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


__all__ = ["Cloud", "SharingFigures", "stationary"]
