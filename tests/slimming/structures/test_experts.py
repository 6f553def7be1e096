"""A mixture without some experts computes as if its router could not choose them."""

from __future__ import annotations

import pytest
import torch

from paceline.slimming.language.stated_config import stated_config
from paceline.slimming.structures.experts import Routing, expert_use, mixtures, with_experts
from paceline.slimming.structures.fewer_layers import within_layers
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.tracing import structures_of
from tiny_decoders import decoder

TOKENS = torch.arange(2, 31)[None]
QWEN = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "given", "number"),
    [
        ("Mixtral", {"num_local_experts": 6}, "num_local_experts"),
        ("Qwen3Moe", {"num_experts": 8, **QWEN}, "num_local_experts"),
        ("Qwen2Moe", {"num_experts": 8, "shared_expert_intermediate_size": 24, **QWEN}, "num_experts"),
    ],
)
def test_the_smaller_mixture_equals_the_masked_one(name: str, given: dict[str, int], number: str) -> None:
    model = decoder(name, **given)
    found = sound(with_experts(structures_of(model, (TOKENS,)), model, (TOKENS,)), model, (TOKENS,))
    layers = found.layers()
    assert len(found.routers) == 2 and {found.least[layer] for layer in found.routers} == {2}
    count = len(layers[next(iter(found.routers))])
    experts = {each.number for layer in found.routers for each in layers[layer][1::2]}
    every = experts | {each.number for layer in layers.values() for each in layer[1::2]}
    inside = {each.number for each in within_layers(found, "model.layers").every}  # norms of heads share the stream's epsilon
    for gone in (experts, every & inside, every):
        small = shrunk(model, found, gone)
        assert differs(masked(model, found, gone), small, (TOKENS,)) < 1e-5
        assert differs(model, small, (TOKENS,)) > 1e-3, "experts that are gone were used"
        if gone <= inside:
            assert getattr(stated_config(model, small), number) == count // 2
    use = expert_use(model, found, (model(TOKENS) for _ in range(2)))
    assert len(use) == 2 * count and min(use.values()) >= 0
    assert sum(use.values()) < 2 * 2 * TOKENS.numel(), "the share of the two best experts of each token, in two layers and runs"


def test_use_is_the_share_of_the_chosen_experts() -> None:
    weight = torch.eye(3)
    x = torch.tensor([[2.0, 1.0, 0.0]])
    with Routing({"router": weight}, least={"router": 2}) as routing:
        torch.topk(torch.nn.functional.linear(x, weight).softmax(-1), 2)
    shares = x.softmax(-1)[0]
    assert routing.chosen == {"router": 2}
    assert routing.use["router"].tolist() == pytest.approx([float(shares[0]), float(shares[1]), 0.0])
    with Routing({"router": weight}, gone={"router": [0]}):
        assert torch.nn.functional.linear(x, weight).softmax(-1)[0, 0] == 0
    assert not list(mixtures(torch.nn.Linear(2, 2)))
