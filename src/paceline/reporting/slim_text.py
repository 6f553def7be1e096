"""What slimming a network gave, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.reporting.screen import GAP, Bar, Block, Pair, Paragraph, Screen, Table, heading
from paceline.slim_record import Measured, SlimPrediction, SlimRecord
from paceline.units import format_bytes, format_count, format_seconds

LAYERS = 12
"""Layers that are shown; a longer list is cut to those that changed most."""


def slim_screen(record: SlimRecord) -> Screen:
    """Before and after, predicted beside measured, the widths."""
    after = measured_after(record)
    error = f" ({record.predicted_s / after.latency_s - 1:+.0%})" if record.predicted_s else ""
    return Screen(
        title=f"{record.model} {asked_text(record)}",
        answer=(
            Paragraph(f"{answer_text(record)}."),
            GAP,
            Table(("", "before", "after"), list(comparison_rows(record.whole, after, record.quantised)), frozenset({0})),
            GAP,
            Pair("predicted", f"{format_seconds(record.predicted_s)}{error}" if record.predicted_s else "unknown"),
            Pair("measured", f"{_time(after)}, quartiles {_range(after)}; {_threads(record.threads)}, in alternation"),
            GAP,
            heading("Widths"),
            *_widths(record),
            *(Paragraph(note) for note in record.notes),
            *_kept(record.kept),
        ),
        brief=f"{record.model}: {record.speedup:.2f}x faster, {_kept_text(record)}",
        why=(
            *(Pair(name, str(value)) for name, value in record.environment.items()),
            *(Pair(point.name, f"{format_seconds(point.latency_s)}, {_share(point.accuracy)}") for point in record.curve),
        ),
        why_holds="the machine, the networks on the path",
    )


def measured_after(record: SlimRecord) -> Measured:
    """The slimmed network. Raises ValueError where the record is a prediction."""
    if record.slimmed is None:
        raise ValueError("a slimmed network was measured")
    return record.slimmed


def asked_text(record: SlimRecord) -> str:
    """``slimmed to speedup=3x (auto)``."""
    return f"slimmed to {record.budget} ({record.method})"


def answer_text(record: SlimRecord) -> str:
    """What came of it, in a sentence without its end."""
    before, after = _time(record.whole), _time(measured_after(record))
    return f"{record.speedup:.2f}x faster on {record.target}: {before} before, {after} after; {_kept_text(record)}"


def predicted_screen(prediction: SlimPrediction) -> Screen:
    """What other widths would take."""
    whole = prediction.latency_s
    rows = [
        (f"{each.share:.3g}", format_seconds(each.latency_s), f"{whole / each.latency_s:.2f}x", format_bytes(each.weight_bytes))
        for each in prediction.widths
    ]
    share = prediction.budget_share
    meets = f"{share:.0%} of all structures meet {prediction.budget}" if share else f"no equal share meets {prediction.budget}"
    slowest = sorted(prediction.layers.items(), key=lambda item: -item[1])[:LAYERS]
    every = sum(prediction.layers.values())  # of another network than the whole one, where that is replaced
    return Screen(
        title=f"{prediction.model} on {prediction.target}: what other widths would take",
        answer=(
            Paragraph(f"The whole network takes {format_seconds(whole)}, measured on this machine; {meets}, predicted."),
            GAP,
            Table(("share of every layer", "latency", "speed-up", "weights in fp32"), rows, frozenset({0})),
            GAP,
            heading("Where the time goes"),
            *(Bar(name, seconds / every, (format_seconds(seconds),)) for name, seconds in slowest),
            *(Paragraph(note) for note in prediction.notes),
            *_kept(prediction.kept),
        ),
        brief=f"{prediction.model}: {format_seconds(whole)}; {meets}",
    )


def comparison_rows(before: Measured, after: Measured, quantised: Measured | None) -> Iterator[tuple[str, str, str]]:
    """What was measured of a network, before and after."""
    yield "latency", _time(before), _time(after)
    yield "parameters", format_count(before.parameters), format_count(after.parameters)
    yield "file", format_bytes(before.file_bytes), format_bytes(after.file_bytes)
    yield "accuracy", _accuracy(before), _accuracy(after)
    if before.loss is not None and after.loss is not None:
        yield "held-out loss", f"{before.loss:.4f}", f"{after.loss:.4f}"
    if quantised is not None:
        yield "in int8: latency", "", _time(quantised)
        yield "in int8: file", "", format_bytes(quantised.file_bytes)
        yield "in int8: accuracy", "", _accuracy(quantised)


def _widths(record: SlimRecord) -> Iterator[Block]:
    changed = sorted(record.widths, key=lambda width: width.after / width.before)[:LAYERS]
    shown = [width for width in record.widths if width in changed]
    for width in shown:
        yield Bar(width.layer, width.after / width.before, (f"{width.after} of {width.before}",))
    if len(shown) < len(record.widths):
        yield Paragraph(f"{len(record.widths) - len(shown)} layers that changed less are in slim.json.", "faint")


def _kept(kept: object) -> Iterator[Block]:
    if isinstance(kept, dict) and kept:
        yield GAP
        yield heading("Kept whole")
        for why in dict.fromkeys(kept.values()):
            places = [place for place, other in kept.items() if other == why]
            yield Pair(places[0] if len(places) == 1 else f"{len(places)} layers", why)


def _kept_text(record: SlimRecord) -> str:
    return f"accuracy {_accuracy(record.whole)} before, {_accuracy(measured_after(record))} after"


def _time(measured: Measured) -> str:
    return format_seconds(measured.latency_s)


def _range(measured: Measured) -> str:
    return f"{format_seconds(measured.low_s)} to {format_seconds(measured.high_s)}"


def _accuracy(measured: Measured) -> str:
    return _share(measured.accuracy)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.2f} %"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


__all__ = ["answer_text", "asked_text", "comparison_rows", "measured_after", "predicted_screen", "slim_screen"]
