"""Quality on held-out samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.edge.evaluation import BATCH, held_out, held_out_on_file
from paceline.slimming.export.onnx_export import to_onnx
from paceline.training.runs.data import Dataset


class Next(nn.Module):
    """Scores that are right where a sample is even."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        right = nn.functional.one_hot(x, 4).float() * 9
        return torch.where((x % 2 == 0).unsqueeze(-1), right, torch.zeros(4))


def test_share_and_loss_of_samples_and_of_sequences() -> None:
    x = torch.arange(2 * BATCH + 6) % 4
    for shape in ((-1,), (-1, 2)):
        y = x.reshape(shape)
        accuracy, loss = held_out(Next(), Dataset("own", y, y, y, y))
        expected = nn.functional.cross_entropy(Next()(x), x)
        assert abs(accuracy - 0.5) < 0.01 and abs(loss - float(expected)) < 1e-5


@pytest.mark.long
def test_a_file_has_its_module_s_quality(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 4, generator=generator), torch.randint(0, 3, (9,), generator=generator)
    data, model = Dataset("own", x, y, x, y), nn.Linear(4, 3)
    found = held_out_on_file(to_onnx(model, (x[:1],), tmp_path / "net.onnx"), data)
    expected = held_out(model, data)
    assert found[0] == expected[0] and abs(found[1] - expected[1]) < 1e-5
