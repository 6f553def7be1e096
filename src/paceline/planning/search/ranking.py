"""Ranking of candidates by the goal, by number of devices, and the Pareto front of time and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import Array, Bools
from paceline.calibration.constants import assumed
from paceline.calibration.uncertainty import Z80
from paceline.errors import NotMet
from paceline.hardware import Cluster
from paceline.hardware.prices import Price
from paceline.planning.compare.comparison import difference
from paceline.planning.compare.layout_difference import least_resolved_ratio, resolved_ratio
from paceline.planning.compare.speedup_range import speedup_factor
from paceline.planning.compare.strategy_text import describe
from paceline.planning.search.choice import Choice
from paceline.planning.search.goal import Goal
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.planning.search.tally import Exclusions
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import Prediction, StepPredictor
from paceline.prediction.layouts.batch import Candidate
from paceline.strategy import Strategy
from paceline.workload.table import Workload

PLAIN: float = assumed("plan_plain")
"""Two strategies tie if the goal's quantity differs by less than this share;"""
TIE: float = assumed("plan_tie")
"""or by less than this one if the difference is within the range of their ratio."""
MOST_UNRESOLVED: float = assumed("plan_unresolved")
"""Two layouts of one job tie up to this difference if the model does not tell which is faster (``layout_difference``)."""


@dataclass(frozen=True)
class RankedTable:
    """Candidates that fit, with time and cost of the whole run.

    Attributes:
        known: whether the number of samples to the target is known.
        hosts: if given, candidates are ordered by the step that is expected over hosts of unknown speed.
    """

    workload: Workload
    target: TrainingTarget
    goal: Goal
    prices: Mapping[str, Price | None]
    candidates: Sequence[Candidate]
    step_s: Array
    time_s: Array
    usd: Array
    known: Bools
    predictor: StepPredictor
    hosts: SlowHosts | None = None

    @property
    def score(self) -> Array:
        """Return the quantity that the goal minimizes."""
        return self.goal.score(self.time_s, self.usd)

    @cached_property
    def expected_score(self) -> Array:
        """Return that quantity for the steps that are expected over all hosts."""
        if self.hosts is None:
            return self.score
        return self.score * (self.hosts.of_candidates(self.candidates, self.step_s) / self.step_s)

    def only(self, kept: Bools) -> RankedTable:
        """Return a table of the candidates at these indices."""
        candidates = [self.candidates[i] for i in np.flatnonzero(kept).tolist()]
        columns = {name: getattr(self, name)[kept] for name in ("step_s", "time_s", "usd", "known")}
        return replace(self, candidates=candidates, **columns)

    def step(self, index: int) -> Prediction:
        """Return the full prediction of one candidate."""
        return self.predictor.step(self.workload, *self.candidates[index])

    def choice(self, index: int, best: Choice | None = None) -> Choice:
        """Return one candidate as a choice. ``best``: the choice to compare it with."""
        cluster, strategy = self.candidates[index]
        p = self.step(index)
        samples = self.target.samples(strategy)
        failures = self.target.failures.on(cluster)
        time = p.step_time_s * samples / strategy.global_batch_size * (failures.factor if failures else 1.0)
        of_samples = self.target.spread(strategy.global_batch_size)
        ends = (math.log(end / p.step_time_s) for end in (p.low_s, p.high_s))
        of_failures = (math.log(end / failures.factor) for end in (failures.low, failures.high)) if failures else (0.0, 0.0)
        low, high = (
            math.exp(sign * math.hypot(end, Z80 * of_samples, failing))
            for sign, end, failing in zip((-1, 1), ends, of_failures, strict=True)
        )
        price = self.prices[cluster.device.name]
        usd = price.usd_per_hour(cluster.node_sizes) * time / 3600 if price else math.nan
        amount = usd if self.goal.kind == "budget" else time
        choice = Choice(
            cluster=cluster,
            strategy=strategy,
            prediction=p,
            samples=samples,
            time_s=time,
            time_low_s=time * low,
            time_high_s=time * high,
            usd=usd,
            usd_low=usd * low,
            usd_high=usd * high,
            meets=self.goal.chance(amount, amount * low, amount * high),
            beyond_least=self.target.beyond_least(strategy.global_batch_size),
            recipe=self.target.recipe(strategy),
            failures=failures,
        )
        return replace(choice, difference=difference(choice, best)) if best else choice


