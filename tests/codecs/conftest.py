"""Fixtures: every instruction set that this processor has, and threads as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from every_backend import ISAS
from paceline import codecs


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    from paceline import _native

    if request.param not in _native.isas():
        pytest.skip(f"needs a processor with {request.param}")
    _native.set_isa(request.param)
    yield request.param
    _native.set_isa(_native.isas()[-1])


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    yield
    codecs.set_threads(None)
