"""module:function, as a user writes it, and every way in which it can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.workload import Workload, load_factory
from paceline.workload.factory import call_factory, describe_error, example_input


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


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden, layers=1, act="relu", sizes=(8,)):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(hidden, hidden) for _ in range(layers)))
        self.act, self.sizes = act, sizes

    def forward(self, x, scale=None):
        return self.layers(x)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with a class, in a folder that is not the current one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"net_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NET)
    return f"{tmp_path / name}.py:Net"


def test_a_class_of_a_file_takes_arguments_and_an_input(net: str) -> None:
    table = Workload.named(net, args="hidden=16,layers=3", inputs="16")
    assert table.num_parameters == 3 * (16 * 16 + 16) and table.name == net and table.sample == "tensor 16"
    by_name = Workload.named(net, args="hidden=16", inputs="x=5x16,scale=tokens:7")
    assert by_name.sample == "tensor 5x16, tensor 7" and by_name.input_bytes == 4 * 5 * 16 + 8 * 7
    built = load_factory(net, "hidden=4, act=gelu, sizes=[1, 2]")()
    assert (built.act, built.sizes) == ("gelu", [1, 2])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", r"missing a required argument: 'hidden'; it takes \(hidden, layers=1, .*give --args hidden="),
        ("hidden=4,depth=2", "unexpected keyword argument 'depth'"),
        ("hidden=4,", None),
        ("hidden", r"arguments 'hidden'; write them as in Python"),
        ("hidden=1+x", "arguments 'hidden=1.x'"),
        ("**{}", "write them as in Python"),
        ("hidden=4)+f(a=1", "write them as in Python"),
        ("hidden=open('x')", "write them as in Python"),
    ],
)
def test_arguments_are_values_and_no_code(args: str, words: str | None, net: str) -> None:
    if words is None:
        assert load_factory(net, args)().act == "relu"
        return
    with pytest.raises(UserError, match=words):
        load_factory(net, args)


@pytest.mark.parametrize("text", ["3x", "x3", "0", "words:5", "3x224,", "a=3,4", "tokens:"])
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="write 3x224x224 for numbers"):
        example_input(text)


def test_inputs_have_two_samples() -> None:
    pair = example_input("3x8x8, tokens:5")
    assert [tuple(part.shape) for part in pair] == [(2, 3, 8, 8), (2, 5)] and not pair[1].is_floating_point()


def test_a_file_that_is_not_there_or_fails_is_named(tmp_path: Path, net: str) -> None:
    with pytest.raises(UserError, match=r"no file .*gone\.py"):
        load_factory(f"{tmp_path / 'gone.py'}:Net")
    broken = tmp_path / "broken_file.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(UserError, match=r"importing .*broken_file\.py fails: ZeroDivisionError"):
        load_factory(f"{broken}:Net")
    with pytest.raises(UserError, match=r"did you mean Net\?"):
        load_factory(net.replace(":Net", ":Nett"))


def test_arguments_are_for_code_alone() -> None:
    with pytest.raises(UserError, match="--args for gpt2, which is no code; leave it out"):
        Workload.named("gpt2", args="layers=2")
