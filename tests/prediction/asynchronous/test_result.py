"""What a simulated job says: staleness, its quantiles, and the kind of its bottleneck."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynchronous_toys import profile, run
from paceline.prediction.asynchronous import AsyncResult


def result(staleness: tuple[float, ...] = (1.0,), **used: float) -> AsyncResult:
    numbers: dict[str, Any] = dict.fromkeys(("samples_per_s", "low_samples_per_s", "high_samples_per_s", "updates_per_s"), 1.0)
    utilisation = {name.replace("_", " "): share for name, share in used.items()} or {"workers": 1.0}
    return AsyncResult(workers=2, servers=1, step_s=1.0, staleness=staleness, utilisation=utilisation, **numbers)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=10).filter(any))
def test_mean_and_quantiles_are_those_of_the_counts(counts: list[int]) -> None:
    total = sum(counts)
    answer = result(tuple(count / total for count in counts))
    updates = [k for k, count in enumerate(counts) for _ in range(count)]
    assert answer.mean_staleness == pytest.approx(sum(updates) / total)
    assert answer.staleness_quantile(1.0) == updates[-1]
    assert answer.staleness_quantile(0.5) == updates[(total - 1) // 2]
    assert answer.staleness_quantile(0.0) == 0


@pytest.mark.parametrize(
    ("busiest", "limit"),
    [
        ("workers", "worker compute"),
        ("worker_links_up", "worker network"),
        ("server_0_link_out", "server network"),
        ("server_3_update", "server update"),
    ],
)
def test_the_limit_is_the_kind_of_the_busiest(busiest: str, limit: str) -> None:
    answer = result(**{"workers": 0.5, "server_0_link_in": 0.4, busiest: 0.9})
    assert answer.bottleneck == busiest.replace("_", " ") and answer.limit == limit


def test_json_has_all_but_the_timeline() -> None:
    answer = run(profile(layers=2), 3, drawn_steps=1, steps=20)
    data = json.loads(json.dumps(answer.to_json()))
    assert answer.timeline and "timeline" not in data
    assert data["median_staleness"] <= data["p90_staleness"] <= data["max_staleness"] == len(data["staleness"]) - 1
    assert (data["bottleneck"], data["limit"], data["mean_staleness"]) == (
        answer.bottleneck,
        answer.limit,
        answer.mean_staleness,
    )
