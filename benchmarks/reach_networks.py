"""Architectures of ``slim_reach.py``: language models of Hugging Face, networks of timm, and forms that people write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Any, ...]]
TOKENS = 20
SMALL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": TOKENS,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
GROUPED: Mapping[str, Any] = {**SMALL, "num_key_value_heads": 2}
_SEQUENCES = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
_SEQUENCES |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
PAIR: Mapping[str, Any] = {**_SEQUENCES, **{name: SMALL[name] for name in SMALL if name.endswith(("_id", "vocab_size"))}}
HUGGING_FACE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": TOKENS}),
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 16}),
    "mistral": ("MistralForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 16}),
    "gemma3": ("Gemma3ForCausalLM", {**GROUPED, "head_dim": 16}),
    "phi": ("PhiForCausalLM", GROUPED),
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    ),
    "olmoe": ("OlmoeForCausalLM", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "mamba": ("MambaForCausalLM", {name: SMALL[name] for name in ("hidden_size", "num_hidden_layers", "vocab_size")}),
    "opt": ("OPTForCausalLM", {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "bloom": ("BloomForCausalLM", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": TOKENS}),
    "gpt-neox": ("GPTNeoXForCausalLM", SMALL),
    "gptj": ("GPTJForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "vocab_size": TOKENS}),
    "falcon": ("FalconForCausalLM", SMALL),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "stablelm": ("StableLmForCausalLM", GROUPED),
    "granite": ("GraniteForCausalLM", GROUPED),
    "smollm3": ("SmolLM3ForCausalLM", GROUPED),
    "cohere": ("CohereForCausalLM", GROUPED),
    "glm": ("GlmForCausalLM", {**GROUPED, "head_dim": 16}),
    "starcoder2": ("Starcoder2ForCausalLM", GROUPED),
    "bert": ("BertModel", SMALL),
    "roberta": ("RobertaModel", SMALL),
    "distilbert": ("DistilBertModel", {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": TOKENS}),
    "albert": ("AlbertModel", {**SMALL, "embedding_size": 32}),
    "electra": ("ElectraModel", {**SMALL, "embedding_size": 32}),
    "deberta-v2": ("DebertaV2Model", SMALL),
    "modernbert": ("ModernBertModel", {**SMALL, "cls_token_id": 0, "sep_token_id": 1}),
    "t5": (
        "T5ForConditionalGeneration",
        {
            **{"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
            **{"vocab_size": TOKENS, "pad_token_id": 0, "eos_token_id": 1},
        },
    ),
    "bart": ("BartForConditionalGeneration", PAIR),
    "marian": ("MarianMTModel", PAIR),
}
"""Class, and its configuration, of each language model."""
TIMM = (
    *("resnet18", "resnext50_32x4d", "seresnext26d_32x4d", "densenet121", "efficientnet_b0", "mobilenetv2_050"),
    *("mobilenetv3_small_050", "convnext_atto", "convnextv2_atto", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"),
    *("levit_128s", "repvgg_a0", "mobileone_s0", "regnetx_002", "regnety_002", "mixer_s32_224", "resmlp_12_224"),
    *("poolformer_s12", "pit_ti_224", "mobilevit_xxs", "ghostnet_050", "tinynet_e", "vgg11", "dla34", "res2net50_14w_8s"),
    *("selecsls42", "repvit_m0_9", "starnet_s1", "fastvit_t8", "hardcorenas_a"),
)


def of_hugging_face(kind: str, settings: Mapping[str, Any]) -> Made:
    """Return a small language model, as its library makes it, and its tokens."""
    import transformers

    of = getattr(transformers, kind)
    model = of(of.config_class(**settings))
    tokens = torch.arange(2, 11)[None]
    return model, (tokens, None, tokens) if model.config.is_encoder_decoder else (tokens,)


def of_timm(name: str) -> Made:
    """Return a network of timm with ten classes, and an image."""
    from paceline.workload.tracing.timm_networks import _timm

    model = _timm().create_model(name, pretrained=False, num_classes=10)
    return model, (torch.randn(1, *model.default_cfg["input_size"]),)


class UNet(nn.Module):
    """Convolutions with group norms, and a concatenation of two scales."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.fine, self.coarse, self.joined = (
            self._block(3, width),
            self._block(width, 2 * width),
            self._block(3 * width, width),
        )
        self.output = nn.Conv2d(width, 1, 1)

    def _block(self, entering: int, leaving: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width in (entering, leaving):
            layers += [nn.Conv2d(width, leaving, 3, padding=1), nn.GroupNorm(8, leaving), nn.SiLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the input's size."""
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        return self.output(self.joined(torch.cat([fine, F.interpolate(coarse, scale_factor=2)], 1)))


class WeightNormed(nn.Module):
    """Convolutions over time with weight norm as a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        normed = torch.nn.utils.parametrizations.weight_norm
        first, second = normed(nn.Conv1d(4, 32, 3, padding=1)), normed(nn.Conv1d(32, 32, 3, padding=1))
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv1d(32, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return two series."""
        return self.layers(x)


class Autoencoder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mean, self.spread = nn.Linear(64, 128), nn.Linear(128, 16), nn.Linear(128, 16)
        self.out, self.output = nn.Linear(16, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Return a reconstruction of a draw."""
        x = self.into(x).relu()
        spread = self.spread(x)
        return self.output(self.out(self.mean(x) + torch.randn_like(spread) * spread.exp()).relu())


class LiteralAttention(nn.Module):
    """A block in nanoGPT's form, whose attention takes its width from the input."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.table, self.output, self.heads, self.width = nn.Embedding(TOKENS, width), nn.Linear(width, TOKENS), heads, width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next token."""
        x = self.table(tokens)
        batch, length, width = x.size()
        parts = self.qkv(self.norms[0](x)).split(self.width, dim=2)
        q, k, v = (each.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for each in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(batch, length, width)
        x = x + self.project(mixed)
        return self.output(x + self.mlp(self.norms[1](x)))


class Recurrent(nn.Module):
    """An LSTM that begins with zeros of its own."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width, self.layers, self.output = width, nn.LSTM(16, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return four values of each step."""
        state = torch.zeros(1, len(x), self.width)
        return self.output(self.layers(x, (state, state.clone()))[0])


class GivenState(Recurrent):
    """An LSTM whose caller gives the state."""

    def forward(self, x: Tensor, state: Tensor, cell: Tensor) -> Tensor:  # type: ignore[override]
        """Return four values of each step."""
        return self.output(self.layers(x, (state, cell))[0])


class Packed(Recurrent):
    """An LSTM over sequences of several lengths."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Return four values of each sequence."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.output(self.layers(packed)[1][0][-1])


class ConvolutionalLSTM(nn.Module):
    """A convolutional LSTM that splits its gates by its width."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(3 + width, 4 * width, 3, padding=1)
        self.output = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the last frame's size."""
        state = cell = torch.zeros(len(x), self.width, *x.shape[-2:])
        for step in x.unbind(1):
            i, f, o, g = torch.split(self.gates(torch.cat([step, state], 1)), self.width, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
        return self.output(state)


class Mixture(nn.Module):
    """A sparse mixture, each expert of which takes the tokens that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.router, self.output = nn.Linear(16, 32), nn.Linear(32, 4), nn.Linear(32, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return three values of each token."""
        x = self.into(x).relu()
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == number)
            y = y.index_add(0, rows, expert(x[rows]) * weights[rows, ranks, None])
        return self.output(y)


def _own(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Made:
    return make(), tuple(torch.randn(shape) for shape in shapes)


def _tokens() -> Made:
    return LiteralAttention(), (torch.arange(9)[None],)


def _packed() -> Made:
    return Packed(), (torch.randn(2, 5, 16), torch.tensor([5, 3]))


OWN: Mapping[str, Callable[[], Made]] = {
    "unet": partial(_own, UNet, (1, 3, 32, 32)),
    "weight-norm": partial(_own, WeightNormed, (1, 4, 20)),
    "vae": partial(_own, Autoencoder, (2, 64)),
    "nn.Transformer": partial(_own, partial(nn.Transformer, 64, 4, 2, 2, 128, batch_first=True), (2, 7, 64), (2, 5, 64)),
    "nanogpt": _tokens,
    "lstm": partial(_own, Recurrent, (2, 5, 16)),
    "lstm-state": partial(_own, GivenState, (2, 5, 16), (1, 2, 64), (1, 2, 64)),
    "lstm-packed": _packed,
    "conv-lstm": partial(_own, ConvolutionalLSTM, (1, 3, 3, 16, 16)),
    "mixture": partial(_own, Mixture, (5, 16)),
    "gru": partial(_own, partial(nn.GRU, 16, 64, batch_first=True), (2, 5, 16)),
    "encoder": partial(_own, partial(nn.TransformerEncoderLayer, 64, 4, 128, batch_first=True), (2, 5, 64)),
    "conv3d": partial(_own, lambda: nn.Sequential(nn.Conv3d(1, 16, 3), nn.ReLU(), nn.Conv3d(16, 2, 1)), (1, 1, 6, 6, 6)),
}
NETWORKS: Mapping[str, tuple[str, Callable[[], Made]]] = {
    **{name: ("transformers", partial(of_hugging_face, *each)) for name, each in HUGGING_FACE.items()},
    **{name: ("timm", partial(of_timm, name)) for name in TIMM},
    **{name: ("own", make) for name, make in OWN.items()},
}
"""Library, and function that makes the network and its inputs, by architecture."""
