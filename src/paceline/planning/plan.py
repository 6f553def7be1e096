"""``plan(workload, space, goal)``: the best strategy, what comes next, what was left out, and what compression is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UserError
from paceline.hardware.prices import Price, listings, price
from paceline.planning.choice import Choice, Plan
from paceline.planning.evaluate import evaluate, log_spread
from paceline.planning.goal import Array, Goal, money
from paceline.planning.scaling import scaling
from paceline.planning.space import Candidate, Space, Tally, candidates
from paceline.planning.why import POINTLESS, Wanted, describe, difference, illegal, matches, saves_memory
from paceline.planning.work import Work
from paceline.prediction import Correction, Prediction, predict
from paceline.prediction.batch import Steps
from paceline.prediction.convergence import accuracies, accuracy_notes, networks
from paceline.prediction.efficiency import TYPICAL, Efficiency
from paceline.prediction.uncertainty import Z80
from paceline.strategy import BUCKET_BYTES, Strategy
from paceline.units import format_gib
from paceline.workload.layers import Workload

SHOWN = 8
"""Strategies in the ranking."""
FRONT = 12
"""Points of the front that are predicted whole; it is thinned evenly where it has more."""
PLAIN = 0.01
"""A choice off the plain way (dense, DDP, no micro steps) must gain this share of the goal to be preferred."""
TIE = 0.01
"""Strategies this near to the best are told apart by the other quantity: the same money for less time, and the reverse;
where nothing is known of what a larger batch costs, by the smaller batch before that."""
TRIED = (
    "Batches: those given, else powers of two a worker (to 1024, as far as one micro step holds them); the smallest of those "
    f"within {TIE:.0%} of the best."
)


@dataclass(frozen=True)
class _Table:
    """The candidates that fit, with what each takes for the whole work."""

    workload: Workload
    work: Work
    goal: Goal
    prices: Mapping[str, Price | None]
    made: Sequence[Candidate]
    step_s: Array
    time_s: Array
    usd: Array
    predict: Callable[..., Prediction]

    def choice(self, index: int, best: Choice | None = None) -> Choice:
        """The whole prediction of one; ``best``: what its reason is told against."""
        cluster, strategy = self.made[index]
        p = self.predict(self.workload, cluster, strategy)
        samples = self.work.samples(strategy)
        time = p.step_time_s * samples / strategy.global_batch_size
        spread = math.hypot(log_spread(p.low_s, p.high_s), self.work.spread)
        low, high = p.low_s / p.step_time_s, p.high_s / p.step_time_s
        if self.work.spread:
            low, high = math.exp(-Z80 * spread), math.exp(Z80 * spread)
        one = self.prices[cluster.device.name]
        usd = one.usd(cluster.world_size, time) if one else math.nan
        found = Choice(
            cluster=cluster, strategy=strategy, prediction=p, samples=samples, time_s=time, time_low_s=time * low,
            time_high_s=time * high, usd=usd, usd_low=usd * low, usd_high=usd * high,
            meets=self.goal.chance(usd if self.goal.kind == "budget" else time, spread),
        )  # fmt: skip
        reason = difference(found, best) if best else f"waits for {p.bottleneck} most"
        return replace(found, reason=reason)


def plan(
    workload: Workload,
    space: Space,
    goal: Goal,
    work: Work | None = None,
    *,
    prices: Mapping[str, float] | None = None,
    why_not: Wanted | None = None,
    correction: Correction | None = None,
    software: Efficiency = TYPICAL,
) -> Plan:
    """The best way to train ``work`` of ``workload`` within ``space``.

    Args:
        prices: dollars a device and hour by device, or for all under the empty name; else the listings.
        why_not: choices of a strategy that is to be set beside the best.
        correction: what observed steps taught (``prediction.fit``).
        software: what the devices and links get of their best (``prediction.efficiency``).

    Raises:
        UserError: nothing legal; nothing fits, with the least number of GiB that are missing; no price where the goal needs
            one; a deadline or budget that nothing meets, with the nearest that does.
    """
    work = work or Work()
    listed = {c.device.name: price(c.device.name, prices) for c in space.clusters}
    if goal.needs_price and (unknown := [name for name, one in listed.items() if one is None]):
        raise UserError(f"no price of {unknown[0]} is known, which goal {goal} needs", f"give --price {unknown[0]!r}=DOLLARS")
    left_out = Tally()
    pointless = len(space.recomputes) > 1 and not saves_memory(workload)
    if pointless:
        space = replace(space, recomputes=(False,))
    made = candidates(space, work, left_out)
    if pointless:
        left_out.add(POINTLESS, len(made))
    if not made:
        raise UserError("no strategy is legal here", "; ".join(f"{x.count}: {x.reason}" for x in left_out.excluded()[:2]))
    found = evaluate(workload, made, left_out, correction, software)
    fitting = _fitting(workload, made, found, left_out)
    if not space.batches and work.curve is None:
        fitting = _at_once(made, fitting, left_out)
    notice = _notice(workload, space, work)
    one = partial(predict, correction=correction, efficiency=software)
    table = _table(workload, work, goal, listed, [made[i] for i in fitting], found.step_s[fitting], one)
    order = _ranked(goal, table, left_out)
    best = table.choice(order[0])
    best = replace(best, reason="; ".join(filter(None, (best.reason, _preferred(table, order)))))
    said, asked = _why_not(why_not, table, best, goal, left_out, space, work)
    ranking = (best, *(table.choice(i, best) for i in _distinct(order, table.made)[1:SHOWN]))
    front = tuple(table.choice(i) for i in _thin(_front(table), FRONT))
    shown = dict.fromkeys(one.strategy.compression for one in (*ranking, *front, *filter(None, [asked])))
    others = [note for name in shown if name != best.strategy.compression for note in accuracy_notes(name)]
    return Plan(
        workload=workload.name,
        work=work.title,
        goal=goal,
        ranking=ranking,
        front=front,
        excluded=tuple(left_out.excluded()),
        considered=len(made),
        compression=_compression(table, order, goal),
        prices=_price_notes(listed),
        notice=notice,
        assumptions=(*((notice, TRIED) if notice else ()), *work.notes(best.strategy), *best.prediction.assumptions, *others),
        why_not=said,
        asked=asked,
        scaling=scaling(workload, best.cluster, best.strategy, one),
    )


def _fitting(workload: Workload, made: Sequence[Candidate], found: Steps, left_out: Tally) -> NDArray[np.intp]:
    """Indices of the candidates that fit their device."""
    too_large = ~found.fits
    lacking = found.memory_bytes - found.available_bytes
    if too_large.any():
        where = np.flatnonzero(too_large)
        least = int(where[lacking[where].argmin()])
        missing, title = format_gib(float(lacking[least])), describe(*made[least])
        if too_large.all():
            raise UserError(
                f"{workload.name} fits nowhere here: {missing} are missing at least, with {title}",
                "give a device with more memory, more nodes or a smaller --global-batch",
            )
        left_out.add("does not fit the device's memory", len(where), f"least missing {missing}, with {title}")
    return np.flatnonzero(~too_large & np.isfinite(found.step_s))


def _at_once(made: Sequence[Candidate], fitting: NDArray[np.intp], left_out: Tally) -> NDArray[np.intp]:
    """Those whose batch some strategy holds in one micro step on the same cluster: where nobody knows what a larger batch
    costs, micro steps must not make it larger."""
    largest: dict[int, int] = {}
    for cluster, strategy in (made[i] for i in fitting.tolist()):
        if strategy.grad_accum_steps == 1:
            largest[id(cluster)] = max(largest.get(id(cluster), 0), strategy.global_batch_size)
    kept = [i for i in fitting.tolist() if made[i][1].global_batch_size <= largest.get(id(made[i][0]), math.inf)]
    left_out.add("a batch that does not fit in one micro step, and nothing known of what it costs", len(fitting) - len(kept))
    return np.array(kept, dtype=np.intp)


def _notice(workload: Workload, space: Space, work: Work) -> str:
    """That the batch was chosen by speed alone; empty where it was not."""
    if work.curve or len(space.batches) == 1:
        return ""
    unknown = f"unknown for {workload.name} and not counted; --target RUNS.csv counts it from runs of your own"
    return (
        "The batch is chosen by speed alone: how many more samples a larger batch needs to the same accuracy is "
        f"{'not counted; --target mlperf counts it' if workload.name in networks() else unknown}."
    )


def _table(
    workload: Workload, work: Work, goal: Goal, prices: Mapping[str, Price | None], made: Sequence[Candidate],
    step_s: Array, predictor: Callable[..., Prediction],
) -> _Table:
    steps = np.array([work.samples(s) / s.global_batch_size for _, s in made])
    rate = {name: one.usd_per_device_hour / 3600 if one else math.nan for name, one in prices.items()}
    dollars = np.array([rate[c.device.name] * c.world_size for c, _ in made])
    return _Table(workload, work, goal, prices, made, step_s, step_s * steps, step_s * steps * dollars, predictor)


def _ranked(goal: Goal, table: _Table, left_out: Tally) -> list[int]:
    """Indices, the best first, of what meets the goal with a known number of samples.

    Raises:
        UserError: nothing meets the limit; the nearest, and by how much it misses.
    """
    known = np.array([table.work.known(s.compression) for _, s in table.made])
    unknown = "how many more samples the compression takes to the target is unknown"
    left_out.add(unknown, int((~known).sum()), "--penalty says it")
    limited = goal.limited(table.time_s, table.usd)
    allowed = np.flatnonzero(known & (limited <= goal.limit))
    if not len(allowed):
        near = int(np.flatnonzero(known)[limited[known].argmin()])
        over = float(limited[near])
        raise UserError(
            f"no strategy meets {goal}: the nearest takes {goal.amount(over)}, {_over(over / goal.limit)}, with "
            f"{describe(*table.made[near])}",
            f"give {goal.kind}={_wide(goal, over)} or more{', or more nodes' if goal.kind == 'deadline' else ''}",
        )
    plain = np.array([1 + PLAIN * _detours(table.made[i][1]) for i in allowed.tolist()])
    score = goal.score(table.time_s, table.usd)[allowed] * plain
    other = np.nan_to_num((table.time_s if goal.by_cost else table.usd)[allowed]) * plain
    near = score <= score.min() * (1 + TIE)
    batch = np.array([0 if table.work.curve else table.made[i][1].global_batch_size for i in allowed.tolist()])
    order = np.lexsort((score, np.where(near, other, score), np.where(near, batch, 0), ~near))
    return [int(i) for i in allowed[order]]


def _preferred(table: _Table, order: Sequence[int]) -> str:
    """Why the best is not the one with the smallest time or cost; empty where it is."""
    score = table.goal.score(table.time_s, table.usd)
    first = order[0]
    least = min(order, key=lambda i: float(score[i]))
    behind = float(score[first] / score[least]) - 1
    if behind < 0.0005:
        return ""
    one, other = table.made[first][1], table.made[least][1]
    why = "as the cheaper" if not table.goal.by_cost else "as the faster"
    if _detours(one) < _detours(other):
        why = "as simpler"
    elif one.global_batch_size < other.global_batch_size:
        why = "for its smaller batch"
    what = "cheapest" if table.goal.by_cost else "fastest"
    return f"preferred {why}: within {behind:.1%} of the {what}, {describe(*table.made[least])}"


def _over(ratio: float) -> str:
    return f"{ratio - 1:.0%} more" if ratio < 10 else f"{ratio:,.0f} times as much"


def _wide(goal: Goal, value: float) -> str:
    """A limit that holds ``value``, as it is typed."""
    if goal.kind == "budget":
        return f"{math.ceil(value)}"
    return f"{math.ceil(value / 3600 * 10) / 10:g}h" if value > 3600 else f"{math.ceil(value)}s"


def _detours(s: Strategy) -> int:
    """Choices that are off the plain way."""
    others = (s.exchange != "allreduce" and s.compression == "dense", s.bucket_bytes != BUCKET_BYTES, s.grad_accum_steps > 1)
    return sum((s.compression != "dense", s.sharding != "ddp", s.recompute, *others))


def _distinct(order: Sequence[int], made: Sequence[Candidate]) -> list[int]:
    """Of strategies that differ only in exchange, bucket, recomputation or micro steps, the first."""
    first: dict[tuple[object, ...], int] = {}
    for i in order:
        c, s = made[i]
        first.setdefault((c.device.name, c.world_size, s.global_batch_size, s.precision, s.compression, s.sharding), i)
    return list(first.values())


def _front(table: _Table) -> list[int]:
    """Pareto front of time against money, among strategies whose samples are known; one without a price counts by its time
    alone, so that it is on it only as the fastest of all."""
    known = np.flatnonzero([table.work.known(s.compression) for _, s in table.made])
    usd = np.nan_to_num(table.usd, nan=math.inf)
    order = known[np.lexsort((usd[known], table.time_s[known]))]
    costs = usd[order]
    before = np.concatenate(([math.inf], np.minimum.accumulate(costs)[:-1]))
    return [int(order[0]), *(int(i) for i in order[1:][costs[1:] < before[1:] * (1 - 1e-9)])]


def _thin(found: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of them, both ends kept."""
    if len(found) <= most:
        return list(found)
    return [found[i] for i in sorted({round(x) for x in np.linspace(0, len(found) - 1, most)})]


