"""Workloads by name and by ``module:function``, and what the errors say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.workload import Workload, load_factory, names

NETWORKS = """
import torch
from torch import nn

def with_batch():
    return nn.Linear(4, 2), torch.empty(8, 4)

def with_attribute():
    module = nn.Linear(4, 2)
    module.example_input = torch.empty(8, 4)
    return module

def bare():
    return nn.Linear(4, 2)

def text():
    return "no"

answer = 42
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current directory, which is not on the import path before."""
    name = f"networks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("function", ["with_batch", "with_attribute"])
def test_a_users_function_is_traced(networks: str, function: str) -> None:
    table = Workload.named(f"{networks}:{function}")
    assert table.num_parameters == 10 and table.flops_forward == 16
    assert table.name == table.source == f"{networks}:{function}"


def test_a_module_without_an_input_says_what_to_provide(networks: str) -> None:
    with pytest.raises(UserError, match=r"no example input for .*:bare; return .*example_input"):
        Workload.named(f"{networks}:bare")


def test_other_things_than_modules_are_errors(networks: str) -> None:
    with pytest.raises(UserError, match=f"{networks}:text returned str, not an nn.Module"):
        Workload.named(f"{networks}:text")
    with pytest.raises(UserError, match="is a int, not a function"):
        load_factory(f"{networks}:answer")


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


def test_an_unknown_name_shows_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown workload 'resnet50'; nearest: resnet-50"):
        Workload.named("resnet50")


def test_tables_need_no_torch() -> None:
    code = (
        "import sys, paceline.workload as w\n"
        "assert [w.Workload.named(n).num_parameters for n in w.names()]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("text", ["Llama-2-7B", "llama_2_7b", " LLAMA 2 7B ", "llama-2_7b"])
def test_case_and_separators_do_not_matter(text: str) -> None:
    assert Workload.named(text, seq_len=1024) is Workload.named("llama-2-7b", seq_len=1024)


def test_no_two_names_are_spelt_alike() -> None:
    assert {Workload.named(name.upper().replace("-", "_")).name for name in names()} == {
        Workload.named(name).name for name in names()
    }
