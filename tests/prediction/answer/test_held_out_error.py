"""The error of a kind of predictions: the mean of sets, each once, and none where no published run is of the kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.answer.held_out_error import HeldOut, held_out, kind

SOFTWARE = ("ordinary", "tuned")


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 2), min_size=1), st.integers(1, 10**6))
def test_each_set_counts_once(sets: dict[str, float], points: int) -> None:
    error = HeldOut("some kind", sets, points, "2026-01-01", "abc")
    assert error.mape == pytest.approx(sum(sets.values()) / len(sets))
    assert min(sets.values()) - 1e-9 <= error.mape <= max(sets.values()) + 1e-9
    assert f"{points:,} rows" in str(error) and "(2026-01-01, abc)" in str(error)


def test_the_best_set_is_named_first() -> None:
    text = str(HeldOut("tuned software", {"far": 0.5, "near": 0.1}, 12, "2026-01-01", "abc"))
    assert "(tuned software; 12 rows) such predictions missed by 30%: the mean of near 10%, far 50%" in text


def test_what_the_range_rests_on_is_said() -> None:
    plain = HeldOut("some kind", {"near": 0.1}, 12, "2026-01-01", "abc")
    assert str(plain).endswith("near 10% (2026-01-01, abc).")
    assert str(replace(plain, launch_s=170e-6)).endswith("The slow end has a host that takes 170 µs more a kernel.")


@pytest.mark.parametrize("device_kind", ["gpu", "cpu"])
@pytest.mark.parametrize("software", SOFTWARE)
def test_what_records_correct_is_one_kind_of_each_software(software: str, device_kind: str) -> None:
    assert kind(software, device_kind, False) == f"{software} software"
    assert kind(software, device_kind, True) == kind(software, "tpu", True) == f"{software} software, corrected by records"


def test_other_devices_are_kinds_at_either_level_of_software() -> None:
    for device_kind in ("tpu", "accelerator"):
        assert kind("tuned", device_kind, False) == kind("ordinary", device_kind, False) != kind("tuned", "gpu", False)


@pytest.mark.parametrize("device_kind", ["gpu", "tpu", "accelerator"])
@pytest.mark.parametrize("software", SOFTWARE)
def test_every_kind_was_validated(software: str, device_kind: str) -> None:
    for corrected in (False, True):
        error = held_out(software, device_kind, corrected)
        assert error is not None and error.kind == kind(software, device_kind, corrected)
        assert error.points > 50 and 0 < error.mape < 1 and all(0 < miss < 1 for miss in error.sets.values())
        assert error.low > 0 and error.high > 0 and error.unmeasured >= 1


def test_another_kind_has_none() -> None:
    assert held_out("unheard-of", "gpu") is None
