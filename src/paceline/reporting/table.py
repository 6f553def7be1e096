"""What the terminal shows: predicted beside measured in one table, and one run as text. Never wider than asked for."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.record import Metrics, RunRecord
from paceline.reporting.learning import sentences
from paceline.reporting.values import (
    HEADLINE,
    TOLERANCE,
    UNKNOWN,
    accuracy_of,
    clean,
    memory,
    percent,
    rate,
    rate_range,
    ratio,
    relative_error,
    seconds,
    size,
    strategy_text,
    time_range,
)

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.trust_history import TrustHistory

WIDTH = 80
NOTE = (
    f"( ) range: predicted, or from fast to slow steps measured. "
    f"Error: (predicted - measured) / measured; ok within {TOLERANCE * 100:.0f} %."
)


def comparison_table(predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord]) -> Table:
    """Predicted and measured, by run label: side by side for two runs, one below the other for more."""
    labels = list(dict.fromkeys([*records, *predictions]))
    return _side_by_side(labels, predictions, records) if len(labels) <= 2 else _stacked(labels, predictions, records)


def render(predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord], width: int = WIDTH) -> str:
    """``comparison_table`` as plain text, no line wider than ``width`` columns."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None, highlight=False, emoji=False)
    console.print(comparison_table(predictions, records))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def step_time_error(predicted: Metrics | None, measured: Metrics | None) -> tuple[float, str]:
    """The relative error of the predicted step time and its verdict: ``ok``, ``off`` or ``unknown``."""
    if predicted is None or measured is None:
        return math.nan, UNKNOWN
    error = relative_error(predicted.step_time_s, measured.step_time_s)
    return error, UNKNOWN if math.isnan(error) else "ok" if abs(error) <= TOLERANCE else "off"


def _new_table(name_width: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), caption=Text(NOTE), caption_justify="left")
    table.add_column("", overflow="fold", min_width=name_width)
    return table


def _side_by_side(labels: list[str], predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord]) -> Table:
    from rich.text import Text

    table = _new_table(12)
    for label in labels:
        for kind in ("predicted", "measured"):
            table.add_column(Text(f"{clean(label, 40)}\n{kind}"), justify="right", overflow="fold")
    for row in HEADLINE:
        cells = [_cell(row.text(run)) if run else UNKNOWN for label in labels for run in _pair(label, predictions, records)]
        table.add_row(row.name, *map(Text, cells))
    errors = [cell for label in labels for cell in ("", _error_cell(*_pair(label, predictions, records)))]
    table.add_row("step time error", *map(Text, errors))
    return table


def _stacked(labels: list[str], predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord]) -> Table:
    from rich.text import Text

    table = _new_table(32)
    for kind in ("predicted", "measured"):
        table.add_column(kind, justify="right", overflow="fold")
    for label in labels:
        pair = _pair(label, predictions, records)
        table.add_row(Text(clean(label, 40), style="bold"), "", "")
        for row in HEADLINE:
            table.add_row(
                "  " + row.name, *(Text(" ".join(_cell(row.text(run)).split("\n")) if run else UNKNOWN) for run in pair)
            )
        table.add_row("  step time error", "", Text(_error_cell(*pair).replace("\n", " ")))
        table.add_section()
    return table


def _pair(
    label: str, predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord]
) -> tuple[Metrics | None, Metrics | None]:
    return predictions.get(label), records.get(label)


def _cell(text: tuple[str, str]) -> str:
    value, spread = text
    return f"{value}\n({spread})" if spread else value


def _error_cell(predicted: Metrics | None, measured: Metrics | None) -> str:
    error, verdict = step_time_error(predicted, measured)
    return UNKNOWN if verdict == UNKNOWN else f"{percent(error, signed=True)}\n{verdict}"


def prediction_text(prediction: Metrics, width: int = WIDTH, transports: str = "") -> str:
    """One predicted run for the terminal: step time, what it is made of, what it rests on.

    Args:
        transports: the step over each transport of the network, as a sentence; empty where it is said.
    """
    return _text("predicted", prediction, [], width, transports)


