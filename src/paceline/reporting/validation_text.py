"""The error of predictions on measured data as one table to paste."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.reporting.table import WIDTH
from paceline.reporting.values import clean

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("points", "coverage", "mape", "median", "p90", "worst", "interval_share")
HEADS = ("points", "cover", "MAPE", "median", "p90", "worst", "in 80%")
NAME_WIDTH = 21


def validation_text(figures: Mapping[str, Any], width: int = WIDTH) -> str:
    """``Validation.to_json()`` for the terminal: by model, device and scale, then baselines and skips."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None, highlight=False, emoji=False)
    console.print(_table(figures))
    lines = [f"{figures['set']}, seen: {figures['info']} ({figures['seen']} rows); held out of the fit: {figures['hold_out']}"]
    lines += [line.rstrip() for line in out.getvalue().splitlines()]
    lines += _baselines(figures)
    if "sync_share_points" in figures:
        points = figures["sync_share_points"]
        lines.append(f"Share of the step that waits for the exchange: off by {points:.1f} points in the mean")
    if "memory_mape" in figures:
        lines.append(f"Peak memory of a device: off by {_percent(figures['memory_mape'])} on {figures['memory_points']} rows")
    if figures.get("precisions"):
        lines.append("Precision of the products:")
        lines += [f"  {count:>6}  {name}" for name, count in figures["precisions"].items()]
    if figures["skipped"]:
        lines.append("Rows left out:")
        lines += [f"  {count:>6}  {clean(reason, width - 10)}" for reason, count in figures["skipped"].items()]
    return "\n".join(lines) + "\n"


def _baselines(figures: Mapping[str, Any]) -> list[str]:
    """A line each: on how many rows it speaks, its error and that of the prediction on the same rows."""
    if not figures["baselines"]:
        return ["Baselines: none has what it needs"]
    lines = [f"{'Baselines':<{NAME_WIDTH}}{'points':>8}{'MAPE':>9}{'prediction, same rows':>23}"]
    for name, error in figures["baselines"].items():
        own = figures["mape_on_baseline_rows"][name]
        lines.append(f"{name:<{NAME_WIDTH}}{figures['baseline_points'][name]:>8}{_percent(error):>9}{_percent(own):>23}")
    return lines


def _table(figures: Mapping[str, Any]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=NAME_WIDTH)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_row("all", *_cells(figures))
    by = ""
    for group in figures["groups"]:
        if group["by"] != by:
            table.add_section()
            by = group["by"]
        name = f"{group['name']} device{'s' * (group['name'] != '1')}" if by == "scale" else clean(group["name"], NAME_WIDTH)
        table.add_row(Text(name), *_cells(group))
    return table


def _cells(figures: Mapping[str, Any]) -> list[str]:
    return [str(figures["points"]), *(_percent(figures[name]) for name in COLUMNS[1:])]


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.0f}%" if value >= 0.995 else f"{100 * value:.1f}%"
