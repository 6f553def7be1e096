"""Language models of Hugging Face and networks in people's own code lose the parts that arithmetic allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paceline
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of

TOKENS = torch.arange(2, 11)[None]


def layers(model: nn.Module, *inputs: Any) -> tuple[Structures, dict[str, int]]:
    found = sound(structures_of(model.eval(), inputs), model, inputs)
    return found, {layer: len(every) for layer, every in found.without_kernels().layers().items()}


def parity(found: Structures, model: nn.Module, *inputs: Any) -> float:
    """Return how far the network without every second structure of each layer is from the masked one."""
    removed = {each.number for every in found.without_kernels().layers().values() for each in every[1::2]}
    return differs(masked(model, found, removed), shrunk(model, found, removed), inputs)


def decoder(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "num_key_value_heads": 2}
    own: dict[str, dict[str, Any]] = {
        "GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 4},
        "Qwen3": {"head_dim": 8},
        "Mixtral": {"num_local_experts": 2},
        "T5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    }
    config = getattr(transformers, f"{name}Config")(**(sizes | own.get(name, {})))
    return getattr(
        transformers, {"T5": "T5ForConditionalGeneration", "GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    )(config)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        pytest.param(
            "Llama", [2, 32, 48], marks=pytest.mark.long
        ),  # two query heads with their key and value, the stream, rows
        pytest.param("Qwen3", [2, 32, 48], marks=pytest.mark.long),  # a norm over each head
        pytest.param("GPT2", [4, 128], marks=pytest.mark.long),  # Conv1D, and widths as numbers in the code
        pytest.param(
            "Mixtral", [2, 4, 6], marks=pytest.mark.long
        ),  # the stream and rows of all experts, by the kernel's alignment
        pytest.param("Mamba", [2, 16, 32, 48], marks=pytest.mark.long),  # the step, the states, the stream and the channels
    ],
)
def test_a_decoder_of_hugging_face_loses_heads_and_rows_as_it_is(name: str, counts: list[int]) -> None:
    model = decoder(name)
    found, sizes = layers(model, TOKENS)
    assert sorted(sizes.values()) == counts, found.kept
    assert parity(found, model, TOKENS) < 1e-5
    assert model.config.use_cache, "the caller's configuration is as it was"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*not zero yet")
def test_a_smaller_decoder_generates_with_its_cache() -> None:
    model = decoder("Llama").eval()
    small = paceline.slim(model, {"input_ids": TOKENS}, budget="size=30kB").shrink()
    assert sum(map(Tensor.numel, small.parameters())) < sum(map(Tensor.numel, model.parameters()))
    cached = small.generate(TOKENS, max_new_tokens=4, do_sample=False)
    assert torch.equal(cached, small.generate(TOKENS, max_new_tokens=4, do_sample=False, use_cache=False))


@pytest.mark.long
def test_an_encoder_decoder_ties_the_heads_of_all_layers_that_share_a_position_bias() -> None:
    model = decoder("T5")
    inputs = (TOKENS, None, TOKENS)
    found = sound(structures_of(model.eval(), inputs), model, inputs)
    shrinks = {part.parameter for every in found.without_kernels().layers().values() for each in every for part in each.slices}
    # The first cross-attention passes zeros for each head on to the second one.
    assert {f"decoder.block.{block}.layer.1.EncDecAttention.q.weight" for block in (0, 1)} <= shrinks
    assert parity(found, model, *inputs) < 1e-5


class Normed(nn.Module):
    """Convolutions with group norms, joined by a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.output = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(20, 2, 1)
        self.norm, self.other = nn.GroupNorm(4, 8), nn.GroupNorm(3, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.first(x)))
        return self.output(torch.cat([x, F.silu(self.other(self.second(x)))], 1))


class Drawn(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mean, self.spread = nn.Linear(6, 10), nn.Linear(10, 3), nn.Linear(10, 3)
        self.out, self.output = nn.Linear(3, 10), nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x).relu()
        drawn = self.mean(x) + torch.randn_like(self.spread(x)) * self.spread(x).exp()
        return self.output(self.out(drawn).relu())


class Cell(nn.Module):
    """A convolutional LSTM that begins with zeros of its width, a number in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 6
        self.gates, self.output = nn.Conv2d(2 + 6, 4 * 6, 3, padding=1), nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = cell = torch.zeros(len(x), self.width, *x.shape[-2:])
        for step in x.unbind(1):
            i, f, o, g = torch.split(self.gates(torch.cat([step, state], 1)), self.width, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
        return self.output(state)


class Routed(nn.Module):
    """A sparse mixture: each expert takes the tokens that chose it, whose number depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.router, self.output = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 6)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x).relu()
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == number)
            y = y.index_add(0, rows, expert(x[rows]) * weights[rows, ranks, None])
        return self.output(y)


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        (Normed, (1, 3, 6, 6), {"first.weight": 4, "second.weight": 3}),
        (Drawn, (2, 6), {"into.weight": 10, "mean.weight": 3, "out.weight": 10}),
        (Cell, (1, 2, 2, 4, 4), {"gates.weight": 6}),
        (Routed, (5, 4), {"into.weight": 6, "experts.0.0.weight": 10, "experts.1.0.weight": 10}),
    ],
)
def test_networks_as_people_write_them_shrink(
    make: Callable[[], nn.Module], shape: tuple[int, ...], expected: dict[str, int]
) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    found, sizes = layers(model, x)
    assert sizes == expected, found.kept
    assert parity(found, model, x) < 1e-5


def test_cross_attention_loses_heads() -> None:
    model = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True)
    found, sizes = layers(model, torch.randn(1, 3, 8), torch.randn(1, 4, 8))
    assert sizes == {"self_attn.in_proj_weight": 2, "multihead_attn.in_proj_weight": 2, "linear1.weight": 12}
    assert parity(found, model, torch.randn(1, 3, 8), torch.randn(1, 4, 8)) < 1e-5
