"""Export of networks that draw random numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")

import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from torch import nn  # noqa: E402

from paceline.slimming.export.onnx_export import difference, open_session, to_onnx  # noqa: E402
from paceline.slimming.export.random_draws import without_draws  # noqa: E402


class Drawing(nn.Module):
    """A value around a mean, and noise of a fixed size."""

    def __init__(self, noise: float = 1.0) -> None:
        super().__init__()
        self.mean, self.noise = nn.Linear(4, 3), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return draws."""
        mean = self.mean(x)
        return mean + self.noise * torch.randn_like(mean) + torch.rand(3)


def test_a_network_that_draws_is_exported_and_another_one_is_not_taken_for_it(tmp_path: Path) -> None:
    model, x = Drawing(), torch.randn(2, 4)
    file = to_onnx(model, (x,), tmp_path / "drawing.onnx")
    session = open_session(file)
    runs = [session.run(None, {"x": x.numpy()})[0] for _ in range(2)]
    assert abs(runs[0] - runs[1]).max() > 0  # the file still draws
    other = Drawing(2.0)
    other.load_state_dict(model.state_dict())
    assert difference(model, (x,), file) < 1e-6 and difference(other, (x,), file) > 0.01


def test_draws_with_settings_get_the_value_between(tmp_path: Path) -> None:
    settings = {"mean": 3.0, "scale": 2.0, "shape": [2]}
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], **settings),
        helper.make_node("RandomUniformLike", ["a"], ["b"], low=-1.0),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "ab"]
    graph = helper.make_graph(nodes, "draws", [], outputs)
    file = tmp_path / "draws.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), file)
    found = open_session(without_draws(file)).run(None, {})
    assert [each.tolist() for each in found] == [[4.0, 4.0], [0.0, 0.0]]
    del graph.node[:]
    onnx.save(helper.make_model(graph), file)
    assert without_draws(file) is None
