"""ONNX files compute what their modules do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.export import onnx_export
from paceline.slimming.export.onnx_export import difference, to_onnx
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens, unlike
from tiny_decoders import decoder


@pytest.mark.long
@pytest.mark.everyday("lstm")
@pytest.mark.parametrize(
    ("make", "example"),
    [(Residual, images), (Recurrent, tokens), (Transformer, tokens)],
    ids=["residual", "lstm", "transformer"],
)
def test_a_shrunk_module_is_a_smaller_file_of_ordinary_operations(
    make: Callable[[], nn.Module], example: Callable[[], tuple[Tensor, ...]], tmp_path: Path
) -> None:
    model, inputs = unlike(make()), example()
    found = structures_of(model, inputs)
    first = next(iter(found.layers().values()))
    small = shrunk(model, found, {each.number for each in first[: len(first) // 2]})
    whole, less = (to_onnx(each, inputs, tmp_path / f"{name}.onnx") for name, each in (("whole", model), ("small", small)))
    assert less.stat().st_size < whole.stat().st_size
    assert difference(small, inputs, less) < 1e-5 < difference(model, inputs, less)
    assert {node.domain for node in onnx.load(less).graph.node} <= {"", "ai.onnx"}


@pytest.mark.long
def test_a_file_with_another_result_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "difference", lambda *_: 0.5)
    with pytest.raises(UserError, match=r"another result than Residual: 0\.5 of the largest output apart"):
        to_onnx(Residual(), images(), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_an_operation_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.svd(x)[0]

    with pytest.raises(UserError, match="Odd cannot be exported to ONNX"):
        to_onnx(Odd(), (torch.randn(3, 3),), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_module_trains_on_as_before(tmp_path: Path) -> None:
    model = Residual().train()
    to_onnx(model, images(), tmp_path / "net.onnx")
    assert model.training


@pytest.mark.long
@pytest.mark.parametrize("name", ["Mixtral", "T5"])
def test_experts_and_attention_that_onnx_lacks_are_exported_in_another_form(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    ids = torch.arange(2, 11)[None]
    if name == "T5":
        sizes = {"vocab_size": 256, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
        torch.manual_seed(0)
        config = transformers.T5Config(**sizes, decoder_start_token_id=0, use_cache=False)
        model = transformers.T5ForConditionalGeneration(config)
        inputs: tuple[Tensor | None, ...] = (ids, None, ids)
        for module in model.modules():  # as slimmed modules have their own numbers
            if hasattr(module, "config"):
                module.config = copy.copy(module.config)
    else:
        model, inputs = decoder(name, use_cache=False), (ids,)
    before = model.config._attn_implementation, model.config._experts_implementation
    file = to_onnx(model, inputs, tmp_path / "model.onnx")  # which compares the outputs
    assert difference(model, inputs, file) < 1e-4
    assert (model.config._attn_implementation, model.config._experts_implementation) == before
