"""A row as something to predict: what may be seen of a file, and what is held out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_rows import case
from paceline.errors import UserError
from paceline.validation import Info
from paceline.validation.case import HOLD_OUTS, Keys


@pytest.mark.parametrize(
    ("text", "devices", "nodes", "seen"),
    [
        ("none", 1, 1, False),
        ("one_device", 1, 1, True),
        ("one_device", 2, 1, False),
        ("one_node", 8, 1, True),
        ("one_node", 8, 2, False),
        ("up_to=8", 8, 4, True),
        ("up_to=8", 9, 2, False),
    ],
)
def test_what_may_be_seen(text: str, devices: int, nodes: int, seen: bool) -> None:
    info = Info.parse(text)
    assert info.shows(Keys("m", "d", devices, nodes)) is seen and str(info) == text


@pytest.mark.parametrize("text", ["up_to", "up_to=", "up_to=0", "up_to=-1", "up_to=two", "one", "", "None"])
def test_a_wrong_info_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="info"):
        Info.parse(text)


@given(st.integers(1, 999_999_999))
def test_a_number_of_devices_is_read_and_written(limit: int) -> None:
    info = Info.parse(f"up_to={limit}")
    assert info.limit == limit and str(info) == f"up_to={limit}" and info.hold_out == "scale"
    assert info.shows(Keys("m", "d", limit)) and not info.shows(Keys("m", "d", limit + 1))


@pytest.mark.parametrize(("text", "hold_out"), [("none", "device"), ("one_device", "model"), ("one_node", "scale")])
def test_what_is_not_seen_is_held_out(text: str, hold_out: str) -> None:
    assert Info.parse(text).hold_out == hold_out and hold_out in HOLD_OUTS


def test_an_uneven_placement_is_an_uneven_cluster() -> None:
    row = case("pollux_sia", num_gpus="11", num_nodes="4", placement="2333")
    setting = row.setting
    assert setting.cluster.node_sizes == (2, 3, 3, 3) and row.samples == setting.strategy.global_batch_size
    assert row.precision == setting.strategy.precision
