"""Deadlines: a duration, a day of the week or a date, converted to seconds from now."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from paceline.errors import UserError
from paceline.units import parse_seconds

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EVENING = time(17)
"""Time of day of a deadline that names only a day."""
_WRITE = "write it as 3d, 36h, friday, tomorrow or 2026-12-01"


def seconds_until(text: str, now: datetime) -> float:
    """Parse a deadline into seconds from ``now``.

    Accepted: ``3d``, ``2 weeks``; ``friday``, ``tomorrow`` or ``2026-12-01``, each until 17:00; or ``2026-12-01T09:00``.

    The weekday of ``now`` itself means next week after 17:00.

    Raises:
        UserError: any other text, or a date in the past.
    """
    word = text.strip().casefold()
    weeks = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(?:w|weeks?)", word)
    if weeks:
        return float(weeks[1]) * 7 * 86400
    due = _day(word, now) or _date(word, now)
    if due is None:
        try:
            return parse_seconds(text)
        except UserError as error:
            raise UserError(f"{text!r} is no time to be done by", _WRITE) from error
    if due <= now:
        raise UserError(f"{text!r} is over", "name a time to come")
    return (due - now).total_seconds()


def _day(word: str, now: datetime) -> datetime | None:
    """Return 17:00 of a named day; None for another word."""
    if word in ("today", "tonight", "tomorrow"):
        return _evening(now, 1 if word == "tomorrow" else 0)
    meant = [index for index, day in enumerate(DAYS) if len(word) >= 3 and day.startswith(word)]
    if not meant:
        return None
    evening = _evening(now, (meant[0] - now.weekday()) % 7)
    return evening if evening > now else evening + timedelta(days=7)


def _evening(now: datetime, days: int) -> datetime:
    return datetime.combine(now.date() + timedelta(days=days), EVENING, now.tzinfo)


def _date(word: str, now: datetime) -> datetime | None:
    """Parse a date of ISO 8601, with or without a time of day; None for another word."""
    if not re.match(r"\d{4}-\d{2}-\d{2}", word):
        return None
    try:
        due = datetime.fromisoformat(word.upper())
    except ValueError:
        return None
    if len(word) == len("2026-12-01"):
        due = datetime.combine(due.date(), EVENING)
    return due if due.tzinfo else due.replace(tzinfo=now.tzinfo)
