"""What is best among candidates: by the goal, by number of devices, and the front of time against money."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import Array, Bools
from paceline.calibration.constants import assumed
from paceline.calibration.uncertainty import Z80
from paceline.errors import UserError
from paceline.hardware.prices import Price
from paceline.planning.choice import Choice
from paceline.planning.comparison import difference
from paceline.planning.goal import Goal
from paceline.planning.space import Tally
from paceline.planning.strategy_text import describe
from paceline.planning.training_target import TrainingTarget
from paceline.prediction import Predictor
from paceline.prediction.batch import Candidate
from paceline.strategy import BUCKET_BYTES, Strategy
from paceline.workload.table import Workload

FRONT = 12
"""Points of the front that are predicted whole; it is thinned evenly where it has more."""
COUNTS = 12
"""Numbers of devices whose best strategy is predicted whole; thinned evenly where there are more."""
PLAIN: float = assumed("plan_plain")
"""A choice other than the plain one (dense, DDP, no micro steps) must gain this share of the goal to be preferred."""
TIE: float = assumed("plan_tie")
"""Strategies this near to the best are told apart by the other quantity: the same money for less time, and the reverse;
where nothing is known of what a larger batch costs, by the smaller batch before that."""


@dataclass(frozen=True)
class RankedTable:
    """The candidates that fit, with what each takes for the whole training.

    Attributes:
        known: whether it is known how many samples each takes to the target.
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
    predictor: Predictor

    def choice(self, index: int, best: Choice | None = None) -> Choice:
        """The whole prediction of one; ``best``: the choice that it is compared with."""
        cluster, strategy = self.candidates[index]
        p = self.predictor.step(self.workload, cluster, strategy)
        samples = self.target.samples(strategy)
        time = p.step_time_s * samples / strategy.global_batch_size
        of_samples = self.target.spread(strategy.global_batch_size)
        ends = (math.log(end / p.step_time_s) for end in (p.low_s, p.high_s))
        low, high = (math.exp(sign * math.hypot(end, Z80 * of_samples)) for sign, end in zip((-1, 1), ends, strict=True))
        price = self.prices[cluster.device.name]
        usd = price.usd(cluster.world_size, time) if price else math.nan
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
        )
        return replace(choice, difference=difference(choice, best)) if best else choice


def table_of(
    workload: Workload,
    target: TrainingTarget,
    goal: Goal,
    prices: Mapping[str, Price | None],
    candidates: Sequence[Candidate],
    step_s: Array,
    predictor: Predictor,
) -> RankedTable:
    """Seconds and dollars of the whole training with each of ``candidates``, whose steps take ``step_s`` seconds."""
    steps = np.array([target.samples(s) / s.global_batch_size for _, s in candidates])
    rate = {name: price.usd_per_device_hour / 3600 if price else math.nan for name, price in prices.items()}
    dollars = np.array([rate[c.device.name] * c.world_size for c, _ in candidates])
    known = np.array([target.known(s.gradient_exchange.compression) for _, s in candidates])
    return RankedTable(
        workload, target, goal, prices, candidates, step_s, step_s * steps, step_s * steps * dollars, known, predictor
    )


def ranked(goal: Goal, table: RankedTable, left_out: Tally) -> list[int]:
    """Indices, the best first, of what meets the goal with a known number of samples.

    Raises:
        UserError: nothing meets the limit; the nearest, and by how much it misses.
    """
    known = table.known
    unknown = "how many more samples the compression needs to the target is unknown"
    left_out.add(unknown, int((~known).sum()), "give the factor as its penalty")
    limited = goal.limited(table.time_s, table.usd)
    allowed = np.flatnonzero(known & (limited <= goal.limit))
    if not len(allowed):
        near = int(np.flatnonzero(known)[limited[known].argmin()])
        over = float(limited[near])
        raise UserError(
            f"no strategy meets {goal}: the nearest takes {goal.amount(over)}, {_over(over / goal.limit)}, with "
            f"{describe(*table.candidates[near])}",
            f"give {goal.kind}={_wide(goal, over)} or more{', or more nodes' if goal.kind == 'deadline' else ''}",
        )
    return _sorted(table, allowed)


def _sorted(table: RankedTable, allowed: NDArray[np.intp]) -> list[int]:
    """The indices by the goal's quantity, the best first.

    Each choice that is not plain counts as ``PLAIN`` worse. Of ties the smaller batch is first (without a curve), then the one
    with less of the other quantity.
    """
    goal = table.goal
    plain = np.array([1 + PLAIN * detours(table.candidates[i][1]) for i in allowed.tolist()])
    score = goal.score(table.time_s, table.usd)[allowed] * plain
    other = np.nan_to_num((table.time_s if goal.by_cost else table.usd)[allowed]) * plain
    near = score <= score.min() * (1 + TIE)
    batch = np.array([0 if table.target.curve else table.candidates[i][1].global_batch_size for i in allowed.tolist()])
    order = np.lexsort((score, np.where(near, other, score), np.where(near, batch, 0), ~near))
    return [int(i) for i in allowed[order]]


