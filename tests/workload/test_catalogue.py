"""Workloads by name and by ``module:function``, and what the errors say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.errors import UserError
from paceline.workload import Workload, load_factory, names


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
