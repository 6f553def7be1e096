"""Scores worked out on paper, and their properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_rows import case, skip
from paceline.validation.score import Estimate, ScoredCase, grouped, summary

CASE = case("pollux_sia")


def point(predicted: float, measured: float = 1.0, low: float = 0.9, high: float = 1.1, **changes: object) -> ScoredCase:
    one = replace(CASE, step_s=measured, sync_s=None, **changes)  # type: ignore[arg-type]
    return ScoredCase(one, Estimate(predicted, low, high, predicted / 2), {"linear": 2 * measured})


def test_figures_by_hand() -> None:
    points = [point(1.1), point(0.8, low=0.7, high=0.9), point(1.0), point(1.5, low=1.4, high=1.6)]
    figures = summary(points, 6, [skip("pollux_sia", gpu="Abacus-9"), skip("pollux_sia", step_time_s="")])
    assert figures["points"] == 4
    assert figures["coverage"] == pytest.approx(6 / 7)  # a row without a measurement is no good row
    assert figures["mape"] == pytest.approx((0.1 + 0.2 + 0 + 0.5) / 4)
    assert figures["median"] == pytest.approx(0.15) and figures["worst"] == pytest.approx(0.5)
    assert figures["interval_share"] == 0.5
    assert figures["baselines"] == {"linear": pytest.approx(1.0)}
    assert figures["baseline_points"] == {"linear": 4}
    assert figures["mape_on_baseline_rows"] == {"linear": figures["mape"]}
    assert "sync_share_points" not in figures


def test_a_baseline_is_compared_on_the_rows_that_it_speaks_of() -> None:
    silent = replace(point(3.0), baselines={})
    figures = summary([point(1.1), silent], 2, [])
    assert figures["mape"] == pytest.approx(1.05) and figures["baselines"] == {"linear": pytest.approx(1.0)}
    assert figures["baseline_points"] == {"linear": 1}
    assert figures["mape_on_baseline_rows"] == {"linear": pytest.approx(0.1)}


def test_the_share_of_the_exchange_is_in_points() -> None:
    one = ScoredCase(replace(CASE, step_s=2.0, sync_s=0.5), Estimate(1.0, 0.5, 2, 0.4), {})
    assert summary([one], 1, [])["sync_share_points"] == pytest.approx(15)


def test_nothing_to_score_is_none_and_no_error() -> None:
    figures = summary([], 0, [])
    assert figures["points"] == 0 and figures["mape"] is None and figures["coverage"] is None


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=20))
def test_figures_are_ordered_and_do_not_depend_on_the_order(pairs: list[tuple[float, float]]) -> None:
    points = [point(p, m, p / 1.3, p * 1.3) for p, m in pairs]
    figures, back = summary(points, len(points), []), summary(points[::-1], len(points), [])
    assert 0 <= figures["median"] <= figures["p90"] + 1e-12 <= figures["worst"] + 2e-12
    assert figures["mape"] <= figures["worst"] + 1e-12 and figures["mape"] == pytest.approx(back["mape"])
    assert 0 <= figures["interval_share"] <= 1


def test_groups_divide_the_points() -> None:
    keys = [replace(CASE.keys, devices=d, model=m) for d in (8, 16) for m in ("a", "b")]
    points = [point(1.0 + i / 10, keys=k) for i, k in enumerate(keys)]
    groups = grouped(points, [p.case for p in points], [skip("pollux_sia", gpu="Abacus-9")])
    for by in ("model", "device", "scale"):
        assert sum(g["points"] for g in groups if g["by"] == by) == 4
    assert [g["name"] for g in groups if g["by"] == "scale"] == ["8", "16"]
    strange = next(g for g in groups if g["name"] == "Abacus-9")
    assert strange["coverage"] == 0 and strange["mape"] is None
