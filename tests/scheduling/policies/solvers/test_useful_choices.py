"""Choices that can matter: the others are never better, at any price."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.policies.solvers.useful_choices import Choices, convex, undominated


def random_choices(rng: np.random.Generator) -> Choices:
    """Five jobs of two types, in any order, with equal costs and equal devices among them."""
    job, kind, devices = rng.integers(0, 5, 60), rng.integers(0, 2, 60), rng.integers(1, 9, 60)
    return Choices(job, devices, kind, -rng.integers(1, 12, 60).astype(float), np.zeros(60, bool))


def test_a_choice_is_left_out_if_fewer_devices_cost_no_more() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        choices = random_choices(rng)
        kept = undominated(choices)
        rows = list(
            zip(*(part.tolist() for part in (choices.job, choices.type_index, choices.devices, choices.cost)), strict=True)
        )
        best = {
            row for row in rows if not any(o[:2] == row[:2] and o != row and o[2] <= row[2] and o[3] <= row[3] for o in rows)
        }
        assert [rows[index] for index in kept.tolist()] == sorted(best)


def test_the_hull_holds_the_best_choice_at_any_price() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        choices = random_choices(rng)
        choices = choices.of(undominated(choices))
        hull = convex(choices)
        for price in (*rng.uniform(0, 6, 10), 0.0, 1.0):
            paid = choices.cost + price * choices.devices
            lines = choices.job * 2 + choices.type_index
            for line in np.unique(lines):
                least = min(float(paid[lines == line].min()), 0.0)
                assert min(float(paid[hull][lines[hull] == line].min(initial=0.0)), 0.0) == least
        assert len(hull) < len(choices.job)
