"""Simpler strategies than the best of a plan that it left out because fragments of memory may take what they lack."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.planning.compare.layout_difference import ratio_in_words, resolved_ratio
from paceline.planning.compare.strategy_text import describe
from paceline.planning.search.choice import Choice
from paceline.planning.search.ranking import job_choices
from paceline.prediction import StepPredictor
from paceline.prediction.layouts.batch import Candidate, Steps
from paceline.prediction.step.memory import FRAGMENTED, fit_of
from paceline.units import format_memory, format_seconds
from paceline.workload.table import Workload

MOST = 16
"""Strategies that are predicted whole."""


def simpler_if_it_fits(
    workload: Workload, best: Choice, candidates: Sequence[Candidate], steps: Steps, predictor: StepPredictor
) -> str:
    """Return the simplest strategy that may not fit, whose step the model does not tell from the best's, in words.

    Empty if there is none, or if the best divides no network. The step may also be shorter than the best's.

    Args:
        candidates: strategies of the plan, of which those of the best's job on its machines count.
        steps: their steps, which need no seconds where the memory does not suffice.
    """
    job, simplicity = (best.cluster, job_choices(best.strategy)), best.strategy.simplicity
    if not simplicity[0]:
        return ""
    tight = [
        candidate
        for candidate, needed in zip(candidates, steps.memory_bytes.tolist(), strict=True)
        if fit_of(needed, candidate[0].device) == "may not fit"
        and (candidate[0], job_choices(candidate[1])) == job
        and candidate[1].simplicity < simplicity
    ]
    for cluster, strategy in sorted(tight, key=lambda of: of[1].simplicity)[:MOST]:
        p = predictor.step(workload, cluster, strategy)
        if p.fit != "may not fit" or p.step_time_s > best.prediction.step_time_s * resolved_ratio(p, best.prediction):
            continue
        ratio = ratio_in_words(p.step_time_s / best.prediction.step_time_s)
        return (
            f"Simpler, but may not fit: {describe(cluster, strategy)}, {format_seconds(p.step_time_s)} a step, predicted "
            f"{ratio}, which the model does not tell apart. It needs {format_memory(p.memory_bytes)} of "
            f"{format_memory(cluster.device.memory.value)} a device, and fragments may take "
            f"{FRAGMENTED:.0%} more. A short run tells."
        )
    return ""
