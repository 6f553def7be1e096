"""The proofs of INCEPTIONN's engine hold; ``test_*_properties.py`` show that each can fail."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="amaranth is missing (pip install 'paceline[nic]')")

from paceline.nic import formal
from paceline.nic.inceptionn_proofs import INCEPTIONN
from paceline.nic.programs import missing

MISSING = missing(*formal.programs("abc"))


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", INCEPTIONN)
def test_it_is_proved(name: str) -> None:
    assert INCEPTIONN[name]().proved


def test_all_are_run_with_the_ternary_ones() -> None:
    assert INCEPTIONN.keys() < formal.properties().keys()
