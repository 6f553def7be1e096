"""Times and durations in logs: wall clock times, seconds since 1970, Slurm's durations, and changes of clocks."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache

NEVER = frozenset({"", "unknown", "none", "n/a", "na", "nan", "null", "(null)", "invalid", "-1"})
"""Words for a time that never happened, in any case."""
_NO_LIMIT = frozenset({*NEVER, "unlimited", "infinite", "partition_limit", "not_set", "invalid"})
_CUT = frozenset(word[:end] for word in ("unlimited", "partition_limit") for end in range(2, len(word)))
"""Beginnings of these words, which sacct prints in a narrow column: ``Partition_+``."""
_NUMBER = re.compile(r"^\d+(?:\.\d*)?(?:e\+?\d+)?$", re.IGNORECASE)
_DURATION = re.compile(r"^(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})(?:\.\d+)?$")
CLOCK_CHANGE_S = 3600.0
"""Hour by which a change of clocks makes a time earlier than one before it."""
_NO_LIMIT_MINUTES = (1 << 32) - 2
"""Slurm's number for no limit, and for an unset value (``INFINITE`` and ``NO_VAL`` of slurm.h)."""


def parse_time(text: str, zero_is_never: bool = True) -> float:
    """Return seconds since 1970, or NaN for a time that never happened.

    A time without a zone counts as UTC. A number is seconds, and 0 is never unless ``zero_is_never`` is False.

    Raises:
        ValueError: another text.
    """
    text = text.strip()
    if text.casefold() in NEVER:
        return math.nan
    if _NUMBER.match(text):
        value = float(text)
        return math.nan if zero_is_never and not value else value
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def is_wall_clock(text: str) -> bool:
    """Return whether a time is one of an unknown time zone."""
    text = text.strip()
    if text.casefold() in NEVER or _NUMBER.match(text):
        return False
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


@lru_cache(maxsize=4096)
def parse_duration(text: str) -> float:
    """Return the seconds of Slurm's ``[days-]hours:minutes:seconds`` or ``minutes:seconds``; NaN if none.

    A single number is minutes, and ``days-hours`` is legal (sbatch(1), ``--time``).

    Raises:
        ValueError: another text.
    """
    text = text.strip()
    if text.casefold() in _NO_LIMIT or text.casefold().removesuffix("+") in _CUT:
        return math.nan
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(text)
    parts = [int(part) for part in found["clock"].split(":")]
    if found["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(found["days"]) * 86400.0 + hours * 3600 + minutes * 60 + seconds
    if len(parts) == 1:
        return parts[0] * 60.0
    hours, minutes, seconds = parts if len(parts) == 3 else [0, *parts]
    return hours * 3600.0 + minutes * 60 + seconds


def parse_minutes(text: str) -> float:
    """Return the seconds of a number of minutes, or NaN for no limit. Raises ValueError for another text."""
    text = text.strip()
    if text.casefold() in _NO_LIMIT:
        return math.nan
    minutes = float(text)
    if math.isnan(minutes) or minutes < 0:
        raise ValueError(text)
    return math.nan if minutes >= _NO_LIMIT_MINUTES else minutes * 60


def after_clock_change(before_s: float, after_s: float) -> float:
    """Return ``after_s`` with an hour added if a change of clocks explains that it lies before ``before_s``."""
    return after_s + CLOCK_CHANGE_S if 0 < before_s - after_s <= CLOCK_CHANGE_S else after_s
