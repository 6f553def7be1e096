"""Stationary Markov chain of one or two clouds that lend machines to each other: the exact result that the simulator meets.

Poisson arrivals, exponential work, requests of one machine. A request takes a machine of its cloud, else one that the other
cloud may still lend, else it waits. It leaves for the public cloud after an exponential time. A freed machine serves its own
cloud's queue first. The model follows SC-Share (Lin, Pal, Paolieri, Golubchik, ICDCS 2017, arXiv 1703.10318), of which only the
abstract was at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from paceline.array_types import Array

TAIL = 1e-10
"""Probability of a longer queue at which the queue is cut."""
State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cloud:
    """A small cloud.

    Attributes:
        machines: number of machines. ``lends``: machines that the other cloud may hold at a time.
        arrivals_per_s: rate of requests. ``mean_s``: mean work of a request.
        patience_s: mean wait before a request leaves. 0: it never waits; infinite: it never leaves.
    """

    machines: int
    lends: int
    arrivals_per_s: float
    mean_s: float
    patience_s: float = math.inf

    @property
    def leaves_per_s(self) -> float:
        """Rate at which each waiting request leaves."""
        return 1 / self.patience_s if self.patience_s > 0 else 0.0

    @property
    def longest_queue(self) -> int:
        """Length that the queue exceeds with a probability below ``TAIL`` when nothing is lent."""
        served = self.machines / self.mean_s
        assert self.patience_s < math.inf or self.arrivals_per_s < served, "the queue grows without bound"
        share, length = 1.0, 0
        while share > TAIL and self.patience_s > 0:
            length += 1
            share *= self.arrivals_per_s / (served + length * self.leaves_per_s)
        return length


@dataclass(frozen=True)
class SharingFigures:
    """Means over time; arrays of shape (clouds,).

    Attributes:
        forwarded_per_s: requests a second that go to the public cloud. ``waiting``: requests that wait.
        borrowed, lent: machines. ``utilisation``: share of a cloud's machines that work.
    """

    forwarded_per_s: Array
    waiting: Array
    borrowed: Array
    lent: Array
    utilisation: Array


def stationary(clouds: Sequence[Cloud]) -> SharingFigures:
    """Solve the balance of one or two clouds."""
    longest = [cloud.longest_queue for cloud in clouds]
    likely = tuple(n for cloud in clouds for n in (min(cloud.machines, int(cloud.arrivals_per_s * cloud.mean_s)), 0, 0))
    while True:
        order, generator = _generator(clouds, longest)
        share = _balance(generator, order.index(likely))
        table = np.array(order, float)
        # A queue grows longer than alone while machines serve the other cloud's slow requests.
        cut = [
            i
            for i, (cloud, most) in enumerate(zip(clouds, longest, strict=True))
            if cloud.patience_s > 0 and share[table[:, 3 * i + 2] == most].sum() > 10 * TAIL
        ]
        if not cut:
            return _figures(clouds, share, order, longest)
        for i in cut:
            longest[i] *= 2


def _generator(clouds: Sequence[Cloud], longest: Sequence[int]) -> tuple[list[State], sparse.csc_array]:
    """Return the states reached from the empty one, and the transposed generator: a row holds the flow into a state."""
    states: dict[State, int] = {(0,) * (3 * len(clouds)): 0}
    order = list(states)
    rows, columns, rates = [], [], []
    for state in order:  # it grows
        for after, rate in _moves(state, clouds, longest):
            if after not in states:
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
    """Return the stationary probabilities, shape (states,). ``likely``: a state that is not rare, which the others refer to."""
    size = generator.shape[0]
    others = np.delete(np.arange(size), likely)  # its own balance follows from those of the others
    inner, inflow = (-generator[others][:, others]).tocsc(), generator[others][:, [likely]].toarray().ravel()
    options = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    weights = np.insert(splu(inner, **options).solve(inflow), likely, 1.0)
    probabilities: Array = weights / weights.sum()
    return probabilities


def _figures(clouds: Sequence[Cloud], share: Array, order: Sequence[State], longest: Sequence[int]) -> SharingFigures:
    count, table = len(clouds), np.array(order, float)
    refused = np.array([[_refused(state, clouds, longest, i) for i in range(count)] for state in order])
    at_home, away, waiting = (share @ table[:, 3 * np.arange(count) + part] for part in range(3))
    lent = away[::-1] if count == 2 else np.zeros(1)
    arrivals = np.array([cloud.arrivals_per_s for cloud in clouds])
    leaves = np.array([cloud.leaves_per_s for cloud in clouds])
    machines = np.array([cloud.machines for cloud in clouds])
    return SharingFigures(arrivals * (share @ refused) + leaves * waiting, waiting, away, lent, (at_home + lent) / machines)


def _busy(state: State, cloud: int) -> int:
    """Return the number of a cloud's machines that work, for its own requests and for the other cloud's."""
    other = 3 * (1 - cloud) + 1
    return state[3 * cloud] + (state[other] if len(state) == 6 else 0)


def _may_borrow(state: State, clouds: Sequence[Cloud], cloud: int) -> bool:
    if len(clouds) == 1:
        return False
    other = 1 - cloud
    return _busy(state, other) < clouds[other].machines and state[3 * cloud + 1] < clouds[other].lends


def _refused(state: State, clouds: Sequence[Cloud], longest: Sequence[int], cloud: int) -> bool:
    """Return whether an arriving request goes to the public cloud at once."""
    if _busy(state, cloud) < clouds[cloud].machines or _may_borrow(state, clouds, cloud):
        return False
    return clouds[cloud].patience_s == 0 or state[3 * cloud + 2] == longest[cloud]


def _moves(state: State, clouds: Sequence[Cloud], longest: Sequence[int]) -> Iterator[tuple[State, float]]:
    """Yield the next states with their rates. A state: each cloud's requests at home, at the other cloud and in the queue."""
    for i, cloud in enumerate(clouds):
        if _busy(state, i) < cloud.machines:
            yield _changed(state, (3 * i, 1)), cloud.arrivals_per_s
        elif _may_borrow(state, clouds, i):
            yield _changed(state, (3 * i + 1, 1)), cloud.arrivals_per_s
        elif not _refused(state, clouds, longest, i):
            yield _changed(state, (3 * i + 2, 1)), cloud.arrivals_per_s
        at_home, away, waiting = state[3 * i : 3 * i + 3]
        if waiting and cloud.leaves_per_s:
            yield _changed(state, (3 * i + 2, -1)), waiting * cloud.leaves_per_s
        if at_home:
            yield _freed(_changed(state, (3 * i, -1)), clouds, i), at_home / cloud.mean_s
        if away:
            yield _freed(_changed(state, (3 * i + 1, -1)), clouds, 1 - i), away / cloud.mean_s


def _freed(state: State, clouds: Sequence[Cloud], cloud: int) -> State:
    """Give a free machine of a cloud to its own queue, then to the other cloud's."""
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
