"""Published transformers by name: dimensions, training length, and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from paceline.workload.builders.adapters.insertion import with_adapters
from paceline.workload.builders.adapters.lora import LoRA
from paceline.workload.builders.attention import SlidingWindow
from paceline.workload.builders.encoder_decoder import EncoderDecoderShape, encoder_decoder
from paceline.workload.builders.expert_shapes import EXPERT_SHAPES
from paceline.workload.builders.hybrid_shapes import HYBRID_SHAPES
from paceline.workload.builders.open_shapes import OPEN_SHAPES
from paceline.workload.builders.transformer import TransformerShape, llama, transformer
from paceline.workload.details import published_details
from paceline.workload.layers import LayerTable


@dataclass(frozen=True, slots=True)
class Named:
    """Published shape. ``seq_len`` is the default length; with ``pairs``, encoder and decoder both have it; with ``lora``
    only adapters are trained.
    """

    shape: TransformerShape
    seq_len: int
    source: str
    pairs: bool = False
    lora: LoRA | None = None

    def detailed(self, name: str) -> TransformerShape:
        """Return the shape with what is known of the network and costs nothing."""
        return replace(self.shape, details=published_details(name))

    def table(self, name: str, seq_len: int | None, fused_attention: bool) -> LayerTable:
        """Return the layer table. Raises UserError as ``transformer``."""
        length, given = self.seq_len if seq_len is None else seq_len, {"name": name, "source": self.source}
        shape = self.detailed(name)
        if self.pairs:
            both = EncoderDecoderShape(encoder=replace(self.shape, causal=False), decoder=self.shape)
            return encoder_decoder(both, length, **given, fused_attention=fused_attention)
        table = transformer(shape, length, **given, fused_attention=fused_attention)
        return with_adapters(table, self.lora, name) if self.lora else table


_GPT2 = "Radford et al. 2019 (GPT-2), table 2, and the released weights"
_GPT3 = "Brown et al. 2020 (GPT-3), arXiv:2005.14165, table 2.1; heads of the XL such that they divide its width"
_OPT = "Zhang et al. 2022 (OPT), arXiv:2205.01068, table 1, and the released weights"
_MPT = "mosaicml/llm-foundry, scripts/train/yamls/pretrain: a learned place for each token of the sequence, biases"
_LLAMA2 = "Touvron et al. 2023 (Llama 2), arXiv:2307.09288, section 2.2, and the released weights"
_LLAMA3 = "Llama team 2024, arXiv:2407.21783, table 3, and the released weights"
_LLAMA32 = "Meta 2024, Llama 3.2, the released configurations (1B, 3B): embeddings shared with the output"
_NEMO = "NVIDIA, NeMo-Framework-Launcher, conf/training/gpt3/5b.yaml and 20b.yaml"
_NEMOTRON3 = "NVIDIA 2023, Nemotron-3 8B and 22B, the released configurations"
_NEMOTRON4 = "Parmar et al. 2024 (Nemotron-4 15B), arXiv:2402.16819, table 1; NVIDIA 2024 (340B), arXiv:2406.11704, table 1"
_QWEN = "Qwen team 2024 (Qwen2.5), arXiv:2412.15115, table 1; 2025 (Qwen3), arXiv:2505.09388, table 1; released configurations"
_MISTRAL = "Jiang et al. 2023 (Mistral 7B), arXiv:2310.06825, table 1"
_BERT = "Devlin et al. 2018 (BERT), arXiv:1810.04805, section 3, and the released weights"
_LORA = "MLPerf Training v4.0: adapters of rank 16 for the products of attention of Llama 2 70B"
_VASWANI = "Vaswani et al. 2017, arXiv:1706.03762, table 3 (big); MLPerf Training v0.6: normalised before, 33,708 tokens"


def _gpt(layers: int, hidden: int, heads: int, context: int) -> TransformerShape:
    return TransformerShape(layers=layers, hidden=hidden, heads=heads, vocabulary=50257, context=context)


def _opt(layers: int, hidden: int, heads: int) -> TransformerShape:
    # Two more positions than tokens: an offset in the released weights. Queries, keys and values are separate.
    return TransformerShape(
        layers=layers, hidden=hidden, heads=heads, vocabulary=50272, context=2048, offset=2, fused_qkv=False
    )


def _mpt(layers: int, hidden: int, heads: int) -> TransformerShape:
    return TransformerShape(layers=layers, hidden=hidden, heads=heads, vocabulary=50368, dropout=False)


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, tied: bool = False) -> TransformerShape:
    return replace(llama(layers, hidden, heads, 8, ffn, 151936), head_dim=128, head_norm=True, tied=tied)


def _nemotron(layers: int, hidden: int, heads: int, kv_heads: int = 0) -> TransformerShape:
    """Return a squared ReLU, at the cost of a GELU: one element-wise kernel."""
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=256000,
        bias=False,
        tied=False,
        positions="rotary",
        dropout=False,
    )


def _bert(layers: int, hidden: int, heads: int, head: Literal["dense", "masked", "span"]) -> TransformerShape:
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=30522,
        context=512,
        segments=2,
        causal=False,
        post_norm=True,
        fused_qkv=False,
        head=head,
    )


_LLAMA_70B = llama(80, 8192, 64, 8, 28672, 32000)
SHAPES: Mapping[str, Named] = {
    "gpt2": Named(_gpt(12, 768, 12, 1024), 1024, _GPT2),
    "gpt2-medium": Named(_gpt(24, 1024, 16, 1024), 1024, _GPT2),
    "gpt2-large": Named(_gpt(36, 1280, 20, 1024), 1024, _GPT2),
    "gpt2-xl": Named(_gpt(48, 1600, 25, 1024), 1024, _GPT2),
    "gpt3-125m": Named(_gpt(12, 768, 12, 2048), 2048, _GPT3),
    "gpt3-350m": Named(_gpt(24, 1024, 16, 2048), 2048, _GPT3),
    "gpt3-760m": Named(_gpt(24, 1536, 16, 2048), 2048, _GPT3),
    "gpt3-1.3b": Named(_gpt(24, 2048, 16, 2048), 2048, _GPT3),
    "gpt3-2.7b": Named(_gpt(32, 2560, 32, 2048), 2048, _GPT3),
    "gpt3-6.7b": Named(_gpt(32, 4096, 32, 2048), 2048, _GPT3),
    "gpt3-13b": Named(_gpt(40, 5120, 40, 2048), 2048, _GPT3),
    "gpt3-5b": Named(_gpt(24, 4096, 32, 2048), 2048, _NEMO),
    "gpt3-20b": Named(_gpt(44, 6144, 48, 2048), 2048, _NEMO),
    "gpt3-175b": Named(_gpt(96, 12288, 96, 2048), 2048, _GPT3),
    "opt-125m": Named(_opt(12, 768, 12), 2048, _OPT),
    "opt-1.3b": Named(_opt(24, 2048, 32), 2048, _OPT),
    "opt-13b": Named(_opt(40, 5120, 40), 2048, _OPT),
    "mpt-125m": Named(_mpt(12, 768, 12), 2048, _MPT),
    "mpt-350m": Named(_mpt(24, 1024, 16), 2048, _MPT),
    "mpt-760m": Named(_mpt(24, 1536, 12), 2048, _MPT),
    "mpt-1b": Named(_mpt(24, 2048, 16), 2048, _MPT),
    "mpt-3b": Named(_mpt(32, 2560, 20), 2048, _MPT),
    "mpt-7b": Named(_mpt(32, 4096, 32), 2048, _MPT),
    "mpt-13b": Named(_mpt(40, 5120, 40), 2048, _MPT),
    "mpt-30b": Named(_mpt(48, 7168, 56), 2048, _MPT),
    "mpt-70b": Named(_mpt(80, 8192, 64), 2048, _MPT),
    "llama-2-7b": Named(llama(32, 4096, 32, 32, 11008, 32000), 4096, _LLAMA2),
    "llama-2-13b": Named(llama(40, 5120, 40, 40, 13824, 32000), 4096, _LLAMA2),
    "llama-2-70b": Named(_LLAMA_70B, 4096, _LLAMA2),
    "llama-2-70b-lora": Named(replace(_LLAMA_70B, fused_qkv=True), 8192, _LORA, lora=LoRA(16)),
    "llama-3-8b": Named(llama(32, 4096, 32, 8, 14336, 128256), 8192, _LLAMA3),
    "llama-3-70b": Named(llama(80, 8192, 64, 8, 28672, 128256), 8192, _LLAMA3),
    "llama-3-405b": Named(llama(126, 16384, 128, 8, 53248, 128256), 8192, _LLAMA3),
    "llama-3.2-1b": Named(replace(llama(16, 2048, 32, 8, 8192, 128256), tied=True), 8192, _LLAMA32),
    "llama-3.2-3b": Named(replace(llama(28, 3072, 24, 8, 8192, 128256), tied=True), 8192, _LLAMA32),
    "nemotron-3-8b": Named(_nemotron(32, 4096, 32), 4096, _NEMOTRON3),
    "nemotron-3-22b": Named(_nemotron(40, 6144, 48), 4096, _NEMOTRON3),
    "nemotron-4-15b": Named(_nemotron(32, 6144, 48, 8), 4096, _NEMOTRON4),
    "nemotron-4-340b": Named(_nemotron(96, 18432, 96, 8), 4096, _NEMOTRON4),
    "qwen-2.5-7b": Named(llama(28, 3584, 28, 4, 18944, 152064), 4096, _QWEN),
    "qwen-2.5-14b": Named(llama(48, 5120, 40, 8, 13824, 152064), 4096, _QWEN),
    "qwen-2.5-32b": Named(llama(64, 5120, 40, 8, 27648, 152064), 4096, _QWEN),
    "qwen-2.5-72b": Named(llama(80, 8192, 64, 8, 29568, 152064), 4096, _QWEN),
    "qwen-3-0.6b": Named(_qwen3(28, 1024, 16, 3072, tied=True), 4096, _QWEN),
    "qwen-3-1.7b": Named(_qwen3(28, 2048, 16, 6144, tied=True), 4096, _QWEN),
    "qwen-3-4b": Named(_qwen3(36, 2560, 32, 9728, tied=True), 4096, _QWEN),
    "qwen-3-8b": Named(_qwen3(36, 4096, 32, 12288), 4096, _QWEN),
    "qwen-3-14b": Named(_qwen3(40, 5120, 40, 17408), 4096, _QWEN),
    "qwen-3-32b": Named(_qwen3(64, 5120, 64, 25600), 4096, _QWEN),
    "mistral-7b": Named(replace(llama(32, 4096, 32, 8, 14336, 32000), sliding=SlidingWindow(4096)), 8192, _MISTRAL),
    "bert-base": Named(_bert(12, 768, 12, "dense"), 128, _BERT),
    "bert-base-mlm": Named(_bert(12, 768, 12, "masked"), 128, _BERT),
    "bert-base-squad": Named(_bert(12, 768, 12, "span"), 384, _BERT),
    "bert-large": Named(_bert(24, 1024, 16, "dense"), 128, _BERT),
    "bert-large-mlm": Named(_bert(24, 1024, 16, "masked"), 128, _BERT),
    "bert-large-squad": Named(_bert(24, 1024, 16, "span"), 384, _BERT),
    "transformer": Named(
        TransformerShape(layers=6, hidden=1024, heads=16, vocabulary=33708, fused_qkv=False, positions="fixed"),
        27,
        _VASWANI,
        pairs=True,
    ),
    **{name: Named(*entry) for name, entry in {**OPEN_SHAPES, **EXPERT_SHAPES, **HYBRID_SHAPES}.items()},
}
