"""Open transformers by name, dense: dimensions, sequence length, and sources.

Dimensions are those of the released configurations. All layers attend to all tokens, also those
with local attention (every second block of GPT-Neo and Gemma 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from paceline.workload.builders.transformer import TransformerShape, llama

_RELEASED = "the released configuration (config.json on Hugging Face)"
_QWEN = f"Bai et al. 2023 (Qwen), arXiv:2309.16609, table 1, and {_RELEASED}"
_QWEN25 = f"Qwen team 2024 (Qwen2.5), arXiv:2412.15115, table 1, and {_RELEASED}"
_LLAMA = f"Touvron et al. 2023 (LLaMA), arXiv:2302.13971, table 2; Llama 2: arXiv:2307.09288, and {_RELEASED}"
_INTERNLM = f"InternLM team 2023, InternLM, {_RELEASED}"
_BLOOM = f"BigScience 2022 (BLOOM), arXiv:2211.05100, table 3, and {_RELEASED}"
_FALCON = f"Almazrouei et al. 2023 (Falcon), arXiv:2311.16867, section 4, and {_RELEASED}"
_NEOX = f"Black et al. 2022 (GPT-NeoX-20B), arXiv:2204.06745; GPT-J and GPT-Neo: EleutherAI, {_RELEASED}"
_STABLE = f"Stability AI 2023, StableLM alpha, {_RELEASED}"
_PHI = f"Li et al. 2023 (phi-1.5), arXiv:2309.05463, section 2, and {_RELEASED}; phi-2, Phi-3, phi-4: Microsoft, released"
_YI = f"01.AI 2024 (Yi), arXiv:2403.04652, table 1, and {_RELEASED}"
_BAICHUAN = f"Yang et al. 2023 (Baichuan 2), arXiv:2309.10305, table 2, and {_RELEASED}"
_GEMMA = f"Gemma team 2024, arXiv:2403.08295, table 1; Gemma 2: arXiv:2408.00118, table 1; and {_RELEASED}"
_GLM = f"GLM team 2024 (ChatGLM), arXiv:2406.12793, and {_RELEASED}"
_OLMO = f"OLMo team 2024 and 2025, arXiv:2402.00838 and arXiv:2501.00656, table 1, and {_RELEASED}"
_MISTRAL = f"Mistral AI 2024 (Nemo 12B, Small 24B, Large 123B), {_RELEASED}"
_OPT = f"Zhang et al. 2022 (OPT), arXiv:2205.01068, table 1, and {_RELEASED}"
_ROBERTA = f"Liu et al. 2019 (RoBERTa), arXiv:1907.11692, section 3, and {_RELEASED}"
_DISTIL = f"Sanh et al. 2019 (DistilBERT), arXiv:1910.01108, section 3, fine-tuned; {_RELEASED}"
_SHORT = 2048


def _qwen(layers: int, hidden: int, heads: int, ffn: int, vocabulary: int) -> TransformerShape:
    return replace(llama(layers, hidden, heads, heads, ffn, vocabulary), qkv_bias=True, fused_qkv=True)


def _qwen25(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> TransformerShape:
    return replace(llama(layers, hidden, heads, kv_heads, ffn, 151936), qkv_bias=True, tied=True)


def _bloom(layers: int, hidden: int, heads: int) -> TransformerShape:
    return TransformerShape(
        layers=layers, hidden=hidden, heads=heads, vocabulary=250880, positions="alibi", embedding_norm=True, dropout=False
    )


def _neox(layers: int, hidden: int, heads: int, vocabulary: int, parallel: int = 2) -> TransformerShape:
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        parallel=parallel,
        positions="rotary",
        tied=False,
        dropout=False,
    )


def _neo(layers: int, hidden: int, heads: int) -> TransformerShape:
    return TransformerShape(
        layers=layers, hidden=hidden, heads=heads, vocabulary=50257, context=2048, qkv_bias=False, fused_qkv=False
    )


def _falcon(layers: int, hidden: int, heads: int, kv_heads: int, parallel: int) -> TransformerShape:
    shape = _neox(layers, hidden, heads, 65024, parallel)
    return replace(shape, kv_heads=kv_heads, bias=False, tied=True)


def _gemma(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int) -> TransformerShape:
    return replace(llama(layers, hidden, heads, kv_heads, ffn, 256000), head_dim=head_dim, tied=True)


def _roberta(layers: int, hidden: int, heads: int, head: str) -> TransformerShape:
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=50265,
        context=512,
        offset=2,
        causal=False,
        post_norm=True,
        fused_qkv=False,
        head="span" if head == "span" else "dense",
    )


_OPT_350M = TransformerShape(
    layers=24, hidden=1024, heads=16, vocabulary=50272, context=2048, offset=2, fused_qkv=False, post_norm=True,
    embedding_width=512, attention_dropout=False,
)  # fmt: skip
OPEN_SHAPES: Mapping[str, tuple[TransformerShape, int, str]] = MappingProxyType(
    {
        "opt-350m": (_OPT_350M, _SHORT, _OPT),
        "llama-30b": (llama(60, 6656, 52, 52, 17920, 32000), _SHORT, _LLAMA),
        "llama-65b": (llama(80, 8192, 64, 64, 22016, 32000), _SHORT, _LLAMA),
        "llama-2-34b": (llama(48, 8192, 64, 8, 22016, 32000), 4096, _LLAMA),
        "qwen-1.8b": (_qwen(24, 2048, 16, 5504, 151936), _SHORT, _QWEN),
        "qwen-7b": (_qwen(32, 4096, 32, 11008, 151936), _SHORT, _QWEN),
        "qwen-14b": (_qwen(40, 5120, 40, 13696, 152064), _SHORT, _QWEN),
        "qwen-72b": (_qwen(80, 8192, 64, 24576, 152064), _SHORT, _QWEN),
        "qwen-2.5-0.5b": (_qwen25(24, 896, 14, 2, 4864), 4096, _QWEN25),
        "qwen-2.5-1.5b": (_qwen25(28, 1536, 12, 2, 8960), 4096, _QWEN25),
        "qwen-2.5-3b": (_qwen25(36, 2048, 16, 2, 11008), 4096, _QWEN25),
        "internlm-7b": (replace(llama(32, 4096, 32, 32, 11008, 103168), qkv_bias=True, output_bias=True), _SHORT, _INTERNLM),
        "internlm-20b": (llama(60, 5120, 40, 40, 13824, 103168), _SHORT, _INTERNLM),
        "bloom-560m": (_bloom(24, 1024, 16), _SHORT, _BLOOM),
        "bloom-1b7": (_bloom(24, 2048, 16), _SHORT, _BLOOM),
        "bloom-3b": (_bloom(30, 2560, 32), _SHORT, _BLOOM),
        "bloom-7b1": (_bloom(30, 4096, 32), _SHORT, _BLOOM),
        "bloom-176b": (_bloom(70, 14336, 112), _SHORT, _BLOOM),
        "falcon-7b": (_falcon(32, 4544, 71, 1, 1), _SHORT, _FALCON),
        "falcon-40b": (_falcon(60, 8192, 128, 8, 2), _SHORT, _FALCON),
        "gpt-neox-20b": (_neox(44, 6144, 64, 50432), _SHORT, _NEOX),
        "gpt-j-6b": (_neox(28, 4096, 16, 50400, 1), _SHORT, _NEOX),
        "gpt-neo-125m": (_neo(12, 768, 12), _SHORT, _NEOX),
        "gpt-neo-1.3b": (_neo(24, 2048, 16), _SHORT, _NEOX),
        "gpt-neo-2.7b": (_neo(32, 2560, 20), _SHORT, _NEOX),
        "stablelm-alpha-3b": (_neox(16, 4096, 32, 50688), 4096, _STABLE),
        "stablelm-alpha-7b": (_neox(16, 6144, 48, 50432), 4096, _STABLE),
        "phi-1.5": (_neox(24, 2048, 32, 51200, 1), _SHORT, _PHI),
        "phi-2": (_neox(32, 2560, 32, 51200, 1), _SHORT, _PHI),
        "phi-3-mini": (llama(32, 3072, 32, 32, 8192, 32064), 4096, _PHI),
        "phi-3-medium": (llama(40, 5120, 40, 10, 17920, 32064), 4096, _PHI),
        "phi-4": (llama(40, 5120, 40, 10, 17920, 100352), 4096, _PHI),
        "yi-6b": (llama(32, 4096, 32, 4, 11008, 64000), 4096, _YI),
        "yi-34b": (llama(60, 7168, 56, 8, 20480, 64000), 4096, _YI),
        "baichuan2-7b": (replace(llama(32, 4096, 32, 32, 11008, 125696), fused_qkv=True), 4096, _BAICHUAN),
        "baichuan2-13b": (replace(llama(40, 5120, 40, 40, 13696, 125696), fused_qkv=True, positions="alibi"), 4096, _BAICHUAN),
        "gemma-2b": (_gemma(18, 2048, 8, 1, 256, 16384), 4096, _GEMMA),
        "gemma-7b": (_gemma(28, 3072, 16, 16, 256, 24576), 4096, _GEMMA),
        "gemma-2-9b": (replace(_gemma(42, 3584, 16, 8, 256, 14336), output_norm=True), 4096, _GEMMA),
        "gemma-2-27b": (replace(_gemma(46, 4608, 32, 16, 128, 36864), output_norm=True), 4096, _GEMMA),
        "chatglm3-6b": (replace(llama(28, 4096, 32, 2, 13696, 65024), qkv_bias=True, fused_qkv=True), _SHORT, _GLM),
        "glm-4-9b": (replace(llama(40, 4096, 32, 2, 13696, 151552), qkv_bias=True, fused_qkv=True), 4096, _GLM),
        "olmo-2-7b": (
            replace(llama(32, 4096, 32, 32, 11008, 100352), head_norm="whole", input_norm=False, output_norm=True),
            4096,
            _OLMO,
        ),
        "olmo-2-13b": (
            replace(llama(40, 5120, 40, 40, 13824, 100352), head_norm="whole", input_norm=False, output_norm=True),
            4096,
            _OLMO,
        ),
        "mistral-nemo-12b": (replace(llama(40, 5120, 32, 8, 14336, 131072), head_dim=128), 8192, _MISTRAL),
        "mistral-small-24b": (replace(llama(40, 5120, 32, 8, 32768, 131072), head_dim=128), 8192, _MISTRAL),
        "mistral-large-123b": (llama(88, 12288, 96, 8, 28672, 32768), 8192, _MISTRAL),
        "distilbert-base": (replace(_roberta(6, 768, 12, "span"), vocabulary=30522, offset=0), 512, _DISTIL),
        "roberta-base": (_roberta(12, 768, 12, "dense"), 512, _ROBERTA),
        "roberta-large": (_roberta(24, 1024, 16, "dense"), 512, _ROBERTA),
        "roberta-base-squad": (_roberta(12, 768, 12, "span"), 384, _ROBERTA),
        "roberta-large-squad": (_roberta(24, 1024, 16, "span"), 384, _ROBERTA),
    }
)
"""Shape, tokens of a sequence and source of each."""
