"""Rate of failures, checkpoints and restarts of a run, and the time that they add on a cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from paceline.errors import UserError, shown
from paceline.hardware import Cluster
from paceline.planning.failures.daly import best_interval, slowdown
from paceline.units import format_seconds, parse_seconds

MANY = 512
"""Devices above which failures at published rates count by default."""
WRITE_S = 60.0
"""Seconds that a checkpoint stops the work by default. BLOOM took 40 s for 2.3 TB (Bekman 2022, The technology behind BLOOM
training). Asynchronous ones stop it for seconds, files on one slow server for minutes."""
RESTART_S = 15 * 60.0
"""Seconds from a failure to the next step by default: up to 10 minutes until it is found and its node replaced, and minutes
until the job runs (Jiang et al. 2024, MegaScale, arXiv:2402.15627, section 4; Kokolis et al. 2024, arXiv:2410.21680: 5 to 20
minutes)."""
EXAMPLE = "give the mean time of a device between failures: 50000h, of a node: node=6000h, or never"
_MTBF = re.compile(r"(?:(device|node)\s*=\s*)?(.+)")


@dataclass(frozen=True, slots=True)
class FailureCost:
    """Effect of failures on the time of one run.

    Attributes:
        factor: expected time over the time without failures and checkpoints; ``low`` and ``high``: with the rarest and with
            the most frequent failures.
        mean_s: mean time between failures of the whole cluster. ``device_s``: of one device.
        interval_s: seconds of work between checkpoints.
        source: source of the rate. ``published``: True if it is that of published runs.
    """

    factor: float
    low: float
    high: float
    mean_s: float
    device_s: float
    interval_s: float
    write_s: float
    restart_s: float
    source: str
    published: bool = False

    def failures(self, time_s: float) -> float:
        """Return the expected number of failures in a run that takes ``time_s``, failures included."""
        return time_s / self.mean_s

    def sentence(self, time_s: float) -> str:
        """Describe what ``time_s``, failures included, consists of."""
        lost = time_s * (1 - 1 / self.factor)
        return (
            f"{format_seconds(lost)} of it are failures and checkpoints: about {self.failures(time_s):,.3g} failures, one each "
            f"{format_seconds(self.mean_s)}; a checkpoint each {format_seconds(self.interval_s)} stops for "
            f"{format_seconds(self.write_s)}, a restart takes {format_seconds(self.restart_s)}. {self.source}"
            f"{_by_hand() if self.published else ''}"
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Mean time between failures, checkpoints and restarts.

    Attributes:
        between_s: mean seconds of one device between failures; inf: never; None: the median of published runs, above ``MANY``
            devices, else never.
        of_node: whether ``between_s`` is that of a node.
        interval_s: seconds of work between checkpoints; None: the best for the rate.
        write_s, restart_s: seconds of a checkpoint and of a restart.

    Raises:
        UserError: times that are not positive.
    """

    between_s: float | None = None
    of_node: bool = False
    interval_s: float | None = None
    write_s: float = WRITE_S
    restart_s: float = RESTART_S

    def __post_init__(self) -> None:
        for name in ("between_s", "interval_s"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UserError(f"{name}={shown(value)}", "give seconds above 0")
        for name in ("write_s", "restart_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name}={shown(getattr(self, name))}", "give seconds from 0 up")

    def on(self, cluster: Cluster) -> FailureCost | None:
        """Return what failures cost on a cluster; None if none count.

        Raises:
            UserError: failures that let no run end.
        """
        devices = cluster.world_size
        if self.between_s is None and devices <= MANY:
            return None
        own = self.between_s if self.between_s is not None else median(published_s().values())
        if math.isinf(own):
            return None
        each = own * (devices / cluster.num_nodes if self.of_node else 1.0)
        mean_s = each / devices
        interval_s = self.interval_s or best_interval(mean_s, self.write_s)

        def factor(between_s: float) -> float:
            return slowdown(between_s / devices, interval_s, self.write_s, self.restart_s)

        rates = sorted(published_s().values()) if self.between_s is None else [each]
        cost = FailureCost(
            factor(each),
            factor(rates[-1]),
            factor(rates[0]),
            mean_s,
            each,
            interval_s,
            self.write_s,
            self.restart_s,
            self._source(rates[0], rates[-1], each),
            self.between_s is None,
        )
        if math.isinf(cost.factor):
            raise UserError(
                f"{devices:,} devices that fail every {format_seconds(mean_s)} reach no checkpoint",
                "give a longer --mtbf, or a shorter --checkpoint-interval",
            )
        return cost

    def _source(self, least_s: float, most_s: float, each_s: float) -> str:
        if self.between_s is not None:
            return f"Your rate: a device fails every {_hours(each_s)}."
        names = ", ".join(published_s())
        return (
            f"Above {MANY} devices the median of published runs counts ({names}): a device fails every {_hours(each_s)} "
            f"({_hours(least_s)} to {_hours(most_s)}); --mtbf names yours."
        )


USUAL = Failures()
"""Published rates on more than ``MANY`` devices, and no failures on fewer."""


def parse_mtbf(text: str) -> tuple[float, bool]:
    """Parse ``50000h``, ``node=6000h`` or ``never``: seconds, and whether they are those of a node. Raises UserError."""
    match = _MTBF.fullmatch(text.strip())
    assert match is not None or not text.strip()
    if match is None:
        raise UserError("an empty time between failures", EXAMPLE)
    if match[2].casefold() in ("never", "none"):
        return math.inf, False
    try:
        return parse_seconds(match[2]), match[1] == "node"
    except UserError:
        raise UserError(f"a time between failures of {shown(text)}", EXAMPLE) from None


@cache
def published_s() -> Mapping[str, float]:
    """Return the mean seconds of one device between failures, by published run."""
    return {run["name"]: run["devices"] * run["days"] * 86400 / run["interruptions"] for run in published_runs()}


@cache
def published_runs() -> tuple[Mapping[str, Any], ...]:
    """Return the published runs with their failures and sources."""
    return tuple(_file()["run"])


@cache
def useful_shares() -> Mapping[str, float]:
    """Return the share of its days in which a published run trained, by run. Failures at the published rates explain little of
    what is missing from runs that people restarted by hand."""
    return {run["name"]: run["share"] for run in _file()["useful"]}


def _by_hand() -> str:
    """Return a sentence on days that this rate does not explain."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in useful_shares().items())
    return f" Restarts by hand and loss spikes are not in it; published runs trained in this part of their days: {shares}."


def _file() -> Mapping[str, Any]:
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files("paceline.planning.failures").joinpath("failure_rates.toml").read_text(encoding="utf-8"))


def _hours(seconds: float) -> str:
    return f"{float(f'{seconds / 3600:.3g}'):,.0f} h"
