"""Lightning is found under both of its names, and its absence is said."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

MODULE = "paceline.integrations.lightning"


class Callback:
    """Stands for Lightning's."""


def imported(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> Any:
    """Import the module where these are installed and no others of Lightning."""
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, modules.get(name.replace(".", "_")))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    try:
        return importlib.import_module(MODULE)
    finally:
        sys.modules.pop(MODULE, None)


def test_pytorch_lightning_alone_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = types.ModuleType("pytorch_lightning")
    found.Callback = Callback
    assert issubclass(imported(monkeypatch, pytorch_lightning=found).PacelineCallback, Callback)


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install lightning, or pytorch-lightning"):
        imported(monkeypatch)
