"""Gain of compression over dense gradients: in the ranking, and for compressions that do not compete by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Bools
from paceline.calibration.uncertainty import LINKS
from paceline.planning.compare.speedup_range import speedup_factor
from paceline.planning.search.ranking import PLAIN, RankedTable
from paceline.planning.search.tally import Exclusions
from paceline.prediction.learning.convergence import accuracies
from paceline.strategy.compression.compressions import DENSE
from paceline.workload import Workload
from paceline.workload.family import family

_INSIDE = "the range of the gain includes none"
MOST_NAMED = 1
"""Number of compressions outside the ranking that are named with their gain; the others are counted."""


@dataclass(frozen=True, slots=True)
class UnrankedCompression:
    """A compression that does not compete on some clusters, with its possible gain and the reason.

    Attributes:
        gain: largest gain of the goal's quantity over the best dense strategy on the same cluster; 0.1 is 10 %.
        low, high: ends of the 80 % range of that gain, without the errors that both share.
    """

    compression: str
    gain: float
    low: float
    high: float
    why: str

    def __str__(self) -> str:
        return f"{self.compression} {self.gain:.1%} ({self.low:+.0%} to {self.high:+.0%})"


def competing(table: RankedTable, chosen: Sequence[str], left_out: Exclusions) -> tuple[Bools, list[UnrankedCompression]]:
    """Return which candidates compete, and the other compressions, the largest possible gain first.

    A compression competes on a cluster under two conditions. Its accuracy was measured on the network's family. Its gain over
    the best dense strategy there exceeds the error of their ratio (``speedup_factor``: errors that both share cancel).

    Args:
        chosen: compressions that the user named, or whose penalty on the samples is given. These always compete.
    """
    names = np.array([s.gradient_exchange.compression.name for _, s in table.candidates])
    competes, score = np.ones(len(names), dtype=bool), table.score
    places: dict[int, list[int]] = {}
    for i, (cluster, _) in enumerate(table.candidates):
        places.setdefault(id(cluster), []).append(i)
    best: dict[str, UnrankedCompression] = {}
    shown = {name: _shown(name, table.workload) for name in sorted({*names.tolist()} - {DENSE.name, *chosen})}
    for members in map(np.array, places.values()):
        dense = members[(names[members] == DENSE.name) & table.known[members]]
        if not len(dense):
            continue
        first = int(dense[score[dense].argmin()])
        for name, why in shown.items():
            own = members[(names[members] == name) & table.known[members]]
            if not len(own):
                continue
            index = int(own[score[own].argmin()])
            gain = float(score[first] / score[index])
            factor = _factor(table, index, first) if gain > 1 else 1.0
            if why or gain <= factor:
                competes[own] = False
                unranked = UnrankedCompression(name, gain - 1, gain / factor - 1, gain * factor - 1, why or _INSIDE)
                best[name] = max((unranked, *filter(None, [best.get(name)])), key=lambda b: b.gain)
    for name in best:
        left_out.add(_left_out(best[name]), int((~competes & (names == name)).sum()))
    return competes, sorted((b for b in best.values() if b.gain >= PLAIN), key=lambda b: -b.gain)


def _left_out(unranked: UnrankedCompression) -> str:
    return f"{unranked.compression} is not ranked: {unranked.why}; naming it lets it compete"


def _factor(table: RankedTable, index: int, other: int) -> float:
    clusters = table.candidates[index][0], table.candidates[other][0]
    return speedup_factor(table.step(index), table.step(other), *clusters)


def _shown(compression: str, workload: Workload) -> str:
    """Return why the accuracy of a compression is unknown for this network; empty if measured on its family."""
    own = family(workload)
    measured = sorted({a.network for a in accuracies(compression)})
    if any(family(Workload.named(name)) == own for name in measured):
        return ""
    return f"not shown for {own} (accuracy measured on {', '.join(measured) or 'none'})"


def compression_worth(table: RankedTable, unranked: Sequence[UnrankedCompression]) -> str:
    """Describe the gain of compression: the best with it against the best without, and that of those outside the ranking."""
    competing_ones = any(s.gradient_exchange.compression.compresses for _, s in table.candidates)
    beside = _unranked_gains(unranked) if unranked else ""
    return " ".join(filter(None, (_best_with_it(table) if competing_ones or not beside else "", beside)))


def _unranked_gains(unranked: Sequence[UnrankedCompression]) -> str:
    named, more = unranked[:MOST_NAMED], len(unranked) - MOST_NAMED
    groups = {why: ", ".join(str(b) for b in named if b.why == why) for why in dict.fromkeys(b.why for b in named)}
    gains = "; ".join(f"{names}: {why}" for why, names in groups.items())
    others = f"; {more} more gain less" if more > 0 else ""
    return f"Not ranked, with its possible gain over dense: {gains}{others}. Naming one (compression) lets it compete."


def meets_unranked(table: RankedTable, competes: Bools) -> str:
    """Name the compressions that would meet the goal if the user named them; empty without any."""
    goal = table.goal
    limited = goal.limited(table.time_s, table.usd)
    meeting = np.flatnonzero(~competes & table.known & (limited <= goal.limit))
    names = dict.fromkeys(
        table.candidates[i][1].gradient_exchange.compression.name for i in meeting[limited[meeting].argsort()]
    )
    return f", or name a compression that would meet it: {', '.join(names)}" if names else ""


def _best_with_it(table: RankedTable) -> str:
    """Compare the best strategy with compression and the best without."""
    goal, score = table.goal, table.score
    lossy = np.array([s.gradient_exchange.compression.compresses for _, s in table.candidates])
    limited = goal.limited(table.time_s, table.usd) <= goal.limit
    if not lossy.any():
        return "Compression was not tried."
    plain, with_it = np.flatnonzero(~lossy & limited), np.flatnonzero(lossy & limited)
    if not len(plain):
        return f"Nothing without compression meets {goal}."
    if not len(with_it):
        return f"Compression does not pay: no strategy with it meets {goal}."
    dense, other = int(plain[score[plain].argmin()]), int(with_it[score[with_it].argmin()])
    gain = float(score[dense] / score[other])
    exchange = table.candidates[other][1].gradient_exchange
    own, name = exchange.compression, str(exchange)
    what = "costs" if goal.by_cost else "takes"
    if abs(gain - 1) < PLAIN:
        return f"Compression does not pay: its best strategy ({name}) gains less than {PLAIN:.0%} over dense."
    if gain < 1:
        return (
            f"Compression does not pay: its best strategy ({name}) {what} {1 / gain - 1:.1%} more than "
            f"dense. Steps with dense wait {_network_share(table, dense):.1%} of the time for links."
        )
    if not table.target.known(own):
        return (
            f"Compression pays only if its penalty is small: {name} {what} {1 - 1 / gain:.1%} less than dense for equal "
            f"samples. It breaks even at {gain - 1:.1%} more samples to the target. How many more it needs is unknown; give "
            "the factor as its penalty."
        )
    basis = "for equal samples" if table.target.curve is None else "to the same target"
    if table.target.curve is None and table.workload.name not in {a.network for a in accuracies(own.name)}:
        basis += f"; its effect on the accuracy of {table.workload.name} is unknown"
    return f"Compression pays: {name} {what} {1 - 1 / gain:.1%} less than the best strategy without it, {basis}."


def _network_share(table: RankedTable, index: int) -> float:
    p = table.step(index)
    return sum(p.exposed.get(name, 0.0) for name in LINKS) / p.step_time_s
