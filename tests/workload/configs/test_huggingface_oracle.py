"""Layer tables from configurations beside the modules that transformers builds from them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from config_cases import CASES
from paceline.workload import Workload

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers")
TOKENS = 48
IMAGES = ("vit", "deit")
PAIRS = ("t5", "bart", "whisper")


def module(config: Any) -> Any:
    """The module for the task of pre-training, on the meta device."""
    import torch
    import transformers

    special = {"deit": transformers.DeiTForImageClassification, "vit": transformers.ViTForImageClassification}
    tasks = (transformers.AutoModelForSpeechSeq2Seq, transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForMaskedLM)
    with torch.device("meta"):
        if config.model_type in special:
            return special[config.model_type](config)
        for task in (*tasks, transformers.AutoModelForCausalLM):
            if type(config) in task._model_mapping and (config.model_type != "bart" or task is tasks[1]):
                return task.from_config(config)
    raise AssertionError(config.model_type)


def inputs(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    import torch

    tokens = torch.empty((2, TOKENS), dtype=torch.int64, device="meta")
    if kind in IMAGES:
        return {"pixel_values": torch.empty(2, 3, given["image_size"], given["image_size"], device="meta")}
    if kind == "whisper":
        return {"input_features": torch.empty(2, 10, 64, device="meta"), "decoder_input_ids": tokens}
    mask = {"attention_mask": torch.empty((2, TOKENS), dtype=torch.int64, device="meta")} if kind == "bart" else {}
    return {"input_ids": tokens, **({"decoder_input_ids": tokens} if kind in PAIRS else {}), **mask}


@pytest.mark.everyday("0-llama", "28-t5", "30-vit", others="long")
@pytest.mark.parametrize(("kind", "given", "parameters"), CASES, ids=[f"{i}-{kind}" for i, (kind, *_) in enumerate(CASES)])
def test_a_module_of_transformers_has_these_parameters_and_flops(kind: str, given: dict[str, Any], parameters: int) -> None:
    import torch
    from transformers import CONFIG_MAPPING

    given = {**given, "sliding_window": TOKENS} if "sliding_window" in given else given  # a trace counts masked scores too
    config = CONFIG_MAPPING[kind](**given)
    config._experts_implementation = "batched_mm"  # each token by the weights of its experts, and no others
    built = module(config)
    assert sum(p.numel() for p in built.parameters() if p.requires_grad) == parameters
    length = None if kind in IMAGES else TOKENS
    whole = config.to_dict() | {"num_nextn_predict_layers": 0}  # transformers has no modules for further tokens
    for settings in (whole, {"model_type": kind, **given}):
        table = Workload.from_config(settings, length, fused_attention=built.config._attn_implementation != "eager")
        assert table.num_parameters == parameters

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = built

        def forward(self, **arguments: Any) -> Any:
            return self.network(**arguments).logits

    if kind == "bart":
        pytest.skip("needs a trace of a mask that asks whether all tokens are there: no test can answer it")
    its = Workload.trace(Logits(), inputs(kind, given))
    assert table.flops_forward == pytest.approx(its.flops_forward, rel=1e-9)
    assert table.flops_per_sample == pytest.approx(its.flops_per_sample, rel=1e-9)
