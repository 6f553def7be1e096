"""What one worker and one server take: numbers that can be, and tensors placed by their bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynchronous_toys import profile
from paceline.errors import UserError
from paceline.prediction.asynchronous.profile import assign_servers


def test_tensors_go_where_the_fewest_bytes_are() -> None:
    assert assign_servers([5, 3, 1, 1, 4], 2) == (0, 1, 1, 1, 0)
    assert assign_servers([1, 1, 1], 1) == (0, 0, 0)


def test_a_profile_that_cannot_be_is_said() -> None:
    whole = profile()
    uneven = replace(whole.layers[0], forward_s=(1.0,))
    for change in ({"layers": ()}, {"layers": (uneven, *whole.layers[1:])}, {"update_s": -1.0}, {"batch_size": 0}):
        with pytest.raises(UserError):
            replace(whole, **change)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1e9), max_size=30), st.integers(1, 6))
def test_no_server_has_more_than_its_share_and_one_tensor(sizes: list[float], servers: int) -> None:
    load = [0.0] * servers
    for size, server in zip(sizes, assign_servers(sizes, servers), strict=True):
        load[server] += size
    assert sum(load) == pytest.approx(sum(sizes))
    assert max(load) <= sum(sizes) / servers + max(sizes, default=0.0) + 1e-6


@given(st.integers(1, 9), st.floats(1e3, 1e9), st.floats(1e-3, 10))
def test_a_profile_adds_its_layers_up(layers: int, size: float, compute_s: float) -> None:
    whole = profile(layers, size, compute_s, jitter=0.0, drawn=3)
    assert whole.size == pytest.approx(size) and whole.compute_s == pytest.approx(compute_s) and whole.steps == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": ()}, "has no layers"),
        ({"update_s": math.nan}, "a negative or infinite number"),
        ({"update_s_per_byte": math.inf}, "a negative or infinite number"),
        ({"hosts_spread": -0.1}, "a negative or infinite number"),
        ({"batch_size": 0}, "batch size 0"),
        ({"link_share": 0.0}, "link share 0.0"),
        ({"link_share": 1.1}, "a share of the link in"),
    ],
)
def test_the_mistake_names_the_profile(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"profile 'equal'.*{words}"):
        replace(profile(), **change)
