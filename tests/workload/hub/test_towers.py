"""Towers of images next to language models."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.hub.library import TEXT
from paceline.workload.hub.networks import hub_table
from paceline.workload.layers import LayerTable
from paceline.workload.sample_size import parse_sample

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
WORDS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300}
QWEN: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        **{"model_type": "qwen2_5_vl_text", **WORDS, "num_hidden_layers": 2, "max_position_embeddings": 4096},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    },
    "vision_config": {
        **{"depth": 3, "hidden_size": 64, "intermediate_size": 80, "num_heads": 4, "out_hidden_size": 64, "patch_size": 14},
        **{"spatial_merge_size": 2, "window_size": 56, "fullatt_block_indexes": [1]},
    },
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "image_seq_length": 16,
    "text_config": {"model_type": "llama", **WORDS, "num_hidden_layers": 2, "max_position_embeddings": 4096},
    "vision_config": {
        **{"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "image_size": 56, "patch_size": 14},
    },
}

MISTRAL: dict[str, Any] = {
    "model_type": "mistral3",
    "text_config": {"model_type": "mistral", **WORDS, "num_hidden_layers": 2, "max_position_embeddings": 4096},
    "vision_config": {
        **{"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "image_size": 1540, "patch_size": 14},
    },
}


def built(settings: dict[str, Any], inputs: str = "", seq_len: int | None = None) -> LayerTable:
    size = parse_sample(inputs) if inputs else None
    return hub_table(settings, TEXT, seq_len, name="mine", source="a test", size=size)


def test_the_work_of_a_tower_is_that_of_its_module() -> None:
    """Torch's counter on the module itself, whose attention is a loop over windows of 4 x 4 patches."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen2_5_VLForConditionalGeneration
    from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig

    table = built(QWEN, "image:112x224,tokens:40")
    config = Qwen2_5_VLConfig.from_dict(QWEN | {"attn_implementation": "eager"})
    module = Qwen2_5_VLForConditionalGeneration(config)
    assert table.num_parameters == sum(p.numel() for p in module.parameters())
    assert {p.name for p in table.parameters} == {name for name, _ in module.named_parameters()}
    patches = 8 * 16
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.model.visual(torch.zeros(patches, 3 * 2 * 14 * 14), grid_thw=torch.tensor([[1, 8, 16]]))
    tower = sum(layer.flops_forward for layer in table.layers if layer.name.startswith("model.visual"))
    assert tower == counter.get_total_flops()
    assert table.tokens == 40 + patches // 4 and "one image 3x112x224" in table.sample


@pytest.mark.long
def test_a_tower_that_is_traced_has_the_same_work() -> None:
    traced, by_modules = built(LLAVA, seq_len=56), built(LLAVA, "tokens:40")
    assert traced.sample == by_modules.sample == "sequence of 56 tokens, one image 3x56x56"
    assert traced.num_parameters == by_modules.num_parameters
    assert by_modules.flops_forward == pytest.approx(traced.flops_forward, rel=0.02)  # CLIP has a token of the class too
    assert by_modules.flops_per_sample == pytest.approx(traced.flops_per_sample, rel=0.03)  # the last block gets no gradient
    two = built(LLAVA, "tokens:40,images:2")
    assert two.tokens == 40 + 2 * 16 and "2 images" in two.sample


def test_a_frozen_tower_runs_forward_alone_and_its_projector_is_trained() -> None:
    plain, frozen = built(LLAVA, "tokens:40"), built(LLAVA, "tokens:40,frozen-vision")
    assert frozen.frozen > 0 and frozen.num_parameters + frozen.frozen == plain.num_parameters
    assert any("projector" in p.name for p in frozen.parameters) and not any("vision" in p.name for p in frozen.parameters)
    assert frozen.flops_forward == pytest.approx(plain.flops_forward) and frozen.flops_per_sample < plain.flops_per_sample
    assert [p.ready for p in frozen.ready_order] == list(range(len(frozen.parameters)))


def test_the_usual_image_is_said() -> None:
    table = built(QWEN, seq_len=2048)
    assert table.tokens == 2048 and "1,225 of them from one image 3x980x980, the usual size" in table.notes[0]


@pytest.mark.parametrize(
    ("settings", "inputs", "words"),
    [
        (LLAVA, "image:112px", "llava resizes images to 56x56.*image:56x56"),
        (QWEN, "image:112px,cached", "--input cached for mine"),
        ({"model_type": "llama", **WORDS, "num_hidden_layers": 1}, "tokens:8", "images are not known here"),
    ],
)
def test_other_samples_are_refused(settings: dict[str, Any], inputs: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        built(settings, inputs)
    with pytest.raises(UserError, match=r"sequence of 16 tokens.*--seq-len"):
        built(LLAVA, seq_len=16, inputs="images:2")
    with pytest.raises(UserError, match=r"sequence of 256 tokens with one image.*--seq-len"):
        built(MISTRAL, seq_len=256)  # not its language model alone


def test_a_user_says_it_at_the_command_line(tmp_path: Any) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps(LLAVA))
    assert Workload.named(f"{tmp_path}/", inputs="tokens:40,frozen-vision").frozen > 0


@pytest.mark.long
def test_the_commands_of_the_page_run(capsys: Any) -> None:
    import shlex
    from pathlib import Path

    from paceline.cli import main

    page = (Path(__file__).parents[3] / "docs" / "own-model.md").read_text(encoding="utf-8")
    block = page.partition("## Images with text")[2].partition("```bash\n")[2].partition("```")[0]
    commands = block.strip().splitlines()
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0 and "one sample is a sequence of" in capsys.readouterr().out