def _compression(table: _Table, order: Sequence[int], goal: Goal) -> str:
    """What compression is worth: the best with it against the best without."""
    score = goal.score(table.time_s, table.usd)
    lossy = np.array([s.compression != "dense" for _, s in table.made])
    limited = goal.limited(table.time_s, table.usd) <= goal.limit
    if not lossy.any():
        return "Compression was not tried."
    dense = next((i for i in order if not lossy[i]), None)
    if dense is None:
        return f"Nothing without compression meets {goal}."
    with_it = np.flatnonzero(lossy & limited)
    if not len(with_it):
        return f"Compression does not pay: no strategy with it meets {goal}."
    other = int(with_it[score[with_it].argmin()])
    gain = float(score[dense] / score[other])
    own = table.made[other][1].compression
    name = f"{own} over {table.made[other][1].exchange}"
    what = "costs" if goal.by_cost else "takes"
    if abs(gain - 1) < PLAIN:
        return f"Compression does not pay: the best with it ({name}) gains less than {PLAIN:.0%} over dense."
    if gain < 1:
        waits = _network_share(table, dense)
        return (
            f"Compression does not pay: the best with it ({name}) {what} {1 / gain - 1:.1%} more than dense, "
            f"whose steps wait {waits:.1%} of the time for links."
        )
    if not table.work.known(own):
        return (
            f"Compression pays only if its penalty is small: {name} {what} {1 - 1 / gain:.1%} less than dense for equal "
            f"samples, so it breaks even at {gain - 1:.1%} more samples to the target. How many it needs is unknown; "
            "--penalty says it."
        )
    basis = "for equal samples" if table.work.curve is None else "to the same target"
    if table.work.curve is None and table.workload.name not in {a.network for a in accuracies(own)}:
        basis += f"; what it does to the accuracy of {table.workload.name} is unknown"
    return f"Compression pays: {name} {what} {1 - 1 / gain:.1%} less than the best without it, {basis}."


