"""Networks that may meet a budget: which of them is the answer."""

from __future__ import annotations

import pytest

from paceline.edge.candidates import meets
from paceline.reporting.text.slim_text import candidate_rows, choice_texts, slim_screen
from paceline.slim_record import BOTH_EASED, FEWER_BITS, SMALLER, Candidate, SlimMeasurement, SlimRecord
from paceline.slimming.methods.budget import Budget
from slim_records import WHOLE, record


def candidate(way: str, weights: str, latency_s: float, accuracy: float, met: str = "yes") -> Candidate:
    measured = SlimMeasurement(latency_s, latency_s, latency_s, 10, 500_000, accuracy, 0.1)
    return Candidate(way, weights, f"{way}.onnx", measured, 490_000.0, met)


FEWER = candidate(FEWER_BITS, "int4", 1.0e-3, 0.97)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            [candidate(SMALLER, "fp32", 1.25e-3, 0.978), FEWER],
            [
                "int4 alone meets speedup=3x, nothing removed: 4.00x as fast, 500 kB, 1.10 points of accuracy lost.",
                "The least loss that meets speedup=3x: smaller, 3.20x as fast, 500 kB, 0.30 points of accuracy lost.",
            ],
        ),
        (
            [candidate(SMALLER, "fp32", 1.25e-3, 0.96), FEWER],
            [
                "int4 alone meets speedup=3x, nothing removed: 4.00x as fast, 500 kB, 1.10 points of accuracy lost.",
                "It is also the least loss that meets speedup=3x; next: smaller, 3.20x as fast, 500 kB, "
                "2.10 points of accuracy lost.",
            ],
        ),
        (
            [candidate(SMALLER, "fp32", 1.25e-3, 0.97), candidate(BOTH_EASED, "int8", 1.3e-3, 0.98)],
            [
                "The least loss that meets speedup=3x: both, less removed, in int8, 3.08x as fast, 500 kB, "
                "0.10 points of accuracy lost."
            ],
        ),
        (
            [candidate(SMALLER, "fp32", 2e-3, 0.97, "no")],
            ["Neither smaller nor fewer bits nor both meet speedup=3x, as measured."],
        ),
        ([candidate(SMALLER, "fp32", 2e-3, 0.97, "")], []),
        ([], []),
    ],
)
def test_fewer_bits_that_meet_the_budget_come_first_then_the_least_loss(given: list[Candidate], says: list[str]) -> None:
    made = record(candidates=tuple(given))
    assert list(choice_texts(made)) == says
    assert SlimRecord.from_json(made.to_json()) == made and len(list(candidate_rows(made))) == len(given)
    text = " ".join(slim_screen(made).text(120).split())
    assert all(words in text for words in says) and ("490 kB" in text) == bool(given)


def test_files_and_times_are_held_against_the_budget() -> None:
    small = SlimMeasurement(1e-3, 1e-3, 1e-3, 10, 500_000, 0.9)
    for budget, clock, met in (
        (Budget("size", 5e5), 1.0, "yes"),
        (Budget("size", 4.99e5), 1.0, "no"),
        (Budget("speedup", 4.0), 1.0, "yes"),
        (Budget("speedup", 4.1), 1.0, "no"),
        (Budget("latency", 1e-3), 1.0, "yes"),
        (Budget("latency", 1e-3), 0.9, "no"),
        (Budget("accuracy", 1.0), 1.0, ""),
    ):
        assert meets(budget, small, WHOLE.latency_s, clock) == met