def table_of(
    workload: Workload,
    target: TrainingTarget,
    goal: Goal,
    prices: Mapping[str, Price | None],
    candidates: Sequence[Candidate],
    step_s: Array,
    predictor: StepPredictor,
    hosts: SlowHosts | None = None,
) -> RankedTable:
    """Return the table of time and cost of the whole run. ``step_s``: seconds of each candidate's step."""
    steps = np.array([target.samples(s) / s.global_batch_size for _, s in candidates])
    clusters = {id(cluster): cluster for cluster, _ in candidates}
    costs = {key: target.failures.on(cluster) for key, cluster in clusters.items()}
    if any(costs.values()):
        factors = {key: cost.factor if cost else 1.0 for key, cost in costs.items()}
        steps = steps * np.array([factors[id(cluster)] for cluster, _ in candidates])
    rate = {key: _usd_per_second(prices[cluster.device.name], cluster) for key, cluster in clusters.items()}
    dollars = np.array([rate[id(cluster)] for cluster, _ in candidates])
    known = np.array([target.known(s.gradient_exchange.compression) for _, s in candidates])
    return RankedTable(
        workload, target, goal, prices, candidates, step_s, step_s * steps, step_s * steps * dollars, known, predictor, hosts
    )


def _usd_per_second(price: Price | None, cluster: Cluster) -> float:
    return price.usd_per_hour(cluster.node_sizes) / 3600 if price else math.nan


