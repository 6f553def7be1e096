"""Which kernels serve a tensor: none while torch traces a step, and a GPU's only where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from paceline.training.optimizers import kernels, native


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What was asked before is not remembered, nor what is asked here."""
    clear = kernels.gpu.cache_clear
    clear()
    yield
    clear()


def test_without_a_device_there_are_no_kernels_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.gpu() is None
    monkeypatch.setattr(native, "built", lambda: True)
    assert kernels.callable_now() == [native]
    monkeypatch.setattr(native, "built", lambda: False)
    assert kernels.callable_now() == []


def test_without_triton_there_are_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels.importlib, "import_module", missing)
    assert kernels.gpu() is None


def test_while_torch_traces_a_step_nothing_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert kernels.callable_now() == []


@pytest.mark.parametrize("capturing", [False, True])
def test_a_graph_that_is_captured_has_no_kernels_of_the_gpu(capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(kernels, "gpu", lambda: there)
    monkeypatch.setattr(native, "built", lambda: False)
    assert kernels.callable_now() == ([] if capturing else [there])
