"""module:function, as a user writes it, and every way in which it can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.workload import load_factory
from paceline.workload.factory import call_factory, describe_error


def test_a_missing_function_names_the_near_ones(networks: str) -> None:
    with pytest.raises(UserError, match=r"no function 'with_bach' .*did you mean with_batch"):
        load_factory(f"{networks}:with_bach")


def test_a_missing_module_is_named_with_where_was_looked() -> None:
    with pytest.raises(UserError, match=r"no module 'no_such_networks'.*looked in /"):
        load_factory("no_such_networks:build")
    with pytest.raises(UserError, match=r"no module 'paceline\.nothing'"):
        load_factory("paceline.nothing:build")


def test_a_module_that_fails_on_import_is_told_from_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    (tmp_path / "is_broken.py").write_text("raise RuntimeError('no weights here')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError, match="importing needs_more fails: no module 'no_such_dependency'"):
        load_factory("needs_more:build")
    with pytest.raises(UserError, match="importing is_broken fails: RuntimeError: no weights here"):
        load_factory("is_broken:build")


@pytest.mark.parametrize("text", [":build", "networks:"])
def test_half_a_name_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="is not module:function"):
        load_factory(text)


@pytest.mark.parametrize("text", ["networks", "", ":", "a.b.c"])
def test_what_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not module:function; write it as mypackage"):
        load_factory(text)


def test_what_the_function_returns_is_given_back(networks: str) -> None:
    assert call_factory(f"{networks}:text") == "no" == load_factory(f"{networks}:text")()
    with pytest.raises(UserError, match=r"answer is a int, not a function that returns an nn\.Module"):
        call_factory(f"{networks}:answer")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('first line\\nsecond line')", "fails: ValueError: first line$"),
        ("raise SystemExit", "fails: SystemExit$"),
        ("return 1 // 0", "fails: ZeroDivisionError: "),
    ],
)
def test_a_function_that_fails_is_named_with_its_exception(
    body: str, words: str, networks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"fails_{networks}"
    (tmp_path / f"{name}.py").write_text(f"def build():\n    {body}\n")
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UserError, match=f"{name}:build {words}"):
        call_factory(f"{name}:build")
    sys.modules.pop(name, None)


def test_a_user_error_of_the_function_stays_what_it_is(networks: str, tmp_path: Path) -> None:
    name = f"refuses_{networks}"
    (tmp_path / f"{name}.py").write_text(
        "from paceline.errors import UserError\ndef build():\n    raise UserError('no data', 'fetch it')\n"
    )
    with pytest.raises(UserError, match=r"^no data; fetch it$"):
        call_factory(f"{name}:build")
    sys.modules.pop(name, None)


def test_an_exception_without_words_is_its_name() -> None:
    assert describe_error(KeyError()) == "KeyError" and describe_error(ValueError("  a\nb")) == "ValueError: a"
