"""Targets that do not run here: their files are checked, budgets of time are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slim_record import UNMEASURED, unmeasured_note
from paceline.slimming.latency.targets import TARGETS
from paceline.slimming.latency.unmeasured_targets import UNMEASURED_TARGETS, CoreML, TensorRT
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.methods import EVERY_TARGET, target_for
from paceline.slimming.slim import Slim


def test_budgets_of_time_are_refused_and_each_answer_says_what_is_unmeasured() -> None:
    assert {each.name: each.title for each in UNMEASURED_TARGETS} == UNMEASURED and {*TARGETS, *UNMEASURED} == {*EVERY_TARGET}
    for name in UNMEASURED:
        for budget in ("speedup=2x", "latency=5ms", "accuracy=-1pt"):
            with pytest.raises(
                UserError, match=rf"{UNMEASURED[name]}, whose latency cannot be measured here; give `budget` size"
            ):
                target_for(name, "auto", Budget.parse(budget))
        assert unmeasured_note(name).startswith(f"Unmeasured on {UNMEASURED[name]}: each latency is of ONNX Runtime")
        with pytest.raises(UserError, match="does not run here"):
            EVERY_TARGET[name].latencies({"": (Path("no"), ())})


@pytest.mark.long
def test_a_network_for_tensorrt_is_slimmed_to_a_size(tmp_path: Path) -> None:
    model, inputs = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)), (torch.randn(1, 8),)
    slim = Slim(model, inputs, budget="size=1200B", target="tensorrt")
    assert slim.round_to == 8 and slim.whole.median_s > 0, "of ONNX Runtime"
    assert TensorRT().export(model, inputs, tmp_path / "net.onnx").exists()
    with pytest.raises(UserError, match="TensorRT does not take this network: it has no operator Det"):
        TensorRT().export(_Determinant(), (torch.randn(1, 3, 3),), tmp_path / "odd.onnx")
    assert not (tmp_path / "odd.onnx").exists()


class _Determinant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(x)


@pytest.mark.long
def test_core_ml_takes_convolutions_and_recurrent_layers(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs coremltools: pip install 'paceline[coreml]'")
    model, inputs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (torch.randn(1, 3, 6, 6),)
    file = CoreML().export(model, inputs, tmp_path / "net.mlpackage.zip")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    assert "model.mlpackage/Manifest.json" in names and sorted(tmp_path.iterdir()) == [file]
    assert CoreML().export(_Recurrent(), (torch.randn(1, 3, 4),), tmp_path / "lstm.mlpackage.zip").exists()
    with pytest.raises(UserError, match="LSTM cannot be exported to Core ML"):
        CoreML().export(nn.LSTM(4, 6), (torch.randn(2, 1, 4),), tmp_path / "states.mlpackage.zip")


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)[0]
        return result
