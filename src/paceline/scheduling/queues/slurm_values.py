"""Values of Slurm's settings in its own words: times and modes of preemption."""

from __future__ import annotations

import re

from paceline.errors import UserError, known_name
from paceline.scheduling.queues.slurm_settings import OWN_PREEMPT_MODES, OwnPreemptMode

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_NEVER = ("UNLIMITED", "INFINITE", "NONE", "")
_FLAGS = ("gang", "within", "priority")
"""Words of a mode that do not say what becomes of the preempted job."""


def slurm_seconds(text: str) -> float:
    """Parse a time of Slurm to seconds: ``minutes``, ``hours:minutes:seconds``, ``days-hours`` or longer. No bound: 0.

    Raises:
        UserError: another text.
    """
    if text.strip().upper() in _NEVER:
        return 0.0
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{text!r} is no time of Slurm", "write it as 7-00:00:00 or 90")
    days, *rest = match.groups()
    first, second, third = (int(part or 0) for part in rest)
    if days is not None:
        return int(days) * 86400.0 + first * 3600.0 + second * 60.0 + third
    if rest[2] is not None:
        return first * 3600.0 + second * 60.0 + third
    return first * 60.0 + second


def grace_seconds(text: str) -> float:
    """Parse ``GraceTime``, which is a number of seconds or a time."""
    return float(text) if text.strip().isdecimal() else slurm_seconds(text)


def exempt_seconds(text: str) -> float:
    """Parse ``PreemptExemptTime``. A value of -1 turns it off."""
    return 0.0 if text.strip() == "-1" else slurm_seconds(text)


def preempt_mode(text: str) -> OwnPreemptMode:
    """Return what ``PreemptMode`` does to a job; ``cluster`` if it states nothing."""
    words = [word for word in text.strip().casefold().split(",") if word and word not in _FLAGS]
    return known_name("PreemptMode", words[0], OWN_PREEMPT_MODES) if words else "cluster"  # type: ignore[return-value]


def preempts_within(text: str) -> bool:
    """Return whether ``PreemptMode`` lets jobs preempt others of the same quality of service."""
    return "within" in text.casefold().split(",")


_BYTES = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.IGNORECASE)


def slurm_bytes(text: str) -> float:
    """Parse an amount of memory to bytes. Slurm counts in MiB, or in the unit that the text names."""
    match = _BYTES.fullmatch(text.strip().removesuffix("B"))
    if match is None:
        raise UserError(f"{text!r} is no amount of memory of Slurm", "write it as 64G or 64000")
    return float(match[1]) * 2.0 ** (10 * ("KMGTP".index(match[2].upper() or "M") + 1))
