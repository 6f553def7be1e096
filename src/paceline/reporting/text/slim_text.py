"""Screens of slimming a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.reporting.text.screen import GAP, Bar, Block, Pair, Paragraph, Screen, Table, heading
from paceline.slim_record import (
    FEWER_BITS,
    SMALLER,
    Candidate,
    PredictedRow,
    PublishedDevice,
    SlimMeasurement,
    SlimPrediction,
    SlimRecord,
    accuracy_range,
)
from paceline.units import (
    format_byte_rate,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_seconds_range,
)

LAYERS = 12
"""Layers that are shown; a longer list is cut to those that changed most."""
NAMED = 4
"""Most layers that are named if they stay whole for one reason; more are counted."""


def slim_screen(record: SlimRecord) -> Screen:
    """Return the screen of a slimmed network: before and after, predicted and measured, widths."""
    after = measured_after(record)
    error = f" ({record.predicted_s / after.latency_s - 1:+.0%})" if record.predicted_s else ""
    return Screen(
        title=f"{record.model} {asked_text(record)}",
        answer=(
            *(Paragraph(text) for text in choice_texts(record)),
            Paragraph(f"{answer_text(record)}."),
            GAP,
            Table(("", "before", "after"), list(comparison_rows(record)), frozenset({0})),
            *_candidates(record),
            GAP,
            Pair("predicted", f"{format_seconds(record.predicted_s)}{error}" if record.predicted_s else "unknown"),
            Pair("measured", f"{_time(after)}, quartiles {_range(after)}; {_threads(record.threads)}, in alternation"),
            Pair("trained", "; ".join(f"{name} {value}" for name, value in training_rows(record))),
            GAP,
            heading("Widths"),
            *_widths(record),
            *(Paragraph(note) for note in record.notes),
            *_kept_blocks(record.kept),
        ),
        brief=f"{record.model}: {record.speedup:.2f}x faster, {_kept_text(record)}",
        why=(
            *(Pair(name, str(value)) for name, value in record.environment.items()),
            *(Pair(point.name, f"{format_seconds(point.latency_s)}, {_share(point.accuracy)}") for point in record.curve),
        ),
        why_holds="the machine, the networks on the path",
    )


def measured_after(record: SlimRecord) -> SlimMeasurement:
    """Return the measurements of the slimmed network. Raises ValueError if the record is a prediction."""
    if record.slimmed is None:
        raise ValueError("a slimmed network was measured")
    return record.slimmed


def asked_text(record: SlimRecord) -> str:
    """Describe the request: ``slimmed to speedup=3x (auto)``."""
    return f"slimmed to {record.budget} ({record.method})"


def answer_text(record: SlimRecord) -> str:
    """Describe the result as a sentence without its end."""
    before, after = _time(record.whole), _time(measured_after(record))
    return f"{record.speedup:.2f}x faster on {record.timed_on}: {before} before, {after} after; {_kept_text(record)}"


WAYS_HEADS = ("way", "weights", "latency", "file", "predicted", "accuracy", "meets")
"""Heads of ``candidate_rows``."""


def choice_texts(record: SlimRecord) -> Iterator[str]:
    """Return sentences: first the form of weights that meets the budget alone, then what meets it at the least loss."""
    if not record.candidates or not any(each.meets for each in record.candidates):
        return
    good = record.meeting
    if alone := next((each for each in good if each.way == FEWER_BITS), None):
        yield f"{alone.weights} alone meets {record.budget}, nothing removed: {_told(alone, record)}."
    if not good:
        yield f"Neither smaller nor fewer bits nor both meet {record.budget}, as measured."
        return
    best = good[0]
    if best is not alone:
        yield f"The least loss that meets {record.budget}: {_named(best)}, {_told(best, record)}."
    elif len(good) > 1:
        yield f"It is also the least loss that meets {record.budget}; next: {_named(good[1])}, {_told(good[1], record)}."


def _named(each: Candidate) -> str:
    return each.way if each.way == SMALLER else f"{each.way}, in {each.weights}"


def _told(each: Candidate, record: SlimRecord) -> str:
    speed = f"{record.whole.latency_s / each.measured.latency_s:.2f}x as fast, {format_bytes(each.measured.file_bytes)}"
    if each.measured.accuracy is None or record.whole.accuracy is None:
        return f"{speed}, accuracy unknown"
    lost = 100 * (record.whole.accuracy - each.measured.accuracy)
    return f"{speed}, {abs(lost):.2f} points of accuracy {'lost' if lost >= 0 else 'gained'}"


def candidate_rows(record: SlimRecord) -> Iterator[tuple[str, ...]]:
    """Return rows of the networks that may meet the budget."""
    for each in record.candidates:
        yield (
            each.way,
            each.weights,
            _time(each.measured),
            format_bytes(each.measured.file_bytes),
            format_bytes(each.predicted_bytes),
            "-" if each.measured.accuracy is None else f"{100 * each.measured.accuracy:.2f} %",
            each.meets or "-",
        )


def _candidates(record: SlimRecord) -> Iterator[Block]:
    if record.candidates:
        yield GAP
        yield Table(WAYS_HEADS, list(candidate_rows(record)), frozenset({0, 1}))


@dataclass(frozen=True)
class _Words:
    """Words for a varied quantity: all of it, the share of a row, the share that meets a budget, and for none."""

    plural: str
    share: str
    meeting: str
    none: str


_VARIED = {
    "width": _Words("widths", "share of every layer", "of all structures", "no equal share"),
    "rank": _Words("ranks", "share of the full rank", "of the full ranks", "none of these ranks"),
    "sparsity": _Words("sparsities", "zeros", "zeros", "no sparsity"),
}
_FIGURES = (
    ("one core", "one_core", format_flops),
    ("all cores", "all_cores", format_flops),
    ("memory", "bandwidth", format_byte_rate),
)


def predicted_screen(prediction: SlimPrediction) -> Screen:
    """Return the screen of the method's predicted effect, here or on a published device."""
    whole, words, device = prediction.latency_s, _VARIED[prediction.varied], prediction.device
    elsewhere = f" for {prediction.target}, timed on {prediction.timed_on}"
    place = f" on {device.name if device else prediction.target}" if prediction.timed_on == prediction.target else elsewhere
    head = (words.share, "latency", *(["range"] if device else []), "speed-up", "layers", "weights")
    rows = [
        (
            f"{100 * each.share:.3g} %",
            format_seconds(each.latency_s),
            *_spread(each),
            f"{whole / each.latency_s:.2f}x",
            f"{each.layers}",
            format_bytes(each.weight_bytes),
        )
        for each in prediction.rows
    ]
    slowest = sorted(prediction.layers.items(), key=lambda item: -item[1])[:LAYERS]
    every = sum(prediction.layers.values())  # of another network than the whole one, where that is replaced
    latency = " ".join([format_seconds(whole), *(f"({each})" for each in _spread(prediction))])
    how = f" on {_cores(prediction, device)} of {device.name}, predicted" if device else ", measured on this machine"
    meets = _meets(prediction, words)
    return Screen(
        title=f"{prediction.model}{place}: what other {words.plural} would take",
        answer=(
            *(Paragraph(each.text) for each in prediction.forms),
            Paragraph(f"The whole network takes {latency}{how}; {meets}."),
            GAP,
            Table(head, rows, frozenset({0})),
            GAP,
            heading("Time by layer"),
            *(Bar(name, seconds / every, (format_seconds(seconds),)) for name, seconds in slowest),
            *(Paragraph(note) for note in prediction.notes),
            *_figures(device),
            *_kept_blocks(prediction.kept),
        ),
        brief=f"{prediction.model}: {latency}; {_alone(prediction)}{meets}",
    )