def _network_share(table: _Table, index: int) -> float:
    p = table.predict(table.workload, *table.made[index])
    return sum(p.exposed.get(name, 0.0) for name in ("network", "intra-node link")) / p.step_time_s


def _why_not(
    wanted: Wanted | None, table: _Table, best: Choice, goal: Goal, left_out: Tally, space: Space, work: Work
) -> tuple[str, Choice | None]:
    """What speaks against the strategy that was asked for, and it."""
    if not wanted:
        return "", None
    there = [i for i, one in enumerate(table.made) if matches(one, wanted)]
    if not there:
        return illegal(wanted, best, table.workload, space.clusters, left_out, space.barred(work)), None
    scores = goal.score(table.time_s, table.usd)
    asked = table.choice(min(there, key=lambda i: scores[i]), best)
    said = f"{asked.title}: {asked.reason}."
    if goal.limited(np.array([asked.time_s]), np.array([asked.usd]))[0] > goal.limit:
        said += f" It does not meet {goal}."
    if not table.work.known(asked.strategy.compression):
        said += " This is for equal samples: how many more it takes to the target is unknown."
    return said, asked


def _price_notes(listed: Mapping[str, Price | None]) -> tuple[str, ...]:
    """What each device was taken to cost, and how far apart its listings lie."""
    said = []
    for name, one in listed.items():
        others = [x.usd_per_device_hour for x in listings(name)]
        apart = f" Listed from {money(min(others))} to {money(max(others))}." if len(others) > 1 else ""
        said.append(f"{one}.{apart}" if one else f"{name}: no price is known; --price {name!r}=DOLLARS gives one.")
    return tuple(said)
