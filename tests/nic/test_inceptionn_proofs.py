"""The proofs of INCEPTIONN's engine hold; ``test_*_properties.py`` show that each can fail."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from paceline.nic import formal
from paceline.nic.engine import compressor
from paceline.nic.inceptionn_proofs import INCEPTIONN, compressor_overfull
from paceline.nic.programs import missing

MISSING = missing(*formal.programs("abc"))


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", ["aligner, narrow", "decompressor passes beats"])  # all of them: paceline nic verify
def test_it_is_proved(name: str) -> None:
    assert INCEPTIONN[name]().proved


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_queue_that_overflows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressor, "MOST_PENDING", 7)
    assert compressor_overfull("bounded", 24).outcome == "refuted"
