"""Published hybrids and state-space networks by name: dimensions, sequence length, and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from paceline.workload.builders.delta_rule import GatedDelta
from paceline.workload.builders.experts import Experts
from paceline.workload.builders.hybrid import ExtraTokens, Hybrid, Mixer
from paceline.workload.builders.rwkv import Rwkv
from paceline.workload.builders.state_space import Mamba, Mamba2
from paceline.workload.builders.transformer import TransformerShape, llama

_NEMOTRON_H = "NVIDIA 2025 (Nemotron-H), arXiv:2504.03624, table 1, and the released configurations"
_NANO2 = "NVIDIA 2025 (Nemotron Nano 2), arXiv:2508.14444, and the released configurations"
_NEMOTRON3 = "NVIDIA 2025 (Nemotron 3), arXiv:2512.20848 (Nano), and the released configurations"
_QWEN_NEXT = "Qwen team 2025, Qwen3-Next, the released configuration"
_FALCON_H1 = "TII 2025 (Falcon-H1), arXiv:2507.22448, table 2, and the released configurations"
_JAMBA = "Lieber et al. 2024 (Jamba), arXiv:2403.19887, section 3.1, and the released configuration"
_BAMBA = "IBM, Princeton, CMU and UIUC 2024, Bamba-9B, the released configuration"
_GRANITE = "IBM 2025, Granite 4.0, the released configurations"
_MAMBA = "Gu and Dao 2023 (Mamba), arXiv:2312.00752, appendix E.2.1, and the released configurations"
_MAMBA2 = "Dao and Gu 2024 (Mamba-2), arXiv:2405.21060, section 9.2, and the released configurations"
_RWKV = "Peng et al. 2023 (RWKV), arXiv:2305.13048, table 2, and the released weights"


def words(letters: str) -> tuple[str, ...]:
    """Return blocks of one letter each."""
    return tuple(letters)


def _hybrid(
    pattern: tuple[str, ...], mixer: Mixer, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int
) -> TransformerShape:
    shape = llama(len(pattern), hidden, heads, kv_heads, ffn, vocabulary)
    return replace(shape, hybrid=Hybrid(mixer=mixer, pattern=pattern))


def _nemotron_h(letters: str, hidden: int, heads: int, ffn: int, mixer: Mamba2, kv_heads: int = 8) -> TransformerShape:
    shape = _hybrid(words(letters), mixer, hidden, heads, kv_heads, ffn, 131072)
    return replace(shape, head_dim=128, gated=False, positions="none")


def _nemotron3(letters: str, hidden: int, heads: int, mamba_heads: int, experts: Experts) -> TransformerShape:
    mixer = Mamba2(heads=mamba_heads, head_dim=64, state=128, groups=8, chunk=128)
    return replace(_nemotron_h(letters, hidden, heads, experts.ffn, mixer, kv_heads=2), experts=experts)


def _falcon(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, mixer: Mamba2, vocabulary: int
) -> TransformerShape:
    return replace(_hybrid(("M*-",) * layers, mixer, hidden, heads, kv_heads, ffn, vocabulary), head_dim=head_dim)


def _granite(letters: str, hidden: int, heads: int, kv_heads: int, mamba_heads: int, experts: Experts) -> TransformerShape:
    mixer = Mamba2(heads=mamba_heads, head_dim=64, state=128)
    pattern = tuple(f"{letter}E" for letter in letters)
    shape = _hybrid(pattern, mixer, hidden, heads, kv_heads, experts.ffn, 100352)
    return replace(shape, experts=experts, positions="none", tied=True)


def _mamba(layers: int, hidden: int, mixer: Mixer) -> TransformerShape:
    return replace(_hybrid(("M",) * layers, mixer, hidden, 1, 1, 0, 50280), tied=True)


def _mamba1(layers: int, hidden: int) -> TransformerShape:
    return _mamba(layers, hidden, Mamba(inner=2 * hidden, state=16, rank=-(-hidden // 16)))


def _mamba2(layers: int, hidden: int) -> TransformerShape:
    return replace(_mamba(layers, hidden, Mamba2(heads=hidden // 32, head_dim=64, state=128)), vocabulary=50288)


def _rwkv(layers: int, hidden: int) -> TransformerShape:
    shape = _hybrid(("M-",) * layers, Rwkv(inner=hidden), hidden, 1, 1, 4 * hidden, 50277)
    return replace(shape, norm="layer", embedding_norm=True)


_SMALL = Mamba2(heads=128, head_dim=64, state=128, groups=8, chunk=128)
_LARGE = Mamba2(heads=256, head_dim=64, state=256, groups=8, chunk=128)
_NANO = replace(_SMALL, head_dim=80)
_JAMBA_BLOCKS = tuple(("*" if i % 8 == 4 else "M") + ("E" if i % 2 else "-") for i in range(32))
_GRANITE_BLOCKS = "MMMMM*MMMMMMMMM*MMMMMMMMM*MMMMMMMMM*MMMM"
_NANO3 = _nemotron3(
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 2688, 32, 64, Experts(count=128, active=6, ffn=1856, shared=3712)
)
_DELTA = GatedDelta(key_heads=16, key_dim=128, value_heads=32, value_dim=128)

HYBRID_SHAPES: Mapping[str, tuple[TransformerShape, int, str]] = MappingProxyType(
    {
        "nemotron-h-8b": (
            _nemotron_h("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 4096, 32, 21504, _SMALL),
            8192,
            _NEMOTRON_H,
        ),
        "nemotron-h-47b": (
            _nemotron_h(
                "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-",
                8192,
                64,
                30720,
                _LARGE,
            ),
            8192,
            _NEMOTRON_H,
        ),
        "nemotron-h-56b": (
            _nemotron_h("M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-", 8192, 64, 32768, _LARGE),
            8192,
            _NEMOTRON_H,
        ),
        "nemotron-nano-9b-v2": (
            _nemotron_h("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", 4480, 40, 15680, _NANO),
            8192,
            _NANO2,
        ),
        "nemotron-nano-12b-v2": (_nemotron_h("M-M-M-M*-" * 6 + "M-M-M-M-", 5120, 40, 20480, _NANO), 8192, _NANO2),
        "nemotron-3-nano-30b-a3b": (_NANO3, 8192, _NEMOTRON3),
        "nemotron-3.5-lightning-30b-a3b": (
            replace(_NANO3, extra_tokens=ExtraTokens(2, ("*", "E"), repeated=True)),
            8192,
            _NEMOTRON3,
        ),
        "nemotron-3-super-120b-a12b": (
            replace(
                _nemotron3(
                    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
                    4096,
                    32,
                    128,
                    Experts(count=512, active=22, ffn=2688, shared=5376, latent=1024),
                ),
                extra_tokens=ExtraTokens(2, ("*", "E"), repeated=True),
            ),
            8192,
            _NEMOTRON3,
        ),
        "nemotron-3-ultra-550b-a55b": (
            replace(
                _nemotron3("MEMEMEM*E" * 12, 8192, 64, 256, Experts(count=512, active=22, ffn=5120, shared=10240, latent=2048)),
                extra_tokens=ExtraTokens(2, ("*", "E"), repeated=True),
            ),
            8192,
            f"{_NEMOTRON3}; attention at equal distances",
        ),
        "qwen-3-next-80b-a3b": (
            replace(
                _hybrid(("ME", "ME", "ME", "*E") * 12, _DELTA, 2048, 16, 2, 5120, 151936),
                head_dim=256,
                head_norm=True,
                output_gate=True,
                experts=Experts(count=512, active=10, ffn=512, shared=512, scaled=True),
            ),
            4096,
            _QWEN_NEXT,
        ),
        "falcon-h1-0.5b": (
            replace(
                _falcon(36, 1024, 8, 2, 64, 2048, Mamba2(heads=24, head_dim=64, state=128, gated_norm=False), 32784), tied=False
            ),
            4096,
            _FALCON_H1,
        ),
        "falcon-h1-7b": (
            _falcon(44, 3072, 12, 2, 128, 12288, Mamba2(heads=24, head_dim=128, state=256, gated_norm=False), 130049),
            4096,
            _FALCON_H1,
        ),
        "falcon-h1-34b": (
            _falcon(72, 5120, 20, 4, 128, 21504, Mamba2(heads=32, head_dim=128, state=256, groups=2, gated_norm=False), 261120),
            4096,
            _FALCON_H1,
        ),
        "jamba-52b-a12b": (
            replace(
                _hybrid(_JAMBA_BLOCKS, Mamba(inner=8192, state=16, rank=256, normalised=True), 4096, 32, 8, 14336, 65536),
                experts=Experts(count=16, active=2, ffn=14336),
                positions="none",
            ),
            4096,
            _JAMBA,
        ),
        "bamba-9b": (
            _hybrid(
                tuple("*-" if i in (9, 18, 27) else "M-" for i in range(32)),
                Mamba2(heads=128, head_dim=64, state=128),
                4096,
                32,
                8,
                14336,
                128256,
            ),
            4096,
            _BAMBA,
        ),
        "granite-4.0-h-tiny": (
            _granite(_GRANITE_BLOCKS, 1536, 12, 4, 48, Experts(count=64, active=6, ffn=512, shared=1024)),
            4096,
            _GRANITE,
        ),
        "granite-4.0-h-small": (
            _granite(_GRANITE_BLOCKS, 4096, 32, 8, 128, Experts(count=72, active=10, ffn=768, shared=1536)),
            4096,
            _GRANITE,
        ),
        "mamba-130m": (_mamba1(24, 768), 2048, _MAMBA),
        "mamba-1.4b": (_mamba1(48, 2048), 2048, _MAMBA),
        "mamba-2.8b": (_mamba1(64, 2560), 2048, _MAMBA),
        "mamba2-130m": (_mamba2(24, 768), 2048, _MAMBA2),
        "mamba2-1.3b": (_mamba2(48, 2048), 2048, _MAMBA2),
        "mamba2-2.7b": (_mamba2(64, 2560), 2048, _MAMBA2),
        "rwkv-4-3b": (_rwkv(32, 2560), 1024, _RWKV),
        "rwkv-4-14b": (_rwkv(40, 5120), 1024, _RWKV),
    }
)
"""Shape, tokens of a sequence and source of each."""