def _alone(prediction: SlimPrediction) -> str:
    """Return the form of weights that meets the budget alone, as the beginning of a sentence; empty if there is none."""
    form = next((each.weights for each in prediction.forms if each.alone == "yes"), "")
    return f"{form} alone meets {prediction.budget}; " if form else ""


def _meets(prediction: SlimPrediction, words: _Words) -> str:
    if prediction.goal is None or not prediction.rows:
        return f"whether {words.plural} meet {prediction.budget} is not known"
    if prediction.meets is None:
        return f"{words.none} meets {prediction.budget}, predicted"
    return f"{100 * prediction.meets.share:.3g} % {words.meeting} meet {prediction.budget}, predicted"


def _cores(prediction: SlimPrediction, device: PublishedDevice) -> str:
    count = min(prediction.threads, device.cores)
    return f"{count} core{'s' if count > 1 else ''}"


def _spread(each: PredictedRow | SlimPrediction) -> list[str]:
    """Format the range, if there is one."""
    if each.low_s is None or each.high_s is None:
        return []
    return [format_seconds_range(each.low_s, each.high_s, each.latency_s)]


def _figures(device: PublishedDevice | None) -> Iterator[Block]:
    """Return published facts of a device, with their source."""
    if device is None:
        return
    yield GAP
    yield heading(f"Published figures of {device.name}, {device.cores} cores")
    for name, figure, show in _FIGURES:
        yield Pair(name, f"{show(getattr(device, figure))}: {device.sources[figure]}")