def ranked(goal: Goal, table: RankedTable, left_out: Exclusions, most: int = 1, instead: str = "") -> Ranking:
    """Rank the candidates that meet the goal with a known number of samples: up to ``most`` ties, then the others.

    Args:
        instead: further advice if nothing meets the limit.

    Raises:
        NotMet: nothing meets the limit; the nearest candidate, and by how much it misses.
    """
    known = table.known
    unknown = "how many more samples the compression needs to the target is unknown"
    left_out.add(unknown, int((~known).sum()), "give the factor as its penalty")
    limited = goal.limited(table.time_s, table.usd)
    allowed = np.flatnonzero(known & (limited <= goal.limit))
    if not len(allowed):
        near = int(np.flatnonzero(known)[limited[known].argmin()])
        over = float(limited[near])
        raise NotMet(
            f"no strategy meets {goal}: the nearest takes {goal.amount(over)}, {_over(over / goal.limit)}, with "
            f"{describe(*table.candidates[near])}",
            f"give {goal.kind}={_wide(goal, over)} or more{', or more nodes' if goal.kind == 'deadline' else ''}{instead}",
        )
    return _ranking(table, allowed, most)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranking as indices into a table. ``ties`` are equal to the ``least`` within the error, in the order of ``tie_text``, the
    best first. ``others`` follow by the goal's quantity alone.
    """

    least: int
    ties: tuple[int, ...]
    others: tuple[int, ...]

    @property
    def best(self) -> int:
        """Index of the best choice."""
        return self.ties[0]

    @property
    def order(self) -> tuple[int, ...]:
        """All ranked indices."""
        return (*self.ties, *self.others)


def tie_text(table: RankedTable, ranking: Ranking) -> str:
    """Define a tie and the order of ties, in words; empty without ties."""
    if len(ranking.ties) == 1:
        return ""
    what, other = ("cost", "faster") if table.goal.by_cost else ("time", "cheaper")
    unknown = table.hosts is not None and table.hosts.extra_s > 0
    hosts = f"Here {what} is the mean over hosts of unknown speed, which delay layouts of short kernels. " if unknown else ""
    batch = "" if table.target.curve else "the smaller batch, then "
    return (
        f"Ties (=) differ in {what} by less than {PLAIN:.0%}, or by up to {TIE:.0%} inside the range of their ratio. "
        f"{hosts}The best tie of each number of devices comes first, the {other} before. On as many devices, strategies that "
        f"neither shard nor divide come before the rest; within {PLAIN:.0%}, the fewest dimensions, then {batch}"
        "the simpler strategy. Layouts of one job "
        "tie with one that divides the network if the model tells which is faster with less than 80 % probability, and so does "
        "a network that is whole on each device, at any batch that was tried. The "
        "simplest comes first: "
        "the fewest dimensions, then the least product of their sizes, then the fewest choices that are not the usual, then "
        f"the fewest micro steps. All others follow by {what}."
    )


def shown_choice(table: RankedTable, index: int, best: Choice, ranking: Ranking) -> Choice:
    """Return a row of the ranking compared with the best; for a tie also the difference."""
    choice = table.choice(index, best)
    if index not in ranking.ties:
        return choice
    own, first = table.candidates[index], table.candidates[ranking.best]
    words = filter(None, [choice.difference, distinction(own, first)])
    return replace(choice, tied=True, difference=", ".join(words))


def _ranking(table: RankedTable, allowed: NDArray[np.intp], most: int = 1) -> Ranking:
    by_score, expected = allowed[table.score[allowed].argsort(kind="stable")], table.expected_score
    by_expected = allowed[expected[allowed].argsort(kind="stable")]
    ties = tuple(islice(_ties(table, by_expected, expected), most))
    return Ranking(int(by_score[0]), ties, tuple(i for i in by_score.tolist() if i not in ties))


def _ties(table: RankedTable, by_score: NDArray[np.intp], score: Array) -> Iterator[int]:
    """Yield candidates that tie with the first, in the order of ``tie_text``, one of each kind.

    A tie differs by less than ``PLAIN``, or by less than ``TIE`` and the error of their ratio. Errors that both share cancel
    (``speedup_factor``). Layouts that divide the network tie if the model does not resolve them (``_UnresolvedLayouts``).
    """
    least = int(by_score[0])
    behind = score / score[least] - 1 if score[least] else np.zeros(len(score))
    other = table.time_s if table.goal.by_cost else np.nan_to_num(table.usd, nan=math.inf)
    kinds: dict[tuple[object, ...], int] = {}
    lowest: dict[tuple[str, int], float] = {}
    least_of: dict[tuple[tuple[str, int], bool], float] = {}
    fastest: dict[tuple[str, int], int] = {}
    layouts = _UnresolvedLayouts(table, score)
    for i in by_score[behind[by_score] <= max(TIE, MOST_UNRESOLVED)].tolist():
        place = _devices(table, i)
        first = fastest.setdefault(place, i)
        if behind[i] > TIE and not layouts.ties(i, first):
            continue
        kinds.setdefault((_kind(table.candidates[i]), table.candidates[i][1].simplicity), i)
        lowest[place] = min(lowest.get(place, math.inf), float(other[i]))
        least_of.setdefault((place, _plain(table.candidates[i][1], table.candidates[first][1])), float(score[i]))

    def place_of(i: int) -> tuple[float, ...]:
        cluster, strategy = table.candidates[i]
        fast = fastest[_devices(table, i)]
        whole = _plain(strategy, table.candidates[fast][1])
        first, own = (lowest[_devices(table, i)], cluster.world_size, not whole), float(score[i])
        if layouts.ties(i, fast):
            return *first, 0, *strategy.simplicity, own
        if table.candidates[fast][1].simplicity[0] or own > (1 + PLAIN) * least_of[_devices(table, i), whole]:
            return *first, 1, own
        batch = 0 if table.target.curve else strategy.global_batch_size
        return *first, 0, strategy.simplicity[0], batch, strategy.detours, own

    base = table.step(least)

    def tie(i: int) -> bool:
        if behind[i] <= PLAIN or layouts.ties(i, least):
            return True
        own, other = (table.candidates[at][0] for at in (i, least))
        return bool(behind[i] <= min(TIE, speedup_factor(table.step(i), base, own, other) - 1))

    yielded: dict[object, int] = {}
    others = []
    for i in sorted(kinds.values(), key=place_of):
        if _devices(table, i) in yielded:
            others.append(i)
        elif tie(i):
            yielded |= {_devices(table, i): i, _kind(table.candidates[i]): i}
            yield i
    for i in sorted(others, key=lambda i: float(table.score[i])):
        if _kind(table.candidates[i]) not in yielded and tie(i):
            yielded[_kind(table.candidates[i])] = i
            yield i


@dataclass(frozen=True, slots=True)
class _UnresolvedLayouts:
    """Layouts of a table that the model does not tell from a faster one which divides the network."""

    table: RankedTable
    score: Array
    known: dict[tuple[int, int], bool] = field(default_factory=dict)

    def ties(self, index: int, fastest: int) -> bool:
        """Return whether a layout ties with the fastest of its devices, on the same batch and at the same precision.

        A network that is whole on each device may have another batch, unless the target says what batches cost.
        """
        own, first = self.table.candidates[index], self.table.candidates[fastest]
        if not first[1].simplicity[0] or own[0] != first[0]:
            return False
        free = self.table.target.curve is None and not own[1].simplicity[0]
        if job_choices(own[1])[free:] != job_choices(first[1])[free:]:
            return False
        ratio = float(self.score[index] / self.score[fastest])
        if index == fastest or ratio <= least_resolved_ratio():
            return True
        if (index, fastest) not in self.known:
            steps = self.table.step(index), self.table.step(fastest)
            self.known[index, fastest] = ratio <= min(1 + MOST_UNRESOLVED, resolved_ratio(*steps))
        return self.known[index, fastest]


def job_choices(strategy: Strategy) -> tuple[object, ...]:
    """Return the choices that two layouts of one job share, the batch first."""
    return strategy.global_batch_size, strategy.precision, strategy.optimizer, strategy.gradient_exchange.is_plain


def _plain(strategy: Strategy, fastest: Strategy) -> bool:
    """Return whether a strategy is plain: every device holds the whole network and its optimizer.

    If the fastest strategy does not, a plain one must also hold its micro batch without recomputing more.
    """
    whole = [
        not s.parallelism.sharding.shares_out
        and s.parallelism.model_devices == 1
        and not s.gradient_exchange.compression.compresses
        for s in (strategy, fastest)
    ]
    recompute = strategy.parallelism.recompute
    again = recompute and recompute != fastest.parallelism.recompute
    return whole[0] and (whole[1] or (strategy.micro_batch_size >= fastest.micro_batch_size and not again))


def by_devices(table: RankedTable, best: int) -> list[int]:
    """Return the best of each device and device count, the fewest devices first.

    It is the best that meets the limit, or the nearest to it.
    """
    members_of: dict[tuple[str, int], list[int]] = {}
    for index in np.flatnonzero(table.known).tolist():
        members_of.setdefault(_devices(table, index), []).append(index)
    winners = {where: best_of(table, np.array(members, dtype=np.intp)) for where, members in members_of.items()}
    winners[_devices(table, best)] = best
    # Divided layouts follow all other candidates, so candidates are not in the order of devices.
    places = list(dict.fromkeys(cluster.device.name for cluster, _ in table.candidates))
    return [winners[where] for where in sorted(winners, key=lambda of: (places.index(of[0]), of[1]))]


def _devices(table: RankedTable, index: int) -> tuple[str, int]:
    """Return the device of a candidate, and the device count."""
    cluster = table.candidates[index][0]
    return cluster.device.name, cluster.world_size


def best_of(table: RankedTable, members: NDArray[np.intp]) -> int:
    """Return the best of the members that meet the limit; without one, the member that misses it least."""
    limited = table.goal.limited(table.time_s, table.usd)[members]
    meeting = members[limited <= table.goal.limit]
    return _ranking(table, meeting).best if len(meeting) else int(members[limited.argmin()])


def preferred(table: RankedTable, ranking: Ranking) -> str:
    """Return why the best is not the one with the smallest time or cost; empty if it is."""
    first, least = ranking.best, ranking.least
    behind = float(table.score[first] / table.score[least]) - 1 if table.score[least] else 0.0
    if behind < 0.0005:
        return ""
    what = "cheapest" if table.goal.by_cost else "fastest"
    chosen, quickest = table.candidates[first], table.candidates[least]
    if behind > MOST_UNRESOLVED or _safer(table, first, least):
        return f"preferred (a slow host delays it less), within {behind:.1%} of the {what}: {describe(*quickest)}"
    why = distinction(chosen, quickest) or "as simple"
    if _devices(table, first) != _devices(table, least):
        why = "faster" if table.goal.by_cost else "cheaper"
    return f"preferred ({why}), a tie within {behind:.1%} of the {what}: {describe(*quickest)}"


def _safer(table: RankedTable, index: int, other: int) -> bool:
    """Return whether unknown hosts alone put a candidate before another one on the same devices."""
    expected = table.expected_score
    return _devices(table, index) == _devices(table, other) and bool(expected[index] < expected[other])


def distinction(own: Candidate, other: Candidate) -> str:
    """Return how a candidate differs from a tied one: its simplicity and its batch; empty if these are equal."""
    (_, strategy), (_, than) = own, other
    batches = than.global_batch_size - strategy.global_batch_size
    words = [
        "simpler" if strategy.simplicity < than.simplicity else "less simple" if strategy.simplicity > than.simplicity else "",
        "smaller batch" if batches > 0 else "larger batch" if batches else "",
    ]
    return ", ".join(filter(None, words))


def _over(ratio: float) -> str:
    return f"{ratio - 1:.0%} more" if ratio < 10 else f"{ratio:,.0f} times as much"


def _wide(goal: Goal, value: float) -> str:
    """Format a limit that includes ``value``, as a user types it."""
    if goal.kind == "budget":
        return f"{math.ceil(value)}"
    return f"{math.ceil(value / 3600 * 10) / 10:g}h" if value > 3600 else f"{math.ceil(value)}s"


def distinct(order: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
    """Return the first of each set that differs only in exchange, bucket, recomputation, micro steps or virtual stages."""
    first: dict[tuple[object, ...], int] = {}
    for i in order:
        first.setdefault(_kind(candidates[i]), i)
    return list(first.values())


def _kind(candidate: Candidate) -> tuple[object, ...]:
    """Return the choices that distinguish strategies in a ranking."""
    cluster, strategy = candidate
    return cluster.device.name, cluster.world_size, *strategy.kind


def front(table: RankedTable, rows: Sequence[int]) -> list[int]:
    """Return the Pareto front of time and cost among ``rows``, the fastest first.

    Without a price only time counts, so such a row is on the front only if it is the fastest of all.
    """
    usd = np.nan_to_num(table.usd, nan=math.inf)
    order = sorted(rows, key=lambda i: (float(table.time_s[i]), float(usd[i])))
    costs = usd[order]
    before = np.concatenate(([math.inf], np.minimum.accumulate(costs)[:-1]))
    return [i for i, cost, least in zip(order, costs, before, strict=True) if i == order[0] or cost < least * (1 - 1e-9)]
