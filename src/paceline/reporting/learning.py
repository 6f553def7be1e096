"""Findings of a run about its learning rate, its batch and its layers: sentences and two figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.record import RunRecord
from paceline.reporting.figures.report_figures import DASHES, PALETTE, canvas, to_svg
from paceline.reporting.values import clean, number, percent
from paceline.trust_history import TrustHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = 6
"""Tensors that the picture names; the others are grey."""


def sentences(record: RunRecord | None, trust: TrustHistory | None) -> list[str]:
    """Return sentences on the recipe, the noise scale, skipped steps, and the layer that limits the rate, if known."""
    lines = [*_recipe(record), *_noise(record), *_skipped(record)] if record is not None else []
    return lines + ([_limit(trust)] if trust is not None else [])


def _recipe(record: RunRecord) -> list[str]:
    from paceline.strategy.recipe import Recipe

    try:
        return [f"Learning rate: {clean(Recipe.from_json(record.recipe), 400)}."] if record.recipe else []
    except (TypeError, ValueError):
        return ["Learning rate: the record's recipe cannot be read."]


def _noise(record: RunRecord) -> list[str]:
    e = record.batch_efficiency
    measured = any("noise_scale" in entry for entry in record.curve)
    names = ("batch", "low", "high", "critical_batch", "steps_factor", "samples_factor", "wasted_share")
    if not measured:
        return []
    if not all(isinstance(e.get(name), int | float) for name in names):
        return ["Noise scale: unknown. It shows between at least two workers, dense or bf16, over enough steps an epoch."]
    span = number(e["low"]) + (f" to {number(e['high'])}" if e["high"] > e["low"] else "")
    epochs = f"{len(_scales(record))} of {len(record.curve)} epochs"
    return [
        f"Noise scale: {span} samples in {epochs}; it usually grows as the loss falls.",
        f"The critical batch that follows is about {number(e['critical_batch'])} (a rough estimate: McCandlish et al. 2018, "
        f"sections 2.2 and 2.3). At a batch of {e['batch']:g} the run took {number(e['steps_factor'])} times the least "
        f"steps and {number(e['samples_factor'])} times the least samples. A small batch would have saved "
        f"{percent(e['wasted_share'])} of the work.",
    ]


def _skipped(record: RunRecord) -> list[str]:
    return [f"{record.skipped_steps} steps changed nothing: a gradient was NaN or infinite."] if record.skipped_steps else []


def _limit(trust: TrustHistory) -> str:
    rates = trust.rates()
    if not rates:
        return "No tensor had a trust ratio other than 1, so none limits the learning rate."
    name = min(rates, key=lambda key: rates[key][0])
    most = max(rates, key=lambda key: rates[key][0])
    middle, low, high = rates[name]
    compared = f", against {number(rates[most][0])} for {clean(most, 60)}" if most != name else ""
    return (
        f"{clean(name, 60)} limits the learning rate: with one rate for all tensors it would move by its own length in one "
        f"step at a rate of {number(middle)}{compared} (|w| / |u| of the median step; 10th to 90th percentile {number(low)} to "
        f"{number(high)}), the least of the {len(rates)} tensors that have a trust ratio; biases and norms have none."
    )


def noise_curve(records: Mapping[str, RunRecord]) -> str:
    """Draw the noise scale per epoch of each run that has one, and its batch (dotted); empty without any."""
    points = {label: _scales(record) for label, record in records.items()}
    drawn = {label: line for label, line in points.items() if line}
    if not drawn:
        return ""
    with canvas(4.9, 3.1) as figure:
        axes = figure.add_subplot()
        for n, (label, line) in enumerate(drawn.items()):
            colour, batch = PALETTE[f"run-{n % 6}"], _batch(records[label])
            mark: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(line) <= 30 else {}
            style = {"color": colour, "linestyle": DASHES[n % 6], "linewidth": 1.8, "label": clean(label, 30), **mark}
            axes.plot(*zip(*line, strict=True), **style)
            if batch:
                axes.axhline(batch, color=colour, linestyle=(0, (1, 2)), linewidth=1.2)
        _finish(figure, axes, "noise scale, samples", "epoch; dotted: the batch in use")
        description = "; ".join(
            f"{clean(label, 30)} from {number(line[0][1])} to {number(line[-1][1])} at a batch of {_batch(records[label]):g}"
            for label, line in drawn.items()
        )
        return to_svg(figure, "noise", f"Noise scale in samples over epochs: {description}")


def _finish(figure: Figure, axes: Axes, title: str, below: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    axes.set_xlabel(below)
    axes.set_title(title)
    axes.tick_params(which="both", length=0)
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside lower left", ncols=2, handlelength=3, fontsize=8)


def _scales(record: RunRecord) -> list[tuple[float, float]]:
    pairs = [(entry.get("epoch", n), entry.get("noise_scale")) for n, entry in enumerate(record.curve, start=1)]
    return [(float(x), float(y)) for x, y in pairs if isinstance(y, int | float) and 0 < y < math.inf]


def _batch(record: RunRecord) -> float:
    batch = record.strategy.get("global_batch_size")
    return float(batch) if isinstance(batch, int | float) and batch > 0 else 0.0


def trust_curve(history: TrustHistory, name: str, title: str) -> str:
    """Draw the trust ratio of every tensor over the steps, and name those that limit the rate most."""
    rates = history.rates()
    order = sorted(rates, key=lambda key: rates[key][0])
    named: Sequence[str] = order if len(order) <= DRAWN else [*order[: DRAWN - 1], order[-1]]
    if not named:
        return ""
    columns = {tensor: history.names.index(tensor) for tensor in order}
    with canvas(4.9, 3.1) as figure:
        axes = figure.add_subplot()
        for tensor in order:
            if tensor not in named:
                axes.plot(history.steps, history.trust_ratio[:, columns[tensor]], color=PALETTE["rule"], linewidth=0.8)
        for n, tensor in enumerate(named):
            axes.plot(
                history.steps,
                history.trust_ratio[:, columns[tensor]],
                color=PALETTE[f"run-{n % 6}"],
                linestyle=DASHES[n % 6],
                linewidth=1.6,
                label=clean(tensor, 30),
            )
        _finish(figure, axes, f"trust ratio, {title}", "step")
        last = history.trust_ratio[-1]
        ends = "; ".join(f"{tensor} ends at {number(float(last[columns[tensor]]))}" for tensor in named)
        return to_svg(figure, name, clean(f"Trust ratio of each tensor over the steps, {title}: {ends}", 1000))