def record_text(record: RunRecord, width: int = WIDTH) -> str:
    """One measured run for the terminal: as ``prediction_text``, with accuracy and what the run did."""
    lines = [
        ("final accuracy", f"{percent(accuracy_of(record))} of the held-out samples"),
        ("run", f"{record.epochs} epochs, {record.steps} steps, seed {record.seed}"),
    ]
    if record.nonfinite_steps:
        lines.append(("not compressed", f"{record.nonfinite_steps} steps with a NaN or infinite gradient went dense"))
    learning = learning_text(record, None, width)
    return _text("measured", record, lines, width) + (f"\n{learning}" if learning else "")


def learning_text(record: RunRecord, trust: TrustHistory | None, width: int = WIDTH) -> str:
    """What a run says of its rate, its batch and its layers, a paragraph each; empty for a record without."""
    return "".join(f"{textwrap.fill(line, width)}\n" for line in sentences(record, trust))


def _text(kind: str, run: Metrics, more: list[tuple[str, str]], width: int, transports: str = "") -> str:
    from rich.cells import cell_len, chop_cells

    pairs = [
        ("step time", f"{seconds(run.step_time_s)} ({time_range(run.low_s, run.high_s, run.step_time_s)})"),
        ("throughput", f"{rate(run.samples_per_s)} samples/s ({rate_range(run)})"),
        ("bottleneck", clean(run.bottleneck) or UNKNOWN),
        ("wire bytes", f"{size(run.wire_bytes_per_device)} per step per worker"),
        ("compression", f"{ratio(run.compression_ratio)} (dense bytes / wire bytes on the same exchange)"),
        ("memory", f"{memory(run.memory_bytes)} per device"),
        *more,
    ]
    headline = getattr(run, "headline", "")
    lines = [*([headline, ""] if headline else []), f"{clean(run.workload)}, {kind}", strategy_text(run.strategy)]
    lines += [*filter(None, [transports]), ""]
    out = [part for line in lines for part in (textwrap.wrap(line, width) or [""])]
    for name, value in pairs[:3]:
        out += _wrap(f"{name:<16}", value, width)
    out += ["", *_breakdown(run, width), ""]
    for name, value in pairs[3:]:
        out += _wrap(f"{name:<16}", value, width)
    if run.assumptions:
        out += ["", "It rests on:" if kind == "predicted" else "Note:"]
        for item in run.assumptions:
            out += _wrap("  - ", clean(item, 1000), width)
    # textwrap counts characters, a terminal counts columns: East Asian names are folded here
    folded = [part for line in out for part in (chop_cells(line, width) if cell_len(line) > width else [line])]
    return "\n".join(line.rstrip() for line in folded) + "\n"


def _wrap(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head)) or [head]


def _breakdown(run: Metrics, width: int) -> list[str]:
    """Where the step goes, as bars: those that add up to it, then the two resources behind the exchange."""
    room = max(10, width - 52)
    exposed: Mapping[str, float] = getattr(run, "exposed", {})  # of a prediction
    bubble = exposed.get("pipeline bubble", 0.0)
    lost: float = getattr(run, "overlap_loss_s", 0.0)
    rows = (
        ("compute", run.compute_s - bubble, "#"),
        *((("bubble", bubble, "="),) if bubble else ()),
        ("exposed comm.", run.exposed_comm_s - lost, "="),
        *((("overlap loss", lost, "="),) if lost else ()),
        ("network, busy", run.comm_s, "-"),
        ("codec, busy", run.codec_s, "-"),
    )
    parts = ["compute", *(["bubble"] if bubble else []), *(["exposed communication"] if lost else [])]
    out = [f"the step          {', '.join(parts)} and {'overlap loss' if lost else 'exposed communication'} add up to it"]
    for name, value, mark in rows:
        share = value / run.step_time_s if run.step_time_s > 0 else math.nan
        # a busy time can exceed the step where several devices or streams work at once
        filled = round(min(1.0, max(0.0, share)) * room) if math.isfinite(share) else 0
        bar = (mark * filled).ljust(room, "·" if mark in "#=" else " ")
        out.append(f"  {name:<14}{bar}  {seconds(value):>10}  {percent(share):>8}"[:width])
    return out
