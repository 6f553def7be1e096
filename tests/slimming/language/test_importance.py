"""Importances are the quantities that their papers define."""

from __future__ import annotations

import pytest
import torch

from paceline.slimming.language.importance import IMPORTANCES, influences, magnitude, taylor, wanda
from paceline.slimming.language.perplexity import logits_of, loss_of
from paceline.slimming.structures.fewer_layers import layers_of
from paceline.slimming.structures.tracing import structures_of
from tiny_decoders import decoder


@pytest.mark.long
def test_importances_of_heads_and_rows() -> None:
    model, rows = decoder("Qwen3", num_hidden_layers=1), torch.randint(256, (2, 7), generator=torch.Generator().manual_seed(0))
    structures = structures_of(model, (rows[:, :1],))
    found = {name: each(model, structures, [rows]) for name, each in IMPORTANCES.items()}
    layer = model.get_submodule(layers_of(model))[0]
    read: list[torch.Tensor] = []
    hook = layer.mlp.down_proj.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    logits_of(model, rows[:, :-1])
    hook.remove()
    row = next(each for each in structures.every if each.layer.endswith("gate_proj.weight"))
    (index,) = next(part.indices for part in row.slices if part.parameter.endswith("down_proj.weight"))
    contribution = layer.mlp.down_proj.weight[:, index].norm() * read[0][..., index].norm()
    assert found["wanda"][row.number] == pytest.approx(float(contribution), rel=1e-4)

    model.zero_grad()
    loss_of(logits_of(model, rows[:, :-1]), rows).backward()
    change = sum(
        float((each * each.grad)[index, :].sum() if "down" not in name else (each * each.grad)[:, index].sum())
        for name, each in layer.mlp.named_parameters()
    )
    assert found["taylor"][row.number] == pytest.approx(abs(change), rel=1e-3)
    weights = [layer.mlp.gate_proj.weight[index], layer.mlp.up_proj.weight[index], layer.mlp.down_proj.weight[:, index]]
    assert found["magnitude"][row.number] == pytest.approx(float(torch.cat(weights).norm()), rel=1e-4)
    assert {*IMPORTANCES.values()} == {wanda, taylor, magnitude}


@pytest.mark.long
def test_a_layer_that_changes_nothing_has_no_influence() -> None:
    model, rows = decoder("Qwen3"), torch.arange(2, 12)[None]
    layers = model.get_submodule(layers_of(model))
    with torch.no_grad():
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            layers[1].get_submodule(name).weight.zero_()
    idle, busy = influences(layers, lambda: iter([logits_of(model, rows)]))[::-1]
    assert idle == pytest.approx(0, abs=1e-6)
    assert busy > 1e-4
