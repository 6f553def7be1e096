"""Validation of a set: read it, predict the rows that were not visible, and summarize the errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.csv_rows import read
from paceline.errors import UserError, shorten
from paceline.validation.baselines import Baselines
from paceline.validation.case import UNREADABLE, Case, HoldOut, Info, PrecisionSource, Skip
from paceline.validation.informed_predictor import InformedPredictor
from paceline.validation.score import ScoredCase, grouped, summary
from paceline.validation.sets import BAD_ROW, adapter

NOTHING: Sequence[Case] = []
FROM: Mapping[PrecisionSource, str] = {
    "row": "the rows say",
    "submission": "files of what the rows report on say",
    "usual": "the software's usual one",
}
"""Column with the precision of a row."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Errors of a set's predictions.

    Attributes:
        total: figures of all scored rows (``score.summary``); ``groups``: the same by model, device and scale.
        skipped: reason to number of rows, most first.
        precisions: precision of rows, with its source, to number of rows, most first.
        seen: rows that the predictor saw, and that are therefore not scored. ``points``: rows that are scored.
    """

    name: str
    info: Info
    hold_out: HoldOut
    total: dict[str, Any]
    groups: list[dict[str, Any]]
    skipped: dict[str, int]
    seen: int
    precisions: dict[str, int]
    points: tuple[ScoredCase, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return ``total`` with ``groups``, ``skipped`` and the method."""
        keys = ("points", "coverage", "mape", "median", "p90", "worst", "interval_share", "baselines")
        return {
            **{key: self.total[key] for key in keys},
            "groups": self.groups,
            "skipped": self.skipped,
            "precisions": self.precisions,
            **{key: value for key, value in self.total.items() if key not in keys},
            "seen": self.seen,
            "set": self.name,
            "info": str(self.info),
            "hold_out": self.hold_out,
        }


def validate(
    name: str,
    path: str | Path,
    info: Info | None = None,
    hold_out: HoldOut | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Validation:
    """Predict the rows of a file of measurements that ``info`` does not show.

    Args:
        name: name of the set, which defines the columns.
        hold_out: kind of rows excluded from the fit; by default device for ``none``, model for ``one_device``, else scale.
        say: receives messages about the progress.

    Raises:
        UserError: an unknown name; a file that cannot be read or lacks columns.
    """
    reader, info = adapter(name), info or Info()
    hold_out = hold_out or info.hold_out
    outcomes = [reader.read(row) for row in reader.joined(read(path, (*reader.texts, *reader.numbers)))]
    cases = [outcome for outcome in outcomes if isinstance(outcome, Case)]
    skips = [outcome for outcome in outcomes if isinstance(outcome, Skip)]
    say(f"{name}: {len(outcomes)} rows, {len(cases)} can be modelled")
    unreadable = [skip.detail for skip in skips if skip.keys == UNREADABLE]
    timed = [case for case in cases if case.step_s]
    seen = [case for case in timed if info.shows(case.keys)]
    scored = [case for case in cases if not info.shows(case.keys)]
    model, baselines = InformedPredictor(_visible(seen, info), info, hold_out), Baselines(seen, timed, hold_out)
    points: list[ScoredCase] = []
    for count, case in enumerate(scored, 1):
        try:
            points.append(ScoredCase(case, model(case), baselines(case) if case.step_s else {}))
        except BAD_ROW as error:
            skips.append(Skip(case.keys, shorten(error.message if isinstance(error, UserError) else str(error))))
            cases.remove(case)
        if count % 2000 == 0:
            say(f"{name}: {count} of {len(scored)} predicted")
    if unreadable:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        say(f"{name}: left out, since it cannot be read: {unreadable[0]}{more}")
    return Validation(
        name=name,
        info=info,
        hold_out=hold_out,
        total=summary(points, len(cases), skips),
        groups=grouped(points, cases, skips),
        skipped=dict(Counter(skip.reason for skip in skips).most_common()),
        seen=len(seen),
        precisions=dict(Counter(f"{case.precision} ({FROM[case.precision_from]})" for case in cases).most_common()),
        points=tuple(points),
    )


def _visible(seen: Sequence[Case], info: Info) -> Callable[[Case], Sequence[Case]]:
    """Return the visible rows for a case.

    ``one_device`` shows those of the same model and device only. If the file states the software's release, the rows of the
    same model, device and release are shown, if there are any: a user's records come from the running release.
    """
    own: dict[tuple[str, str], list[Case]] = {}
    same: dict[tuple[str, str, str], list[Case]] = {}
    for row in seen:
        k = row.keys
        own.setdefault((k.model, k.device), []).append(row)
        if k.release:
            same.setdefault((k.model, k.device, k.release), []).append(row)

    def of(case: Case) -> Sequence[Case]:
        k = case.keys
        others = own.get((k.model, k.device), NOTHING) if info.kind == "one_device" else seen
        return same.get((k.model, k.device, k.release), others)

    return of
