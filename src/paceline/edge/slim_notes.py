"""Sentences and widths of a slimmed network's record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.edge.candidates import FormFile
from paceline.edge.weights_forecast import whole_form_note
from paceline.slim_record import FEWER_BITS, Candidate, SlimMeasurement, Width
from paceline.slimming.methods.budget import Budget
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.units import format_seconds


def int8_notes(slimmed: SlimMeasurement, quantised: SlimMeasurement | None) -> Iterator[str]:
    """Return notes if int8 is worse than fp32."""
    if quantised is None:
        return
    if quantised.latency_s >= slimmed.latency_s:
        times = f"{format_seconds(quantised.latency_s)}, {format_seconds(slimmed.latency_s)} in fp32"
        yield f"int8 is not faster here: {times}."
    if quantised.accuracy is not None and slimmed.accuracy is not None and quantised.accuracy < slimmed.accuracy:
        yield f"int8 loses {100 * (slimmed.accuracy - quantised.accuracy):.2f} points of accuracy."


def whole_notes(
    budget: Budget, formed: Sequence[FormFile], candidates: Sequence[Candidate], whole_s: float, clock: float
) -> Iterator[str]:
    """Return a note on the whole network in each form."""
    forms = {each.file.name: each.form for each in formed}
    for each in candidates:
        if each.way == FEWER_BITS:
            took_s, accuracy = each.measured.latency_s, each.measured.accuracy or 0.0
            yield whole_form_note(forms[each.file], budget, whole_s, clock, took_s, accuracy)


def widths(slim: Slim, removed: set[int]) -> Iterator[Width]:
    """Return the widths of every layer that may be narrower, and the rows or columns of every smaller kernel.

    Args:
        removed: numbers of the removed structures.
    """
    for layer, every in slim.structures.layers().items():
        part = next((part for part in every[0].slices if part.parameter == layer), every[0].slices[0])
        whole, each_of = len(slim.structures.units[part.parameter][part.dim]), len(part.indices)
        gone = sum(each.number in removed for each in every)
        if not every[0].nested:
            yield Width(layer.removesuffix(".weight"), whole // each_of, whole // each_of - gone)
        elif gone:
            yield Width(layer, whole, whole - each_of * gone)


def replacement_notes(plan: SlimPlan) -> Iterator[str]:
    """Return a sentence for each replaced module."""
    for path, given in plan.replacements.items():
        if names := given.get("branches"):
            yield f"Branches that are gone, of which a constant is left: {', '.join(names)}."
            continue
        numbers = ", ".join(f"{name} {value}" for name, value in given.items() if name != "kind")
        yield f"{path or 'The network'} is {str(given['kind']).replace('_', ' ')} now: {numbers}."


def missed_note(budget: Budget) -> str:
    """Return a note on a smaller language model that misses its budget in the last measurement."""
    takes = "takes longer" if budget.phase else "is larger"
    return (
        f"The smaller model in fp32 misses the budget: measured at the end it {takes} than predicted. Give a stricter budget."
    )
