"""Published mixtures of experts by name: dimensions, sequence length, and sources.

``deepseek-v3-mtp`` has the module that predicts a further token. Vision encoders (Llama 4) are left out. Llama 4 attends to
chunks of 8,192 tokens in three of four blocks. This is its predicted length, so attention counts all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from paceline.workload.builders.attention import SlidingWindow
from paceline.workload.builders.experts import Experts
from paceline.workload.builders.hybrid import ExtraTokens
from paceline.workload.builders.latent_attention import LatentAttention
from paceline.workload.builders.transformer import TransformerShape, llama

_MIXTRAL = "Jiang et al. 2024 (Mixtral of Experts), arXiv:2401.04088, table 1; 8x22B: the released configuration"
_DEEPSEEK2 = "DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434, section 3.1.2 and appendix B, and the released configurations"
_DEEPSEEK3 = "DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437, section 4.2, and the released configuration"
_KIMI = "Kimi team 2025 (Kimi K2), arXiv:2507.20534, table 2, and the released configuration"
_QWEN3 = "Qwen team 2025 (Qwen3), arXiv:2505.09388, table 2, and the released configurations"
_LLAMA4 = "Meta 2025, Llama 4, the released configurations; text alone"
_GROK = "xAI 2024, Grok-1, the released model: run.py; rows of 32,768 inside an expert"
_GPT_OSS = "OpenAI 2025 (gpt-oss), arXiv:2508.10925, table 1, and the released configurations"


def _shape(layers: int, hidden: int, heads: int, kv_heads: int, vocabulary: int, experts: Experts) -> TransformerShape:
    return replace(llama(layers, hidden, heads, kv_heads, 0, vocabulary), experts=experts)


def _mixtral(layers: int, hidden: int, heads: int, ffn: int, vocabulary: int) -> TransformerShape:
    return _shape(layers, hidden, heads, 8, vocabulary, Experts(count=8, active=2, ffn=ffn))


def _deepseek(
    layers: int, hidden: int, heads: int, ffn: int, vocabulary: int, experts: Experts, q_rank: int = 1536
) -> TransformerShape:
    latent = LatentAttention(q_rank=q_rank, kv_rank=512, nope=128, rope=64, value=128)
    return replace(_shape(layers, hidden, heads, heads, vocabulary, experts), ffn=ffn, latent=latent)


def _qwen3(layers: int, hidden: int, heads: int, ffn: int) -> TransformerShape:
    shape = _shape(layers, hidden, heads, 4, 151936, Experts(count=128, active=8, ffn=ffn))
    return replace(shape, head_dim=128, head_norm=True)


def _llama4(count: int, every: int) -> TransformerShape:
    experts = Experts(count=count, active=1, ffn=8192, shared=8192, every=every)
    return replace(_shape(48, 5120, 40, 8, 202048, experts), ffn=16384, head_dim=128)


def _gpt_oss(layers: int, count: int) -> TransformerShape:
    shape = _shape(layers, 2880, 64, 8, 201088, Experts(count=count, active=4, ffn=2880))
    return replace(shape, head_dim=64, bias=True, sinks=True, sliding=SlidingWindow(128, full_every=2))


_DEEPSEEK_V3 = _deepseek(
    61, 7168, 128, 18432, 129280, Experts(count=256, active=8, ffn=2048, shared=2048, first=3, groups=8, limited=4)
)
EXPERT_SHAPES: Mapping[str, tuple[TransformerShape, int, str]] = MappingProxyType(
    {
        "mixtral-8x7b": (_mixtral(32, 4096, 32, 14336, 32000), 4096, _MIXTRAL),
        "mixtral-8x22b": (_mixtral(56, 6144, 48, 16384, 32768), 4096, _MIXTRAL),
        "deepseek-v2": (
            _deepseek(
                60, 5120, 128, 12288, 102400, Experts(count=160, active=6, ffn=1536, shared=3072, first=1, groups=8, limited=3)
            ),
            4096,
            _DEEPSEEK2,
        ),
        "deepseek-v2-lite": (
            _deepseek(27, 2048, 16, 10944, 102400, Experts(count=64, active=6, ffn=1408, shared=2816, first=1), q_rank=0),
            4096,
            _DEEPSEEK2,
        ),
        "deepseek-v3": (_DEEPSEEK_V3, 4096, _DEEPSEEK3),
        "deepseek-v3-mtp": (replace(_DEEPSEEK_V3, extra_tokens=ExtraTokens()), 4096, _DEEPSEEK3),
        "kimi-k2": (
            _deepseek(61, 7168, 64, 18432, 163840, Experts(count=384, active=8, ffn=2048, shared=2048, first=1)),
            4096,
            _KIMI,
        ),
        "qwen-3-30b-a3b": (_qwen3(48, 2048, 32, 768), 4096, _QWEN3),
        "qwen-3-235b-a22b": (_qwen3(94, 4096, 64, 1536), 4096, _QWEN3),
        "llama-4-scout": (_llama4(16, 1), 8192, _LLAMA4),
        "llama-4-maverick": (_llama4(128, 2), 8192, _LLAMA4),
        "grok-1": (replace(_shape(64, 6144, 48, 8, 131072, Experts(count=8, active=2, ffn=32768)), tied=True), 8192, _GROK),
        "gpt-oss-20b": (_gpt_oss(24, 32), 4096, _GPT_OSS),
        "gpt-oss-120b": (_gpt_oss(36, 128), 4096, _GPT_OSS),
    }
)
"""Shape, tokens of a sequence and source of each."""
