"""Runtimes: their files agree with the modules, are smaller where the modules are, and are timed alike."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.export import exporting
from paceline.slimming.latency import targets
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.targets import TARGETS, ExecuTorch, SlimTarget
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.tracing import structures_of

COMPILING = ("torch-compile",)
"""Targets whose compilation takes too long for every day."""


@pytest.fixture(params=[pytest.param(TARGETS[n], id=n, marks=[pytest.mark.long] * (n in COMPILING)) for n in TARGETS])
def target(request: pytest.FixtureRequest) -> SlimTarget:
    found: SlimTarget = request.param
    try:
        found.check_installed()
    except UserError as error:
        pytest.skip(f"needs the target's package: {error}")
    return found


class Pair(nn.Module):
    """Two inputs in an order that matters, one of whole numbers, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, numbers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.output(self.table(numbers) - x), x + 1


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 14 * 14, 5)
    )


def test_a_slimmed_network_s_file_is_smaller_by_its_weights(target: SlimTarget, tmp_path: Path) -> None:
    inputs = (torch.randn(1, 3, 16, 16),)
    model = convolutions().train()
    structures = structures_of(model, inputs)
    gone = {each.number for every in structures.layers().values() for each in every[len(every) // 4 :]}
    small = shrunk(model, structures, gone).eval()
    files = {
        name: target.export(each, inputs, tmp_path / f"{name}{target.suffix}") for name, each in (("a", model), ("b", small))
    }
    assert model.training
    weights = [4 * sum(each.numel() for each in one.parameters()) for one in (model, small)]
    sizes = [file.stat().st_size for file in files.values()]
    assert weights[0] > 4 * weights[1] and sizes[0] - sizes[1] > 0.9 * (weights[0] - weights[1])
    for turns in (5, 15, 30, 60, 120):  # a busy machine may take more turns to show it
        found = target.latencies({name: (file, inputs) for name, file in files.items()}, turns=turns)
        if found["a"].median_s > 1.5 * found["b"].median_s:
            break
    assert found["a"].median_s > 1.5 * found["b"].median_s > 0
    assert target.vector_width() in (8, 16)
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"a{target.suffix}", f"b{target.suffix}"]


def test_inputs_keep_their_order_and_types(target: SlimTarget, tmp_path: Path) -> None:
    inputs = (torch.tensor([[1, 7, 3]]), torch.randn(1, 3, 4))
    file = target.export(Pair(), inputs, tmp_path / f"net{target.suffix}")
    assert target.latencies({"it": (file, inputs)}, threads=2, turns=2)["it"].turns == 2


def test_another_result_and_another_operation_are_refused(
    target: SlimTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else torch.linalg.svd(x)[0]

    with pytest.raises(UserError, match="Odd cannot be exported to"):
        target.export(Odd(), (torch.randn(3, 3),), tmp_path / f"net{target.suffix}")
    real = exporting.difference
    for module in (exporting, targets):
        monkeypatch.setattr(module, "difference", lambda *given: real(*given) + 0.5)
    with pytest.raises(UserError, match=f"{target.title} computes another result than Linear: 0.5"):
        target.export(nn.Linear(3, 3), (torch.randn(1, 3),), tmp_path / f"net{target.suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_missing_package_is_named_with_what_installs_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    extra = {"onnxruntime": "slim", "torch-compile": "train"}.get(name, name)
    with pytest.raises(UserError, match=rf"{TARGETS[name].title} is not installed; pip install 'paceline\[{extra}\]'"):
        TARGETS[name].export(nn.ReLU(), (torch.randn(2),), tmp_path / "net")
    with pytest.raises(UserError, match="is not installed"):
        TARGETS[name].latencies({"it": (tmp_path / "net", ())})


def test_files_are_timed_by_their_names_in_alternation(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(ExecuTorch, "call", lambda self, file, inputs, threads: lambda: ran.append((file, threads)))
    monkeypatch.setattr("paceline.slimming.latency.latency.SLICE_S", 0.0)
    found = ExecuTorch().latencies({"a": ("a.pte", ()), "b": ("b.pte", ())}, threads=3, turns=4)
    assert list(found) == ["a", "b"] and isinstance(found["a"], Latency)
    assert ran[-9:] == [("a.pte", 3), *[("b.pte", 3), ("a.pte", 3)] * 4] and ran[0] == ("a.pte", 3)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"torch.compile needs a C\+\+ compiler; apt install g\+\+, or set CXX"):
        TARGETS["torch-compile"].check_installed()


@pytest.mark.long
def test_a_compiled_program_runs_on_the_threads_asked_for_and_sets_them_back(tmp_path: Path) -> None:
    target, inputs = TARGETS["torch-compile"], (torch.randn(4, 8),)
    seen: list[int] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    file = target.export(Watched(8, 3), inputs, tmp_path / "net.pt2")
    real = targets._compiled

    def compiled(file: str | Path, inputs: tuple[Any, ...]) -> Any:
        seen.append(torch.get_num_threads())
        return real(file, inputs)

    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "_compiled", compiled)
        target.latencies({"it": (file, inputs)}, threads=before + 1, turns=2)
    assert seen == [before + 1] and torch.get_num_threads() == before
