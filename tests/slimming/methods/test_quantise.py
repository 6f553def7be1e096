"""Files in int8 are smaller and near to fp32."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.export.onnx_export import feed, open_session, to_onnx
from paceline.slimming.methods import quantise
from paceline.slimming.methods.quantise import to_int8
from slimming_networks import Recurrent, Transformer, images, tokens


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 5))


@pytest.mark.long
@pytest.mark.everyday("gru", others="long")
@pytest.mark.parametrize(
    ("model", "inputs", "kind", "smaller"),
    [
        (convolutions, images, "QuantizeLinear", 0.4),
        (Recurrent, tokens, "DynamicQuantizeLSTM", 0.6),
        (lambda: Recurrent(nn.GRU), tokens, "MatMulInteger", 1.0),
        (Transformer, tokens, "MatMulInteger", 0.5),
    ],
    ids=["convolutions", "lstm", "gru", "transformer"],
)
def test_int8_is_smaller_and_near(model: type[nn.Module], inputs: object, kind: str, smaller: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    given: tuple[Tensor, ...] = inputs()  # type: ignore[operator]
    file = to_onnx(model(), given, tmp_path / "net.onnx")
    quantised = to_int8(file, tmp_path / "net.int8.onnx", [given] * 4)
    kinds = Counter(node.op_type for node in onnx.load(quantised).graph.node)
    assert kinds[kind] >= 1 and quantised.stat().st_size < smaller * file.stat().st_size
    sessions = [open_session(each) for each in (file, quantised)]
    expected, found = (session.run(None, feed(session, given))[0] for session in sessions)
    apart = float(np.abs(expected - found).max() / np.abs(expected).max())
    assert 0 < apart < 0.05
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.int8.onnx", "net.onnx"]


@pytest.mark.long
def test_scales_come_from_the_samples(tmp_path: Path) -> None:
    file = to_onnx(nn.Linear(4, 4), (torch.ones(1, 4),), tmp_path / "net.onnx")
    narrow, wide = (
        to_int8(file, tmp_path / f"{reach}.onnx", [(torch.full((1, 4), reach),), (torch.full((1, 4), -reach),)])
        for reach in (1.0, 100.0)
    )
    x = (torch.tensor([[0.3, -0.4, 0.2, 0.1]]),)
    sessions = [open_session(each) for each in (file, narrow, wide)]
    exact, near, far = (session.run(None, feed(session, x))[0] for session in sessions)
    assert np.abs(exact - near).max() < 0.2 * np.abs(exact - far).max()


@pytest.mark.long
def test_what_cannot_be_in_int8_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (torch.randn(2, 3),)
    file = to_onnx(nn.LayerNorm(3), x, tmp_path / "net.onnx")
    with pytest.raises(UserError, match=r"net.onnx has no operation that ONNX Runtime quantises; leave out `int8`"):
        to_int8(file, tmp_path / "int8.onnx", [x])

    def fails(file: Path, draft: Path, *more: object) -> None:
        draft.write_text("half")
        raise RuntimeError("odd node\nmore")

    monkeypatch.setattr(quantise, "_quantise", fails)
    with pytest.raises(UserError, match=r"net.onnx cannot be quantised: odd node; leave out"):
        to_int8(file, tmp_path / "int8.onnx", [x])
    assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]
