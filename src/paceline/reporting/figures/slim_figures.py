"""SVG figures of a slimmed network: latency by layer, widths, accuracy against latency."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.reporting.figures.plot import LINE, Plot, Scale, tick
from paceline.reporting.values import clean, count, percent, seconds
from paceline.slim_record import CurvePoint, LayerLatency, Width

LAYERS = 24
"""Layers that are drawn; the others are one sum."""
HEIGHT = 220.0
NAME = 28
"""Characters of a layer's name that fit on a phone next to the numbers."""
BEFORE, AFTER, PREDICTED = "other", "network", "codec"
"""Classes of the page's style."""
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def drawn_layers(layers: Sequence[LayerLatency]) -> list[LayerLatency]:
    """Return the slowest layers before or after, in network order, and the sum of the others. Predicted is 0 if one is 0."""
    first = sorted(layers, key=lambda each: -max(each.before_s, each.after_s))[:LAYERS]
    shown = [each for each in layers if each in first][:LAYERS]
    if others := [each for each in layers if each not in shown]:
        predicted = [each.predicted_s for each in others]
        sums = sum(each.before_s for each in others), sum(each.after_s for each in others)
        shown.append(LayerLatency(f"{count(len(others), 'other layer')}", *sums, sum(predicted) if all(predicted) else 0.0))
    return shown


def latency_by_layer(layers: Sequence[LayerLatency]) -> str:
    """Draw three bars for each layer: before, after and predicted. Empty without times."""
    shown = drawn_layers(layers)
    longest = max((max(each.before_s, each.after_s, each.predicted_s) for each in shown[:LAYERS]), default=0.0)
    if not longest > 0:
        return ""
    unit, scale = _unit(longest)
    x = Scale(0, 1.04 * longest / scale)
    plot, row = Plot(), 56.0
    top = _keys(plot, ((BEFORE, "before, measured"), (AFTER, "after, measured"), (PREDICTED, "after, predicted")))
    bottom = top + row * len(shown)
    height = plot.x_axis(bottom, top, [(x.share(mark), tick(mark)) for mark in x.ticks(6)], f"{unit} of one run")
    for number, each in enumerate(shown):
        y = top + row * number
        plot.text(0, y + 14, tail(each.layer))
        plot.text(1, y + 14, f"{seconds(each.before_s)} to {seconds(each.after_s)}", "", "end")
        bars = (BEFORE, "before", each.before_s), (AFTER, "after", each.after_s), (PREDICTED, "predicted", each.predicted_s)
        for place, (kind, when, value) in enumerate(bars):
            if value <= longest and (when != "predicted" or value > 0):  # a larger sum of others is its text alone
                tip = f"{clean(each.layer)}, {when}: {seconds(value)}"
                plot.rect(0, y + 19 + 10 * place, x.share(value / scale), 9, kind, tip)
    words = "; ".join(
        f"{clean(each.layer, 40)} {seconds(each.before_s)} before, {seconds(each.after_s)} after" for each in shown
    )
    return plot.svg(height, f"Latency by layer. {words}", "flush")


def widths_chart(widths: Sequence[Width]) -> str:
    """Draw a bar for each of the layers that lose most: structures before, and remaining structures. Empty without layers."""
    first = sorted(widths, key=lambda each: each.after - each.before)[:LAYERS]
    shown = [each for each in widths if each in first][:LAYERS]
    if not shown:
        return ""
    x = Scale(0, 1.02 * max(1, *(each.before for each in shown)))
    plot, row = Plot(), 42.0
    top = _keys(plot, ((BEFORE, "before"), (AFTER, "after")))
    bottom = top + row * len(shown)
    marks = [mark for mark in x.ticks(6) if mark == round(mark)]
    what = "structures: filters, heads, units or kernel rows"
    height = plot.x_axis(bottom, top, [(x.share(mark), tick(mark)) for mark in marks], what)
    for number, each in enumerate(shown):
        y, text = top + row * number, f"{each.after:,} of {each.before:,}"
        plot.text(0, y + 14, tail(each.layer))
        plot.text(1, y + 14, text, "", "end")
        tip = f"{clean(each.layer)}: {text}"
        plot.rect(0, y + 19, x.share(each.before), 16, BEFORE, tip)
        plot.rect(0, y + 19, x.share(each.after), 16, AFTER, tip)
    words = "; ".join(f"{clean(each.layer, 40)} {each.after} of {each.before}" for each in shown)
    return plot.svg(height, f"Widths of the layers: {words}", "flush")


def accuracy_against_latency(points: Sequence[CurvePoint], chosen: int) -> str:
    """Draw each network by latency and accuracy, with its predicted latency, and mark the chosen one.

    Args:
        points: the whole network first. Empty if no accuracy is known.
        chosen: index of the network that the command returns; -1: none.
    """
    known = [(number, each, 100 * each.accuracy) for number, each in enumerate(points) if each.accuracy is not None]
    if not known:
        return ""
    longest = max(max(each.latency_s, each.predicted_s) for _, each, _ in known)
    unit, scale = _unit(longest)
    least, most = min(share for *_, share in known), max(share for *_, share in known)
    room = max(0.15 * (most - least), 0.5)
    x, y = Scale(0, 1.06 * longest / scale), Scale(max(least - room, 0.0), min(most + room, 100.0))
    plot = Plot()
    plot.text(0, 14, "accuracy on held-out samples, %", "title")
    top = LINE + 14
    for kind, text in (("run-0", "measured"), (PREDICTED, "at the predicted latency"), ("chosen", "chosen")):
        plot.key(top - 4, kind, text)
        top += LINE
    bottom = top + 8 + HEIGHT

    def at(latency_s: float, share: float) -> tuple[float, float]:
        return x.share(latency_s / scale), bottom - HEIGHT * y.share(share)

    plot.y_axis([(at(0, mark)[1], tick(mark)) for mark in y.ticks(5)])
    height = plot.x_axis(bottom, bottom, [(x.share(mark), tick(mark)) for mark in x.ticks(6)], f"{unit} of one run")
    plot.path([at(each.latency_s, share) for _, each, share in known], "ideal")
    for number, each, share in known:
        tip = f"{clean(each.name, 60)}: {seconds(each.latency_s)}, {percent(share / 100)}"
        place, low = at(each.latency_s, share)
        plot.dot(place, low, "chosen" if number == chosen else "run-0", tip, 7 if number == chosen else 5)
        if each.predicted_s > 0 and number:
            plot.dot(*at(each.predicted_s, share), PREDICTED, f"{tip}; predicted {seconds(each.predicted_s)}", 4)
        if number in (0, chosen):
            beside = low + 22 if number else low - 11  # the line to the others comes from above on the right
            plot.text(place, beside, clean(each.name, NAME), "", "end" if place > 0.5 else "start")
    words = "; ".join(f"{clean(each.name, 40)} {percent(share / 100)} in {seconds(each.latency_s)}" for _, each, share in known)
    return plot.svg(height, f"Accuracy against latency: {words}")


def tail(name: str) -> str:
    """Shorten a layer's long name to its end, which distinguishes layers."""
    flat = clean(name, 1000) or "the network"
    return flat if len(flat) <= NAME else f"…{flat[1 - NAME :]}"


def _keys(plot: Plot, keys: Sequence[tuple[str, str]]) -> float:
    for number, (kind, text) in enumerate(keys):
        plot.key(LINE * number, kind, text)
    return LINE * len(keys) + 8


def _unit(longest: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if longest >= 2 * scale), _UNITS[-1])
