"""The lanes' properties hold for one bound and see a last stage that rounds or signs wrongly."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from paceline.nic import formal
from paceline.nic.engine.lane_properties import FaithfulLane, ScaledLane
from paceline.nic.engine.lanes import Halved, coded
from paceline.nic.programs import missing

MISSING = missing(*formal.programs("abc"))
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def flipped(scaled: Any, value: Any, tag: Any, cut: Halved) -> tuple[Any, Any]:
    """One bit of a payload in one case of 2^32."""
    code, payload = coded(scaled, value, tag, cut)
    return code, payload ^ (value == 0x3F123456)


def far(scaled: Any, value: Any, tag: Any, cut: Halved) -> tuple[Any, Any]:
    """A magnitude of one byte becomes two steps larger where it is 5."""
    return coded(scaled, value, tag, Halved(cut.large, cut.large_up, cut.small + ((cut.small == 5) << 1), cut.small_up))


def outcome(design: Any) -> str:
    return formal.prove("lane", design, scope="", method="combinational", solver="abc").outcome


@needs_tools
def test_values_of_the_published_format() -> None:
    assert outcome(FaithfulLane(10)) == "proved"
    assert outcome(FaithfulLane(10, flipped)) == "refuted"


@pytest.mark.full
@needs_tools
def test_the_bound_of_the_scaled_format() -> None:
    assert outcome(ScaledLane(10, 0)) == "proved"
    assert outcome(ScaledLane(10, 0, far)) == "refuted"
