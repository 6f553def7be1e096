"""Predict slimming before training: the whole network and a method's possible results, here or on a published device."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.edge.slim_data import example_inputs
from paceline.edge.slim_run import SlimRun, first_budget, notes_on
from paceline.edge.weights_forecast import WeightsForecast, weights_forecasts
from paceline.hardware.edge import EdgeDevice
from paceline.slim_record import PredictedForm, PredictedRow, PublishedDevice, SlimPrediction
from paceline.slimming.latency.edge_errors import errors_note
from paceline.slimming.latency.edge_times import EdgeTimes, edge_times, on_device
from paceline.slimming.latency.latency_forecast import Prospect, Prospects
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.methods import METHODS
from paceline.slimming.slim import Slim
from paceline.slimming.structures.shrink import module_bytes
from paceline.slimming.structures.tracing import structures_of
from paceline.training.runs.starting_model import build_model

Span = tuple[float, float | None, float | None]
"""Seconds, and their range if carried over from another processor."""


def predict(run: SlimRun, device: EdgeDevice | None = None) -> SlimPrediction:
    """Predict possible results of the run's method without any training.

    Args:
        run: its data may be ``slim_data.RANDOM``: random inputs of the network's declared shape.
        device: another processor, on ``run.threads`` of its cores; None: this machine.

    Raises:
        UserError: a network that cannot be traced or exported; a budget that the whole network meets.
    """
    name, seed = run.training.model, run.training.seed
    model = build_model(name, seed).eval()
    inputs = example_inputs(name, model, run.training.data, seed)
    threads = 1 if device else run.threads  # a device's prediction is scaled from one core
    slim = Slim(model, inputs, budget=first_budget(run), method=run.method, threads=threads, target=run.target)
    place: _Here | _There = _There(slim, device, run.threads) if device else _Here(slim)
    prospects = METHODS[run.method].prospects(slim)
    unknown, kind = place.unknown(prospects), run.budget.kind
    goal = None if kind == "accuracy" else slim.budget.of(module_bytes(slim.model) if kind == "size" else place.whole[0])
    rows = []
    for each in () if unknown else prospects.every:
        latency_s, low_s, high_s = place.span(each)
        rows.append(PredictedRow(prospects.varied, each.share, each.layers, latency_s, each.weight_bytes, low_s, high_s))
    meeting = (each for each in rows if goal is not None and (each.weight_bytes if kind == "size" else each.latency_s) <= goal)
    forms = () if device else _forms(slim, run, rows)
    return SlimPrediction(
        model=run.training.model,
        method=run.method,
        target=run.target,
        budget=str(run.budget),
        threads=run.threads,
        latency_s=place.whole[0],
        varied=prospects.varied,
        rows=tuple(each for each in rows if each.share in prospects.shown),
        layers=place.layers,
        goal=goal,
        meets=next(meeting, None),
        kept={} if unknown else dict(prospects.kept),
        int8=forms[0].text if forms else "",
        forms=forms,
        notes=((unknown,) if unknown else prospects.notes) + (*notes_on(slim), *place.notes),
        device=place.device,
        low_s=place.whole[1],
        high_s=place.whole[2],
    )


def _forms(slim: Slim, run: SlimRun, rows: Sequence[PredictedRow]) -> tuple[PredictedForm, ...]:
    """Return the whole network in other forms of weights here, those that meet the budget first."""
    found = weights_forecasts(slim, run.weights)
    every = [_form(each, slim, run.budget, rows) for each in found]
    return tuple(sorted(every, key=lambda each: ("yes", "perhaps", "no").index(each.alone)))


def _form(forecast: WeightsForecast, slim: Slim, budget: Budget, rows: Sequence[PredictedRow]) -> PredictedForm:
    is_size = budget.kind == "size"
    alone = "yes" if forecast.surely_meets(budget) else "perhaps" if forecast.meets(budget) else "no"
    whole = module_bytes(slim.model) if is_size else forecast.latency_s
    eased = forecast.eased(budget, whole) if alone != "yes" else None
    text, share = forecast.text(budget), None
    if eased is not None:
        goal = eased.of(module_bytes(slim.model) if is_size else slim.whole.median_s)
        share = next((each.share for each in rows if (each.weight_bytes if is_size else each.latency_s) <= goal), None)
        kept = {"width": "of all structures", "rank": "of the full ranks"}.get(rows[0].varied) if rows else None
        if share is not None and kept:
            text += f" With {forecast.form}, {100 * share:.3g} % {kept} meet {budget}, predicted."
        else:
            share = None
    return PredictedForm(
        weights=str(forecast.form),
        ratio=forecast.ratio,
        low=forecast.low,
        high=forecast.high,
        file_bytes=forecast.file_bytes,
        predicted_bytes=forecast.predicted_bytes,
        accuracy=forecast.accuracy,
        alone=alone,
        share=share,
        text=text,
    )


class _Here:
    """Predictions for this machine."""

    device = None
    notes = ()

    def __init__(self, slim: Slim) -> None:
        self.layers = slim.times.by_layer()
        self.whole: Span = slim.whole.median_s, None, None

    def span(self, each: Prospect) -> Span:
        return each.seconds, None, None

    def unknown(self, prospects: Prospects) -> str:
        """Return the reason why the results are unknown; empty if they are known."""
        return ""


class _There:
    """Predictions for another processor."""

    def __init__(self, slim: Slim, device: EdgeDevice, threads: int) -> None:
        found = edge_times(_of_the_whole(slim), device, threads=threads)
        self._device, self._threads = device, threads
        self.layers, self.whole = found.by_layer, _span(found)
        self.notes = (f"{found.note[0].upper()}{found.note[1:]}.", errors_note(device.name, threads))
        facts = {name: getattr(device, name) for name in ("one_core", "all_cores", "bandwidth")}
        values = {name: fact.value for name, fact in facts.items()}
        self.device = PublishedDevice(
            device.name, device.cores, sources={name: fact.source for name, fact in facts.items()}, **values
        )

    def span(self, each: Prospect) -> Span:
        return _span(on_device(each.nodes, each.rest_s, self._device, self._threads))

    def unknown(self, prospects: Prospects) -> str:
        """Return the reason why the results are unknown; empty if they are known."""
        why = prospects.only_here
        return f"The effect of {prospects.varied} on {self._device.name} is not predicted: {why}." if why else ""


def _span(found: EdgeTimes) -> Span:
    return found.seconds, found.low_s, found.high_s


def _of_the_whole(slim: Slim) -> LayerTimes:
    """Return the seconds of the whole network, even if another network replaces it."""
    if slim.subject is slim.model:
        return slim.times
    found = structures_of(slim.model, slim.inputs)
    return LayerTimes(found, slim.whole, round_to=slim.round_to, threads=slim.threads)
