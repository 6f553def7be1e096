"""Screen of the errors of predictions on measured data, with one table to copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading
from paceline.reporting.values import clean

COLUMNS = ("points", "coverage", "mape", "median", "p90", "worst", "interval_share")
HEADS = ("points", "cover", "MAPE", "median", "p90", "worst", "in 80%")
NAME_LENGTH = 60


def validation_screen(figures: Mapping[str, Any]) -> Screen:
    """Return the screen of ``Validation.to_json()``: by model, device and scale, then baselines; ``--why`` has omissions."""
    name, points = figures["set"], figures["points"]
    error, inside = _percent(figures["mape"]), _percent(figures["interval_share"])
    return Screen(
        title=f"{name}, seen: {figures['info']} ({figures['seen']} rows); held out of the fit: {figures['hold_out']}",
        answer=tuple(_answer(figures)),
        brief=f"{name}, seen {figures['info']}: {points} points, mean error {error}, {inside} within the 80 % range",
        why=tuple(_reason_blocks(figures)),
        why_holds="precisions of the products, reasons for rows left out",
    )


def _answer(figures: Mapping[str, Any]) -> Iterator[Block]:
    rows = [("all", *_cells(figures))]
    for group in figures["groups"]:
        name = (
            f"{group['name']} device{'s' * (group['name'] != '1')}"
            if group["by"] == "scale"
            else clean(group["name"], NAME_LENGTH)
        )
        rows.append((name, *_cells(group)))
    yield Table(("", *HEADS), rows)
    yield GAP
    yield from _baselines(figures)
    if "sync_share_points" in figures:
        points = figures["sync_share_points"]
        yield Paragraph(f"Share of the step that waits for the exchange: off by {points:.1f} points in the mean")
    if "memory_mape" in figures:
        rows_text = f"{_percent(figures['memory_mape'])} on {figures['memory_points']} rows"
        yield Paragraph(f"Peak memory of a device: off by {rows_text}")
    if figures["skipped"]:
        yield Paragraph(f"Rows left out: {sum(figures['skipped'].values()):,}")


def _baselines(figures: Mapping[str, Any]) -> Iterator[Block]:
    """Return a row for each baseline: its number of rows, its error and that of the prediction on the same rows."""
    if not figures["baselines"]:
        yield Paragraph("Baselines: the rows lack their inputs")
        return
    rows = [
        (name, str(figures["baseline_points"][name]), _percent(error), _percent(figures["mape_on_baseline_rows"][name]))
        for name, error in figures["baselines"].items()
    ]
    yield Table(("Baselines", "points", "MAPE", "prediction, same rows"), rows)


def _reason_blocks(figures: Mapping[str, Any]) -> Iterator[Block]:
    for title, counts in (("Precision of the products:", figures.get("precisions")), ("Rows left out:", figures["skipped"])):
        if counts:
            yield heading(title)
            yield Table(("", ""), [(str(number), clean(text, 1000)) for text, number in counts.items()], frozenset({1}))


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return [str(figures["points"]), *(_percent(figures[name]) for name in COLUMNS[1:])]


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.0f}%" if value >= 0.995 else f"{100 * value:.1f}%"
