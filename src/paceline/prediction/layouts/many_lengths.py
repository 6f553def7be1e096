"""Steps of many candidates on samples of different length: candidates that compute equally many tokens share a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from paceline.errors import UserError
from paceline.prediction.layouts.batch import Candidate, Steps, merged_steps, refused_steps
from paceline.prediction.tasks.length_step import plain_lengths, timed_workload
from paceline.prediction.tasks.resized import with_documents, with_tokens
from paceline.strategy.tasks.lengths import SampleLengths
from paceline.workload.table import Workload

Many = Callable[[Workload, Sequence[Candidate]], Steps]
"""Function that returns the steps of candidates on samples of one length."""


def steps_of_lengths(workload: Workload, candidates: Sequence[Candidate], many: Many) -> Steps:
    """Return the steps of candidates, in their order: seconds of the mean padded tokens, bytes of the longest samples."""
    networks: dict[int, Workload] = {}
    members: dict[int, list[int]] = {}
    wrong: dict[int, UserError] = {}
    for index, (_, strategy) in enumerate(candidates):
        try:
            timed = timed_workload(workload, strategy) if strategy.tokens_per_sample.vary else workload
        except UserError as error:
            wrong[index] = error
            continue
        networks[id(timed)] = timed
        members.setdefault(id(timed), []).append(index)
    parts: list[tuple[Sequence[int], Steps]] = []
    for key, own in members.items():
        inner = [(candidates[i][0], plain_lengths(candidates[i][1])) for i in own]
        fullest, timed_steps = many(workload, inner), many(networks[key], inner)
        refused = {**fullest.refused, **timed_steps.refused}
        seconds = np.where(np.isnan(fullest.step_s), np.nan, timed_steps.step_s)
        parts.append((own, replace(fullest, step_s=seconds, refused=refused)))
    if wrong:
        parts.append((list(wrong), refused_steps([candidates[i] for i in wrong], wrong.values())))
    return merged_steps(*parts)


def least_network(workload: Workload, lengths: SampleLengths) -> Workload:
    """Return a network that computes no more than any step on samples of these lengths, for bounds."""
    if not lengths.vary:
        return workload
    if lengths.packed:
        share = lengths.mean_square / lengths.mean / workload.tokens
        return with_documents(workload, share)
    return with_tokens(workload, float(int(lengths.mean)))