def by_devices(table: RankedTable, best: int) -> list[int]:
    """The best of each device and number of devices, the fewest devices first, device by device: of what meets the limit, or
    what is nearest to it. Thinned evenly, but for the place of the ``best``."""
    members_of: dict[tuple[str, int], list[int]] = {}
    for index in np.flatnonzero(table.known).tolist():
        members_of.setdefault(_devices(table, index), []).append(index)
    winners = {where: _best_of(table, np.array(members, dtype=np.intp)) for where, members in members_of.items()}
    winners[_devices(table, best)] = best
    # Layouts that divide the network are behind all other candidates: the order of these is not that of the devices.
    places = list(dict.fromkeys(cluster.device.name for cluster, _ in table.candidates))
    rows = [winners[where] for where in sorted(winners, key=lambda of: (places.index(of[0]), of[1]))]
    kept = {*_thin(rows, COUNTS), best}
    return [i for i in rows if i in kept]


def _devices(table: RankedTable, index: int) -> tuple[str, int]:
    """Which device a candidate runs on, and how many."""
    cluster = table.candidates[index][0]
    return cluster.device.name, cluster.world_size


def _best_of(table: RankedTable, members: NDArray[np.intp]) -> int:
    limited = table.goal.limited(table.time_s, table.usd)[members]
    meeting = members[limited <= table.goal.limit]
    return _sorted(table, meeting)[0] if len(meeting) else int(members[limited.argmin()])


def preferred(table: RankedTable, order: Sequence[int]) -> str:
    """Why the best is not the one with the smallest time or cost; empty where it is."""
    score = table.goal.score(table.time_s, table.usd)
    first = order[0]
    least = min(order, key=lambda i: float(score[i]))
    behind = float(score[first] / score[least]) - 1
    if behind < 0.0005:
        return ""
    chosen, fastest = table.candidates[first][1], table.candidates[least][1]
    why = "it is faster" if table.goal.by_cost else "it is cheaper"
    if detours(chosen) < detours(fastest):
        why = "it is simpler"
    elif chosen.global_batch_size < fastest.global_batch_size:
        why = "its batch is smaller"
    what = "cheapest" if table.goal.by_cost else "fastest"
    return f"preferred because {why}, within {behind:.1%} of the {what}: {describe(*table.candidates[least])}"


def _over(ratio: float) -> str:
    return f"{ratio - 1:.0%} more" if ratio < 10 else f"{ratio:,.0f} times as much"


def _wide(goal: Goal, value: float) -> str:
    """A limit that holds ``value``, as it is typed."""
    if goal.kind == "budget":
        return f"{math.ceil(value)}"
    return f"{math.ceil(value / 3600 * 10) / 10:g}h" if value > 3600 else f"{math.ceil(value)}s"


def detours(s: Strategy) -> int:
    """Number of choices that are not the plain ones."""
    x, mesh = s.gradient_exchange, s.parallelism
    plain = (x.exchange == "allreduce" or x.compression != "dense", s.bucket_bytes == BUCKET_BYTES, mesh.micro_batches == 1)
    divided = (mesh.tensor > 1, mesh.pipeline > 1, mesh.context > 1, mesh.expert > 1)
    rare = (mesh.schedule != "1f1b", mesh.shard_devices > 0, mesh.offload != "none", mesh.ends != (0, 0))
    others = (*divided, *rare, *(not usual for usual in plain))
    return sum((x.compression != "dense", mesh.sharding != "ddp", mesh.recompute != "none", *others))


def distinct(order: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
    """Of strategies that differ only in exchange, bucket, recomputation, micro steps or parts of a stage, the first."""
    first: dict[tuple[object, ...], int] = {}
    for i in order:
        c, s = candidates[i]
        mesh = s.parallelism
        first.setdefault(
            (
                (mesh.tensor, mesh.context, mesh.pipeline),
                c.device.name,
                c.world_size,
                s.global_batch_size,
                s.precision,
                s.gradient_exchange.compression,
                mesh.sharding,
            ),
            i,
        )
    return list(first.values())


def front(table: RankedTable) -> list[int]:
    """Pareto front of time against money, among strategies whose samples are known; one without a price counts by its time
    alone, so that it is on it only as the fastest of all."""
    known = np.flatnonzero(table.known)
    usd = np.nan_to_num(table.usd, nan=math.inf)
    order = known[np.lexsort((usd[known], table.time_s[known]))]
    costs = usd[order]
    before = np.concatenate(([math.inf], np.minimum.accumulate(costs)[:-1]))
    return _thin([int(order[0]), *(int(i) for i in order[1:][costs[1:] < before[1:] * (1 - 1e-9)])], FRONT)


def _thin(indices: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of them, both ends kept."""
    if len(indices) <= most:
        return list(indices)
    return [indices[i] for i in sorted({round(x) for x in np.linspace(0, len(indices) - 1, most)})]
