"""Fewer bits of a whole language model, measured before anything is trained."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from paceline.edge.weights_forecast import ROUNDS, WeightsForecast, ratio_range
from paceline.slimming.latency.token_times import TokenLatency
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import WeightForm
from paceline.units import format_bytes

MARGIN = 0.985
"""Part of a budget that a form which meets it takes at most. Nearer to it a smaller model is made too."""
Latencies = Callable[[Mapping[str, Path]], Mapping[str, TokenLatency]]


def form_forecasts(
    budget: Budget, whole: Path, files: Mapping[WeightForm, tuple[Path, int]], latencies: Latencies
) -> tuple[WeightsForecast, ...]:
    """Time the whole model's files in turns with fp32.

    Args:
        files: file and bytes of each form. ``latencies``: measures files by name, in turns with the first.

    Returns:
        Forecasts of the budget's phase. For a size the token is timed once, and the bytes decide.
    """
    if not files:
        return ()
    timed = {"whole": whole, "control": whole, **{str(form): file for form, (file, _) in files.items()}}
    phase = budget.phase or "decode"
    rounds = [
        {name: getattr(each, phase) for name, each in latencies(timed).items()} for _ in range(ROUNDS if budget.phase else 1)
    ]
    whole_s = statistics.median(each["whole"].median_s for each in rounds)
    return tuple(WeightsForecast(form, *ratio_range(rounds, str(form)), whole_s, size) for form, (_, size) in files.items())


def cheapest_form(budget: Budget, forecasts: Sequence[WeightsForecast], whole_bytes: int) -> tuple[WeightForm, float] | None:
    """Return the form that costs least, and its cost as a share of fp32's.

    Returns:
        None if that form meets the budget by ``MARGIN``, or costs no less than fp32.
    """
    costs = {each.form: each.ratio if budget.phase else each.file_bytes / whole_bytes for each in forecasts}
    best = min(forecasts, key=lambda each: costs[each.form], default=None)
    if best is None or costs[best.form] >= 1 or best.share(budget) <= MARGIN:
        return None
    return best.form, costs[best.form]


def forms_said(budget: Budget, forecasts: Sequence[WeightsForecast], losses: Mapping[WeightForm, float]) -> Iterator[str]:
    """Return a line for each form, and one on what they leave to a smaller model.

    Args:
        losses: perplexity of each form over fp32's, less 1; empty if unknown.
    """
    for each in forecasts:
        spread = f" ({1 / each.high:.2f}x to {1 / each.low:.2f}x)"
        what = "prompt" if budget.phase == "prefill" else "token"
        lost = f", perplexity {100 * losses[each.form]:+.1f} %" if each.form in losses else ""
        yield f"the whole model in {each.form}: {1 / each.ratio:.2f}x per {what}{spread}, {format_bytes(each.file_bytes)}{lost}"
    sure = [str(each.form) for each in forecasts if each.surely_meets(budget)]
    maybe = [str(each.form) for each in forecasts if each.meets(budget) and not each.surely_meets(budget)]
    if sure:
        yield f"{' or '.join(sure)} alone meets {budget}: training a smaller model is needed only beyond that"
    elif maybe:
        yield f"{' or '.join(maybe)} alone may meet {budget}, within that range; a smaller model meets it surely"
    elif forecasts:
        yield f"no form alone meets {budget}: it takes a smaller model"
