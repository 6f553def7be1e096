"""How many threads a native call has: what was set, else what torch or the environment says."""

from __future__ import annotations

import importlib
import sys

import pytest

from paceline import codecs
from paceline.errors import UserError

module = importlib.import_module("paceline.codecs.threads")  # the package has a function of this name


def test_threads_setting(monkeypatch):
    codecs.set_threads(3)
    assert codecs.threads() == 3
    codecs.set_threads(None)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert codecs.threads() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert codecs.threads() >= 1
    with pytest.raises(codecs.UserError, match="0 threads"):
        codecs.set_threads(0)


@pytest.mark.parametrize(("text", "wanted"), [("3", 3), ("3,2", 3), ("0", 0), ("-1", 0), ("many", 0), ("", 0)])
def test_without_torch_the_environment_says_how_many(text: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert module.threads() == (wanted or module.cores())


def test_what_was_set_comes_first_and_none_takes_it_back() -> None:
    module.set_threads(5)
    assert module.threads() == module.chosen() == 5
    module.set_threads(None)
    assert module.chosen() is None and module.threads() >= 1


@pytest.mark.parametrize("count", [0, -3])
def test_fewer_than_one_is_refused(count: int) -> None:
    with pytest.raises(UserError, match=f"{count} threads; give 1 or more, or None for the default"):
        module.set_threads(count)
    assert module.chosen() is None
