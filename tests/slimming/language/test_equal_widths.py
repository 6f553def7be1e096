"""Equal widths are those that a configuration of Hugging Face states."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline.errors import UserError
from paceline.slimming.language.equal_widths import UNSTATED
from tiny_decoders import decoder

TOKENS = {"input_ids": torch.arange(2, 10)[None]}


@pytest.mark.long
def test_equal_widths_open_in_transformers_and_free_ones_differ(tmp_path: Path) -> None:
    model = decoder("Qwen3", vocab_size=64)
    with torch.no_grad():
        mlp = model.model.layers[0].mlp
        for rows in (mlp.gate_proj.weight[:32], mlp.up_proj.weight[:32], mlp.down_proj.weight[:, :32]):
            rows.zero_()
    left = {}
    for widths in ("equal", "free", ""):
        slim = paceline.slim(model, TOKENS, budget="size=60kB", widths=widths)
        with warnings.catch_warnings(action="ignore"):  # of rows that are not zero
            small = slim.shrink()
        assert slim.widths == (widths or "equal") and bool(slim.equal) == (widths != "free")
        with warnings.catch_warnings(action="ignore"):  # of a folder with a plan
            small.save_pretrained(tmp_path / f"{widths}-")
        assert (tmp_path / f"{widths}-" / "config.json").is_file() == (widths != "free")
        left[widths] = [each.mlp.up_proj.out_features for each in small.model.layers]
    assert left[""] == left["equal"] and len(set(left["equal"])) == 1 < len(set(left["free"]))
    assert left["equal"][0] < 48


@pytest.mark.long
def test_layers_that_no_configuration_states_stay_whole() -> None:
    model = decoder("GPT2", vocab_size=64)
    kept = paceline.slim(model, TOKENS, budget="size=60kB").kept
    unstated = [name for name, why in kept.items() if why == UNSTATED]
    assert unstated and all(".attn." in name for name in unstated)


def test_equal_widths_of_other_networks_are_refused() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    for given, says in (({"widths": "equal"}, "equal widths for Sequential"), ({"widths": "fre"}, "unknown widths 'fre'")):
        with pytest.raises(UserError, match=says):
            paceline.slim(network, torch.ones(1, 4), budget="size=100B", **given)
    assert paceline.slim(network, torch.ones(1, 4), budget="size=100B").widths == "free"
