"""Arrow and Hurwicz's price process with gradient play: the price follows demand while sites follow their gains.

Pal, Lin, Ahuja, Golubchik, The Cloudlet Bazaar, arXiv 1704.00845 (the abstract was at hand): dp/dt = kappa (demand - supply),
and each site moves along the gradient of its utility. Steps are finite here, so the process may oscillate or drift where the
continuous one converges. Linear utilities cycle even in continuous time. Then the result says so instead of giving a price.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.polynomial import Polynomial

from paceline.array_types import Array
from paceline.errors import UserError, shown

Gradient = Callable[[float, Array], Array]
"""(price, quantities) -> dU_i/dq_i of each site; a positive quantity is bought, a negative one sold."""
MOST_STEPS = 5_000
JUDGED = 0.75
"""Last share of the steps, in which oscillation is judged. Earlier steps may still approach a cycle."""
LEAST_CYCLES = 4
"""Fewest cycles that show an oscillation. So the longest period found is a fifth of the judged steps, 750 of 5,000."""
GROUPS = 8
"""Groups of successive cycles whose swings are compared."""
LEAST_SHRINK = 0.005
"""Swings that shrink by less over the judged steps count as lasting: converging would take thousands of times as many steps."""
IRREGULAR = 0.35
"""Relative standard deviation of the cycles' lengths above which they have no period; chance gives about 0.5."""


@dataclass(frozen=True)
class PriceProcess:
    """Result of the process.

    Attributes:
        prices: over the steps, shape (steps + 1,). ``quantities``: shape (steps + 1, sites). ``excess``: bought less sold.
        converged: the excess and every move ended below the tolerance.
        oscillates: it swings with a period, and the swings do not shrink. If both are False, it moves slowly, its swings
            shrink, or it has no period.
        period: steps of a cycle if it oscillates, else NaN.
        advice: the next step if it did not converge.
    """

    prices: Array
    quantities: Array
    excess: Array
    converged: bool
    oscillates: bool
    period: float
    advice: str

    @property
    def price(self) -> float:
        """The last price: the answer if it converged."""
        return float(self.prices[-1])


def price_process(
    gradient: Gradient,
    low: Array,
    high: Array,
    price: float = 0.0,
    quantities: Array | None = None,
    kappa: float = 0.1,
    step: float = 0.1,
    tolerance: float = 1e-6,
    most_steps: int = MOST_STEPS,
) -> PriceProcess:
    """Follow the process until it converges or has taken all steps, and judge whether it oscillates.

    Args:
        low, high: limits of each site's quantity, shape (sites,): the most it can sell (negative) and buy.
        kappa: how fast the price follows the excess. ``step``: how fast sites follow their gradients.
        tolerance: that of the excess relative to the largest quantity, and of moves relative to the largest earlier one.

    Raises:
        UserError: a rate that is not above 0, or limits of no use.
    """
    for what, rate in (("kappa", kappa), ("step", step), ("tolerance", tolerance)):
        if not 0 < rate < np.inf:
            raise UserError(f"{what} is {shown(rate)}", "give a number above 0")
    if low.shape != high.shape or not (low <= high).all():
        raise UserError("limits of quantities that are no ranges", "give the lower and the upper limit of each site")
    scale = max(float(np.abs(low).max(initial=0.0)), float(np.abs(high).max(initial=0.0)), 1e-12)
    now = np.clip(np.zeros(len(low)) if quantities is None else quantities, low, high)
    prices, path, fastest = [price], [now], 0.0
    converged = False
    for _ in range(most_steps):
        after = np.clip(now + step * gradient(prices[-1], now), low, high)
        excess = float(after.sum())
        prices.append(max(prices[-1] + kappa * excess, 0.0))
        path.append(after)
        moved = float(np.abs(after - now).max(initial=0.0))
        fastest, now = max(fastest, moved), after
        # A slow process always moves little: it has converged when it moves little relative to its earlier moves.
        rests = moved <= max(tolerance * min(fastest, scale), 1e-14 * scale)
        converged = rests and (abs(excess) <= tolerance * scale or (prices[-1] == 0 and excess < 0))
        if converged:
            break
    steps = np.array(path)
    period = math.nan if converged else _period(steps, scale * tolerance)
    oscillates = not math.isnan(period)
    advice = ""
    if oscillates:
        advice = f"it oscillates, a cycle in {period:.3g} steps: try kappa={kappa / 4:.3g} and step={step / 4:.3g}"
    elif not converged:
        advice = f"it has not come to rest in {most_steps:,} steps: give more, or other rates"
    return PriceProcess(np.array(prices), steps, steps.sum(axis=1), converged, oscillates, period, advice)


def _period(path: Array, least: float) -> float:
    """Return the steps of a lasting cycle of the quantities, or NaN.

    Args:
        path: shape (steps + 1, sites). ``least``: smaller swings are rounding. A slow trend is subtracted from each site's
            moves, so that drift does not hide a cycle. The site with the largest swings decides.
    """
    moves = np.diff(path[int((1 - JUDGED) * len(path)) :], axis=0)
    at = np.arange(len(moves))
    found = [(0.0, math.nan)]
    for site in range(path.shape[1] if len(moves) > 2 * LEAST_CYCLES else 0):
        swing = moves[:, site] - Polynomial.fit(at, moves[:, site], 3)(at)
        period = _lasting(swing)
        size = float(np.sqrt((swing**2).mean())) * period / (2 * math.pi)
        if size > least:
            found.append((size, period))
    return max(found)[1]


def _lasting(swing: Array) -> float:
    """Return the mean length of the cycles if they are regular and do not shrink; else NaN."""
    up = np.flatnonzero((swing[:-1] <= 0) & (swing[1:] > 0))
    if len(up) <= LEAST_CYCLES:
        return math.nan
    crossed = up + swing[up] / (swing[up] - swing[up + 1])
    lengths = np.diff(crossed)
    if lengths.std() > IRREGULAR * lengths.mean():
        return math.nan
    groups = min(GROUPS, len(lengths))
    edges = up[np.round(np.linspace(0, len(lengths), groups + 1)).astype(int)] + 1
    sizes = np.array([np.log((swing[first:last] ** 2).mean()) / 2 for first, last in pairwise(edges)])
    place = np.linspace(-0.5, 0.5, groups)
    grows = float(place @ sizes / (place @ place))  # the logarithm, from the first group to the last
    error = float(np.sqrt(((sizes - sizes.mean() - grows * place) ** 2).sum() / (groups - 2) / (place @ place)))
    return float(lengths.mean()) if grows >= -max(LEAST_SHRINK, error) else math.nan
