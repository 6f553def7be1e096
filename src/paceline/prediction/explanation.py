"""A prediction as text: where the time goes, the critical path, why the range is so wide, what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from paceline.units import format_bytes, format_memory, format_seconds

if TYPE_CHECKING:
    from paceline.prediction.predict import Prediction

WIDTH = 80


def explanation(prediction: Prediction) -> str:
    """The whole explanation; no line is wider than 80 columns."""
    return "\n".join(_lines(prediction))


def _lines(p: Prediction) -> Iterator[str]:
    if p.headline:
        yield from (p.headline, "")
    yield from wrap(
        f"One step of {p.workload} takes {format_seconds(p.step_time_s)} "
        f"({format_seconds(p.low_s)} to {format_seconds(p.high_s)}): {p.samples_per_s:.4g} samples/s.",
        WIDTH,
    )
    yield ""
    yield "Where the time goes (seconds of the step that wait for each resource):"
    for name, seconds in sorted(p.exposed.items(), key=lambda item: -item[1]):
        if seconds > 0:
            yield f"  {name:<18}{format_seconds(seconds):>12}{seconds / p.step_time_s:>7.1%}"
    yield ""
    yield from wrap(f"Critical path: {critical_path(p)}", WIDTH)
    yield from wrap(f"Range: {_range(p)}", WIDTH)
    yield ""
    yield f"Memory on one device: {format_memory(p.memory_bytes)}" + ("" if p.fits else ", which does not fit")
    for name, size in p.memory.items():
        if size:
            yield f"  {name:<18}{format_memory(size):>12}"
    yield ""
    yield "Assumptions:"
    for sentence in p.assumptions:
        yield from wrap(sentence, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=True)


def critical_path(p: Prediction) -> str:
    """The chain of events that sets the step, in one sentence."""
    update = next(event for event in p.timeline if event.name == "optimizer")
    backward = max((e.end_s for e in p.timeline if e.name.startswith("backward")), default=0.0)
    if p.comm_s + p.codec_s == 0:
        return "forward, backward, optimizer; nothing is exchanged."
    if p.exposed_comm_s == 0:
        return (
            f"forward, backward, optimizer; the exchange of {format_bytes(p.wire_bytes_per_device)} "
            f"({format_seconds(p.comm_s)} of network) hides behind the backward pass."
        )
    last = max((e for e in p.timeline if e.lane != "compute"), key=lambda e: e.end_s)
    after = update.start_s - backward
    within = p.exposed_comm_s - after
    waiting = f", {format_seconds(within)} of it waiting for the exchange," if within > 1e-3 * p.step_time_s else ","
    return (
        f"forward and backward until {format_seconds(backward)}{waiting} then {format_seconds(after)} of exchange that "
        f"nothing hides (the last is {last.name}), and the optimizer from {format_seconds(update.start_s)}; "
        f"{p.bottleneck} is the bottleneck."
    )


def _range(p: Prediction) -> str:
    """Why the step may be faster or slower."""
    if any(sentence.startswith("Calibrated") for sentence in p.assumptions):
        lengths = any("depends on the gradients" in sentence for sentence in p.assumptions)
        payload = "; at both ends the payload that depends on the gradients is at its own" if lengths else ""
        return f"the spread of the calibration's repetitions{payload}; load that comes later is not in it."
    ends = ""
    if any("depends on the gradients" in sentence for sentence in p.assumptions):
        ends = " and the gradients' payload is at its least and its most"
    return (
        "80 % of measured steps should lie in it, by what the constants missed on measurements held out of their fit, and by "
        f"what slower or faster links would do to the step{ends}. Observed steps or a calibration on the machine narrow it."
    )
