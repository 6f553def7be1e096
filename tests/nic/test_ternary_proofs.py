"""The proofs of the ternary engine can fail. All of them: paceline nic verify."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from paceline.nic import formal
from paceline.nic.inceptionn_proofs import INCEPTIONN
from paceline.nic.programs import missing
from paceline.nic.ternary_proofs import TERNARY, ternary_comparison

MISSING = missing(*formal.programs("abc"))
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@needs_tools
def test_a_rounding_that_ignores_ties_is_refuted() -> None:
    from amaranth.hdl import Signal

    from paceline.nic.engine.ternary_lanes import Product, compare

    def never_a_tie(clock: Any, product: Any, draw: Any, name: str) -> Any:
        significand = Signal(48)
        clock.m.d.comb += significand.eq(product.significand | 1)
        return compare(clock, Product(significand, product.exponents, product.half_of_least), draw, name)

    assert ternary_comparison(never_a_tie).outcome == "refuted"


def test_every_property_has_a_name_of_its_own() -> None:
    assert len(TERNARY) == 4 and not TERNARY.keys() & INCEPTIONN.keys()
