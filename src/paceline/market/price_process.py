"""A price that follows demand while sites follow their gains: Arrow and Hurwicz's process with gradient play.

Pal, Lin, Ahuja, Golubchik, The Cloudlet Bazaar, arXiv 1704.00845 (the abstract was at hand): dp/dt = kappa (demand - supply),
and each site moves along the gradient of its utility. Steps are finite here, so the process may oscillate or drift where the
continuous one settles; the result says so in place of an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, shown

Gradient = Callable[[float, Array], Array]
"""(price, quantities) -> dU_i/dq_i of each site; a quantity above 0 is bought, below 0 sold."""
WINDOW = 60
"""The last steps by which it is judged."""
MOST_STEPS = 5_000


@dataclass(frozen=True)
class PriceProcess:
    """What became of the process.

    Attributes:
        prices: over the steps, shape (steps + 1,). ``quantities``: shape (steps + 1, sites). ``excess``: bought less sold.
        converged: the excess and every move ended below the tolerance. ``oscillates``: the excess changes its sign again and
            again and does not shrink. Neither: it drifts, or would need more steps.
        advice: the next step, where it did not converge.
    """

    prices: Array
    quantities: Array
    excess: Array
    converged: bool
    oscillates: bool
    advice: str

    @property
    def price(self) -> float:
        """The last one: the answer where it converged."""
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
    """Follow the process until it rests, oscillates, or has taken all steps.

    Args:
        low, high: limits of each site's quantity, shape (sites,): what it can sell at most (below 0), and buy.
        kappa: how fast the price follows the excess. ``step``: how fast sites follow their gradients.
        tolerance: of excess and moves, beside the largest quantity.

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
    prices, path, excess = [price], [now], [float(now.sum())]
    for _ in range(most_steps):
        after = np.clip(now + step * gradient(prices[-1], now), low, high)
        prices.append(max(prices[-1] + kappa * float(after.sum()), 0.0))
        moved = float(np.abs(after - now).max(initial=0.0))
        now = after
        path.append(now)
        excess.append(float(now.sum()))
        settled = abs(excess[-1]) <= tolerance * scale or (prices[-1] == 0 and excess[-1] < 0)
        if settled and moved <= tolerance * scale and abs(prices[-1] - prices[-2]) <= tolerance * max(prices[-1], 1e-12):
            return _result(prices, path, excess, True, False, "")
        if len(excess) > 4 * WINDOW and len(excess) % WINDOW == 0 and _oscillates(np.array(excess), scale * tolerance):
            advice = f"it oscillates: try kappa={kappa / 4:.3g} and step={step / 4:.3g}"
            return _result(prices, path, excess, False, True, advice)
    return _result(
        prices, path, excess, False, False, f"it has not come to rest in {most_steps:,} steps: give more, or larger rates"
    )


def _oscillates(excess: Array, least: float) -> bool:
    """Whether the last window changes its sign at least four times, and swings as far as the one three windows before."""
    last, before = excess[-WINDOW:], excess[-4 * WINDOW : -3 * WINDOW]
    changes = int((np.sign(last[1:]) * np.sign(last[:-1]) < 0).sum())
    return changes >= 4 and bool(np.ptp(last) > max(least, 0.95 * float(np.ptp(before))))


def _result(
    prices: list[float], path: list[Array], excess: list[float], converged: bool, oscillates: bool, advice: str
) -> PriceProcess:
    return PriceProcess(np.array(prices), np.array(path), np.array(excess), converged, oscillates, advice)


__all__ = ["PriceProcess", "price_process"]