def comparison_rows(record: SlimRecord) -> Iterator[tuple[str, str, str]]:
    """Return rows of measurements of a network, before and after."""
    before, after, quantised = record.whole, measured_after(record), record.quantised
    yield "latency", _time(before), _time(after)
    yield "parameters", format_count(before.parameters), format_count(after.parameters)
    yield "file", format_bytes(before.file_bytes), format_bytes(after.file_bytes)
    yield "accuracy", _accuracy(before), _accuracy(after)
    if record.held_out:
        yield range_name(record), accuracy_range_text(before, record), accuracy_range_text(after, record)
    if before.loss is not None and after.loss is not None:
        yield "held-out loss", f"{before.loss:.4f}", f"{after.loss:.4f}"
    if quantised is not None:
        yield "in int8: latency", "", _time(quantised)
        yield "in int8: file", "", format_bytes(quantised.file_bytes)
        yield "in int8: accuracy", "", _accuracy(quantised)
        if record.held_out:
            yield f"in int8: {range_name(record)}", "", accuracy_range_text(quantised, record)


def range_name(record: SlimRecord) -> str:
    """Describe the basis of an accuracy's range: ``of 360 labels, 95 %``."""
    return f"of {record.held_out:,} labels, 95 %"


def accuracy_range_text(measured: SlimMeasurement, record: SlimRecord) -> str:
    """Format the range of the accuracy on other samples: ``88.1 to 93.2 %``."""
    if measured.accuracy is None or not record.held_out:
        return "unknown"
    low, high = accuracy_range(measured.accuracy, record.held_out)
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def training_rows(record: SlimRecord) -> Iterator[tuple[str, str]]:
    """Return how the networks were trained, by name. Records of earlier versions have only the data."""
    yield "data", f"{record.data}, {record.held_out:,} labels held out" if record.held_out else record.data
    if (made := record.training) is None:
        return
    yield "epochs", ", ".join(f"{stage} {count}" for stage, count in made.epochs.items())
    yield "optimizer", f"{made.optimizer}, rate {made.lr:g}, batches of {made.batch:,}"
    yield "workers", f"{made.workers}, gradients {made.compression}"
    yield "distillation", f"share {made.distill:g}" if made.distill else "none"
    yield "seed", f"{made.seed}"


def _widths(record: SlimRecord) -> Iterator[Block]:
    changed = sorted(record.widths, key=lambda width: width.after / width.before)[:LAYERS]
    shown = [width for width in record.widths if width in changed]
    for width in shown:
        yield Bar(width.layer, width.after / width.before, (f"{width.after} of {width.before}",))
    if len(shown) < len(record.widths):
        yield Paragraph(f"{len(record.widths) - len(shown)} layers that changed less are in slim.json.", "faint")


def _kept_blocks(kept: object) -> Iterator[Block]:
    if isinstance(kept, dict) and kept:
        yield GAP
        yield heading("Kept whole")
        for why in dict.fromkeys(kept.values()):
            places = [place for place, other in kept.items() if other == why]
            yield Pair(", ".join(places) if len(places) <= NAMED else f"{len(places)} layers", why)


def _kept_text(record: SlimRecord) -> str:
    return f"accuracy {_accuracy(record.whole)} before, {_accuracy(measured_after(record))} after"


def _time(measured: SlimMeasurement) -> str:
    return format_seconds(measured.latency_s)


def _range(measured: SlimMeasurement) -> str:
    return f"{format_seconds(measured.low_s)} to {format_seconds(measured.high_s)}"


def _accuracy(measured: SlimMeasurement) -> str:
    return _share(measured.accuracy)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.2f} %"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
