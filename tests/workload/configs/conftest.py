"""Tables by hand alone: what they refuse is not handed to a library that is installed here or not."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.workload.table.library_of", lambda _: "")
