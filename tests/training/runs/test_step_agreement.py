"""What the ranks agree on at the boundary of a step: the same at the same step, whoever wished it and when."""

from __future__ import annotations

import itertools
import random
from typing import Any

from distributed import launch
from paceline.training.runs.step_agreement import EVERY_S, StepAgreement, Wish


def wishes(rank: int, workers: int) -> list[Any]:
    """Ranks of unequal speed: rank 1 saves from step 40, rank 2 diverges at 60 and stops from 90 on, rank 0 otherwise."""
    agreement, draws, got = StepAgreement(workers, 60), random.Random(rank), []
    for step in range(130):
        stop = {2: 15, 0: 2}.get(rank, 0) if step >= 90 + rank else 0
        all_get = agreement.after_step(
            Wish(stop, rank == 1 and 40 <= step < 60, rank == 2 and step >= 60), EVERY_S / draws.uniform(5, 9)
        )
        got.append(tuple(all_get))
    agreement.barrier()
    return got


def test_every_rank_gets_every_wish_at_the_same_step() -> None:
    first, *others = launch(wishes, 3)
    assert all(other == first for other in others)
    saves = [step for step, (_, save, _) in enumerate(first) if save]
    stops = [step for step, (stop, _, _) in enumerate(first) if stop]
    assert saves and 40 < saves[0] <= 60 and saves[-1] <= 70
    assert 60 < next(step for step, wish in enumerate(first) if wish[2]) <= 75
    assert 90 < stops[0] <= 105 and first[stops[-1]][0] == 15
    conferred = [b - a for a, b in itertools.pairwise(stops)]
    assert all(5 < gap < 12 for gap in conferred)  # by the slowest rank's step: five to nine in a period, and two to read


def test_a_rank_alone_agrees_with_itself() -> None:
    agreement = StepAgreement(1, 60)
    assert agreement.after_step(Wish(15, True), 1.0) == (15, True, False)
    agreement.barrier()
