"""Layers of RWKV-4: mixing over time by a scan with a decay for each channel, and mixing of channels with a receptance.

Peng et al. 2023, RWKV, arXiv:2305.13048, section 3.1 and appendix B. The scan is one kernel bound by memory, in fp32 at any
precision (``wkv_cuda.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.workload.builders.layer_builders import WORD, LayerSpec, elementwise, linear, memory
from paceline.workload.builders.state_space import WIDE, check_dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv:
    """Dimensions of RWKV's mixing over time.

    Attributes:
        inner: width of keys, values and receptance.

    Raises:
        UserError: a width below 1.
    """

    inner: int

    def __post_init__(self) -> None:
        check_dimensions("RWKV block", self.inner)

    def layers(self, s: float, hidden: int) -> list[LayerSpec]:
        """Return the layers of the mixing over time over ``s`` tokens, after the norm of their input."""
        d, x, wide = self.inner, WORD * s * self.inner, WIDE * s * self.inner
        scan = LayerSpec(
            "scan",
            "Scan",
            (memory(False, 3, 2 * x + 5 * wide), memory(True, 3, 3 * x + 11 * wide)),
            x + 3 * wide,
            (("first", (d,)), ("decay", (d,))),
            (x + 3 * wide) / 2,
        )
        return [
            token_shift("shift", s, hidden, 3),
            *(linear(f"in_{name}", s, hidden, d, bias=False) for name in ("key", "value", "receptance")),
            scan,
            linear("out", s, d, hidden, bias=False),
        ]


def token_shift(name: str, s: float, hidden: int, mixtures: int) -> LayerSpec:
    """Return mixtures of each token with the one before it, each with a weight for each channel."""
    x = WORD * s * hidden
    own = elementwise(name, "TokenShift", (2 * mixtures, 4 * mixtures * x), (3 * mixtures, 5 * mixtures * x), x)
    return replace(own, weights=tuple((f"mix_{i}", (hidden,)) for i in range(mixtures)))


def channel_mixing(s: float, hidden: int, ffn: int) -> list[LayerSpec]:
    """Return the mixing of channels: a squared ReLU, and a gate of the result by the receptance."""
    x, f = WORD * s * hidden, WORD * s * ffn
    return [
        token_shift("shift", s, hidden, 2),
        linear("expand", s, hidden, ffn, bias=False),
        elementwise("act", "ReLU", (2, 4 * f), (2, 5 * f), 2 * f),
        linear("receptance", s, hidden, hidden, bias=False),
        linear("contract", s, ffn, hidden, bias=False),
        elementwise("multiply", "Mul", (2, 5 * x), (3, 8 * x), 2 * x),
    ]
