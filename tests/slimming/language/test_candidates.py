"""Candidates meet a predicted cost, with the layers of the least influence left out first."""

from __future__ import annotations

import re

import pytest
import torch

from paceline.errors import UserError
from paceline.slimming.language.candidates import Candidates, plan_of
from paceline.slimming.slim import Slim
from paceline.slimming.structures.shrink import load, module_bytes
from paceline.units import parse_bytes
from tiny_decoders import decoder


@pytest.mark.long
def test_candidates_meet_the_cost() -> None:
    model = decoder("Qwen3", num_hidden_layers=4, intermediate_size=64)
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight.zero_()
        model.model.layers[2].self_attn.o_proj.weight.zero_()
    text = torch.randint(2, 256, (300,), generator=torch.Generator().manual_seed(0))
    goal = 0.7 * module_bytes(model)
    slim = Slim(model, (text[None, :8],), budget=f"size={goal:.0f}B", method="ssl")
    search = Candidates(slim, text, text, 8)
    found = search.every(goal)
    assert {len(each.layers) for each in found} > {4}
    assert all(each.cost <= goal for each in found)
    assert [each.perplexity for each in found] == sorted(each.perplexity for each in found)
    for each in found:
        small = load(each.plan, model)
        assert module_bytes(small) <= goal * 1.02  # norms of layers that are gone, and tables of rotations, do not count
        assert len(each.layers) == 4 or 2 not in each.layers
    assert plan_of(search.structures, []).replacements == {}
    with pytest.raises(UserError, match="cannot be met"):
        search.every(0.01 * goal)


@pytest.mark.long
def test_a_refusal_names_the_least_that_can_be_met() -> None:
    model = decoder("Qwen3", num_hidden_layers=2)
    text = torch.randint(2, 256, (40,), generator=torch.Generator().manual_seed(0))
    slim = Slim(model, (text[None, :8],), budget="size=1kB", method="ssl")
    search = Candidates(slim, text, text, 8, importances=("wanda",))
    with pytest.raises(UserError, match=r"a budget of 1\.50 kB .*the least that half of the layers can meet is") as refused:
        search.every(1000.0, beside=500.0)
    least = parse_bytes(re.sub(r".* is ([\d.]+) (\w+)$", r"\1\2", str(refused.value)))
    found = search.every(least * 1.005 - 500)  # three digits are shown
    assert found and found[0].cost + 500 == pytest.approx(least, rel=0.005)
    assert len(found[0].layers) == 1
