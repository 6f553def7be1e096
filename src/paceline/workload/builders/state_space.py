"""Layers of state-space blocks: Mamba-2 as chunks of matrix products, and Mamba as one scan of the memory.

Gu and Dao 2023, Mamba, arXiv:2312.00752, sections 3.3 and 3.4; Dao and Gu 2024, Transformers are SSMs, arXiv:2405.21060,
sections 6 (the chunked algorithm) and 7 (the block). Kernels are those of ``mamba_ssm`` (``ops/triton/ssd_combined.py``,
``ops/selective_scan_interface.py``). Bytes are those of fp32 tensors. States are in fp32 at any precision, so they count twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.errors import UserError
from paceline.workload.builders.layer_builders import (
    WORD,
    LayerSpec,
    elementwise,
    linear,
    memory,
    normalisation,
    product,
)
from paceline.workload.layers import Operation

WIDE = 2 * WORD
"""Bytes of a number that is in fp32 at any precision, in a table of fp32 that 16 bits halve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Dimensions of a Mamba-2 block (state space duality).

    Attributes:
        heads, head_dim: heads and their width; together the inner width.
        state: numbers of a head's state for each number of its width.
        groups: groups of heads that share the projections of the state.
        conv: positions of the causal convolution. ``conv_bias``: True if it has a bias.
        chunk: tokens of a chunk, whose products are dense.
        bias: True if the products into and out of the block have a bias.
        gated_norm: True if the gated result is normalised.

    Raises:
        UserError: a dimension below 1; groups that do not divide the heads.
    """

    heads: int
    head_dim: int
    state: int
    groups: int = 1
    conv: int = 4
    conv_bias: bool = True
    chunk: int = 256
    bias: bool = False
    gated_norm: bool = True

    def __post_init__(self) -> None:
        check_dimensions(
            "Mamba-2 block", self.heads, self.head_dim, self.state, self.groups, self.conv, self.chunk, groups=self.groups
        )

    @property
    def inner(self) -> int:
        """Inner width."""
        return self.heads * self.head_dim

    def layers(self, s: float, hidden: int) -> list[LayerSpec]:
        """Return the layers over ``s`` tokens, after the norm of their input."""
        d, shared = self.inner, 2 * self.groups * self.state
        mixed = d + shared
        parts = [
            linear("in", s, hidden, d + mixed + self.heads, bias=self.bias),
            causal_convolution("conv", s, mixed, self.conv, bias=self.conv_bias),
            self.scan(s),
        ]
        if self.gated_norm:
            parts.append(gated_norm("norm", s, d, d))
        return [*parts, linear("out", s, d, hidden, bias=self.bias)]

    def scan(self, s: float) -> LayerSpec:
        """Return the chunked scan. Causal products compute half of a chunk's scores."""
        q, p, n = min(float(self.chunk), s), float(self.head_dim), float(self.state)
        chunks = s / q
        heads, groups = chunks * self.heads, chunks * self.groups
        x, shared = WORD * s * self.inner, WORD * s * 2 * self.groups * n
        steps, states, scores = WIDE * s * self.heads, WIDE * heads * p * n, WIDE * groups * q * q

        def kernels(backward: bool, on_scores: int, inside: float, on_states: int, moved: float) -> list[Operation]:
            within = product(q, p, q, heads, moved / 3, backward, kind="scan")
            of_groups = product(q, q, n, groups, shared + scores, backward, kind="scan")
            of_states = product(q, p, n, heads, 2 * moved / 3, backward, kind="scan")
            return [
                replace(of_groups, flops=on_scores * of_groups.flops),
                replace(within, flops=inside * within.flops),
                replace(of_states, flops=on_states * of_states.flops),
            ]

        # Sums of the steps and the passing of states are kernels without products. The states of chunks, the scan and the
        # scores have products. The backward pass computes states and scores again (``_mamba_chunk_scan_combined_bwd``).
        forward = kernels(False, 1, 0.5, 2, 4 * x + shared + 2 * states + scores + 2 * steps)
        back = kernels(True, 3, 1.5, 5, 9 * x + 4 * shared + 4 * states + 3 * scores + 4 * steps)
        operations = (
            *forward,
            memory(False, 2, 2 * steps + 2 * states),
            *back,
            memory(True, 6, 4 * steps + 5 * states),
        )
        weights = (("D", (self.heads,)), ("A_log", (self.heads,)), ("dt_bias", (self.heads,)))
        held = 2 * x + shared + WORD * s * self.heads  # what enters the block's kernels, and their result
        return LayerSpec("scan", "Scan", operations, held, weights, held / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Dimensions of a Mamba block, whose scan is one kernel bound by memory.

    Attributes:
        inner: inner width. ``state``: numbers of the state for each.
        rank: width of the vector for the steps.
        conv: positions of the causal convolution. ``conv_bias``: True if it has a bias.
        bias: True if the products into and out of the block have a bias.
        normalised: True if steps and projections of the state are normalised (Jamba).

    Raises:
        UserError: a dimension below 1.
    """

    inner: int
    state: int
    rank: int
    conv: int = 4
    conv_bias: bool = True
    bias: bool = False
    normalised: bool = False

    def __post_init__(self) -> None:
        check_dimensions("Mamba block", self.inner, self.state, self.rank, self.conv)

    def layers(self, s: float, hidden: int) -> list[LayerSpec]:
        """Return the layers over ``s`` tokens, after the norm of their input."""
        d, n, rank = self.inner, self.state, self.rank
        x, states = WORD * s * d, WORD * s * 2 * n
        scan = LayerSpec(
            "scan",
            "Scan",
            # steps, input, gate and the projections are read, the result is written; the backward pass scans again
            (memory(False, 1, 4 * x + states), memory(True, 1, 9 * x + 3 * states)),
            3 * x + states,
            (("D", (d,)), ("A_log", (d, n))),
            (3 * x + states) / 2,
        )
        norms = (("steps", rank), ("key", n), ("query", n)) if self.normalised else ()
        return [
            linear("in", s, hidden, 2 * d, bias=self.bias),
            causal_convolution("conv", s, d, self.conv, bias=self.conv_bias),
            linear("project_state", s, d, rank + 2 * n, bias=False),
            *(normalisation(f"{name}_norm", s, width, rms=True) for name, width in norms),
            linear("project_steps", s, rank, d, kept=False, kept_half=True),
            scan,
            linear("out", s, d, hidden, bias=self.bias),
        ]


def causal_convolution(name: str, s: float, channels: int, width: int, *, bias: bool) -> LayerSpec:
    """Return a depthwise convolution with its activation, as one kernel of the memory (``causal_conv1d``)."""
    x = WORD * s * channels
    weights = (("bias", (channels,)),) if bias else ()
    own = elementwise(name, "Conv1d", (1, 2 * x), (1, 4 * x), x)
    return replace(own, weights=(*weights, ("weight", (channels, 1, width))))


def gated_norm(name: str, s: float, width: int, weights: int) -> LayerSpec:
    """Return the norm of a result times the activation of its gate, as one kernel."""
    x = WORD * s * width
    own = elementwise(name, "GatedRMSNorm", (1, 3 * x), (1, 5 * x), 2 * x)
    return replace(own, weights=(("weight", (weights,)),))


def check_dimensions(what: str, heads: int, *others: int, groups: int = 1) -> None:
    """Raise UserError for a dimension below 1, or heads that groups do not divide."""
    if min((heads, *others)) < 1:
        raise UserError(f"no {what} has dimensions {', '.join(map(str, (heads, *others)))}", "each is at least 1")
    if heads % groups:
        raise UserError(f"the {heads} heads of a {what} do not divide into {groups} groups", "give a divisor of the heads")
