"""Page of a slimmed network as one HTML file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from paceline.reporting.figures import slim_figures as figures
from paceline.reporting.pages import answer_page
from paceline.reporting.pages.answer_page import HINT, Page, Section
from paceline.reporting.text.slim_text import (
    WAYS_HEADS,
    accuracy_range_text,
    answer_text,
    asked_text,
    candidate_rows,
    choice_texts,
    comparison_rows,
    measured_after,
    range_name,
    training_rows,
)
from paceline.reporting.values import UNKNOWN, clean, count, number, percent, relative_error, seconds, size, time_range
from paceline.rundir import RunDir
from paceline.slim_record import CurvePoint, SlimMeasurement, SlimRecord

STEPS = (
    "The rest: steps without weights that the runtime does not do together with a layer, and its own cost. "
    "A layer's share is from the runtime's profile, its seconds from runs without it."
)


def write_page(record: SlimRecord, directory: str | Path) -> Path:
    """Write report.html into a directory and return its path. Raises UserError when it cannot be written."""
    return RunDir(directory).write_report(render(record))


def render(record: SlimRecord) -> str:
    """Render the page as HTML text. Equal records give equal bytes."""
    return answer_page.render(slim_page(record))


def slim_page(record: SlimRecord) -> Page:
    """Return the page: before and after, by layer, the widths, the networks on the path, the predictions."""
    before, after = record.whole, measured_after(record)
    page = Page("slimmed network", clean(record.model), clean(asked_text(record)), [f"{answer_text(record)}."])
    page.ranges = "Ranges of latencies are quartiles, of accuracies 95 % (Wilson)."
    page.card("speed-up", f"{number(record.speedup)}x", f"on {clean(record.timed_on, 40)}, {count(record.threads, 'thread')}")
    page.card("latency", seconds(after.latency_s), f"{_quartiles(after)}; {seconds(before.latency_s)} before")
    known = f"; {range_name(record)}: {accuracy_range_text(after, record)}" if record.held_out else ""
    page.card("accuracy", _accuracy(after.accuracy), f"{_accuracy(before.accuracy)} before{known}")
    page.card("file", size(after.file_bytes), f"{size(before.file_bytes)} before")
    if record.predicted_s:
        page.card(
            "predicted", seconds(record.predicted_s), f"{_error(record.predicted_s, after.latency_s)} of what was measured"
        )
    rows = [[clean(cell) for cell in row] for row in comparison_rows(record)]
    page.sections += [
        Section("Before and after", heads=["what", "before", "after"], rows=rows),
        *_candidates(record),
        *_layers(record),
        *_widths(record),
        *_curve(record),
        _predictions(record, after),
        *_kept_sections(record),
        *([Section("Notes", items=[clean(note, 1000) for note in record.notes])] if record.notes else []),
        Section("Training", heads=["what", "value"], rows=[[name, clean(value)] for name, value in training_rows(record)]),
        Section("Environment", heads=["what", "value"], rows=list(_environment(record))),
    ]
    return page


def _candidates(record: SlimRecord) -> Iterator[Section]:
    """Yield the networks that may meet the budget: smaller, with fewer bits, or both."""
    if record.candidates:
        rows = [[clean(cell) for cell in row] for row in candidate_rows(record)]
        text = clean(" ".join(choice_texts(record)), 1000)
        yield Section("Smaller, fewer bits, or both", text, heads=list(WAYS_HEADS), rows=rows, wide=True)


def _layers(record: SlimRecord) -> Iterator[Section]:
    picture = figures.latency_by_layer(record.layers)
    if not picture:
        return
    rows = [
        [
            clean(each.layer) or "the network",
            seconds(each.before_s),
            seconds(each.after_s),
            f"{number(each.before_s / each.after_s)}x" if each.after_s > 0 else "gone",
            seconds(each.predicted_s) if each.predicted_s else UNKNOWN,
            _error(each.predicted_s, each.after_s),
        ]
        for each in record.layers
    ]
    heads = ["layer", "before", "after", "speed-up", "predicted", "predicted against measured"]
    yield Section("Latency by layer", f"{STEPS} {HINT}", [picture], wide=True, heads=heads, rows=rows)


def _widths(record: SlimRecord) -> Iterator[Section]:
    picture = figures.widths_chart(record.widths)
    if not picture:
        return
    hidden = len(record.widths) - figures.LAYERS
    text = f"{count(hidden, 'layer')} that lost less are in the table alone." if hidden > 0 else ""
    rows = [
        [
            clean(each.layer),
            f"{each.before:,}",
            f"{each.after:,}",
            percent(each.after / each.before) if each.before else UNKNOWN,
        ]
        for each in record.widths
    ]
    yield Section("Widths", text, [picture], wide=True, heads=["layer", "before", "after", "stays"], rows=rows)


def _curve(record: SlimRecord) -> Iterator[Section]:
    """Yield a section on the networks on the path. The chosen one has the latency and accuracy of the record."""
    if not record.curve:
        return
    picture = figures.accuracy_against_latency(record.curve, _chosen(record))
    text = HINT if picture else "No accuracy is known, so there is no picture."
    yield Section("Accuracy against latency", text, [picture] if picture else [], wide=True)


def _predictions(record: SlimRecord, after: SlimMeasurement) -> Section:
    """Return a table of the networks that were both predicted and measured."""
    chosen = _chosen(record)
    points = [each for each in record.curve[1:] if each.predicted_s]
    rows = [_prediction(each, ", chosen" if record.curve[chosen] is each else "") for each in points]
    if not points and record.predicted_s:
        rows = [_prediction(CurvePoint("slimmed", after.latency_s, record.predicted_s, after.accuracy))]
    if not rows:
        return Section("Predicted beside measured", "Nothing was predicted of this network.")
    apart = [abs(relative_error(each.predicted_s, each.latency_s)) for each in points]
    text = f"In the median {percent(statistics.median(apart))} apart." if len(apart) > 1 else ""
    heads = ["network", "predicted", "measured", "difference", "accuracy"]
    return Section("Predicted beside measured", text, heads=heads, rows=rows)


def _prediction(point: CurvePoint, mark: str = "") -> list[str]:
    times = point.predicted_s, point.latency_s
    return [f"{clean(point.name)}{mark}", *map(seconds, times), _error(*times), _accuracy(point.accuracy)]


def _chosen(record: SlimRecord) -> int:
    """Return the index of the slimmed network on the path; -1 if it is not there."""
    after = measured_after(record)
    same = [
        place
        for place, each in enumerate(record.curve)
        if place and (each.latency_s, each.accuracy) == (after.latency_s, after.accuracy)
    ]
    return same[0] if same else -1


def _kept_sections(record: SlimRecord) -> Iterator[Section]:
    rows = [[clean(place) or "the network", clean(why, 500)] for place, why in record.kept.items()]
    if rows:
        yield Section("Kept whole", "Layers that the method did not make smaller, and why.", heads=["layer", "why"], rows=rows)


def _environment(record: SlimRecord) -> Iterator[list[str]]:
    for name, value in record.environment.items():
        yield [clean(name), clean(value)]
    yield ["runtime", f"{clean(record.timed_on)}, {count(record.threads, 'thread')}"]
    for name, place in record.files.items():
        yield [clean(name), clean(place)]


def _quartiles(measured: SlimMeasurement) -> str:
    return time_range(measured.low_s, measured.high_s, measured.latency_s)


def _accuracy(share: float | None) -> str:
    return UNKNOWN if share is None else percent(share)


def _error(predicted: float, measured: float) -> str:
    return percent(relative_error(predicted, measured), signed=True) if predicted and measured else UNKNOWN
