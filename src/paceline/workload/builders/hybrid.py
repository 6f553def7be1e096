"""Blocks of a network that are not all attention and a feed-forward network: hybrids with linear layers, and single parts.

A block is a word of Nemotron-H's letters (NVIDIA 2025, arXiv:2504.03624, section 2.1): ``M`` a linear mixer, ``*`` attention,
``-`` a feed-forward network, ``E`` experts. ``ME`` is a mixer, then experts. ``M*-`` has mixer and attention in parallel
(Falcon-H1, arXiv:2507.22448, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.workload.builders.delta_rule import GatedDelta
from paceline.workload.builders.rwkv import Rwkv
from paceline.workload.builders.state_space import Mamba, Mamba2

Mixer = Mamba | Mamba2 | GatedDelta | Rwkv
MIXER, ATTENTION, DENSE, EXPERTS = "M*-E"
WORDS = frozenset({"M", "*", "-", "E", "M-", "*-", "ME", "*E", "M*", "M*-", "M*E"})
"""Legal blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """Blocks of a network, by their parts.

    Attributes:
        mixer: the linear mixer of the blocks with ``M``.
        pattern: the blocks in their order; a network of more blocks repeats it.

    Raises:
        UserError: no block, or a block that is none of ``WORDS``.
    """

    mixer: Mixer
    pattern: tuple[str, ...]

    def __post_init__(self) -> None:
        wrong = sorted(set(self.pattern) - WORDS)
        if wrong or not self.pattern:
            raise UserError(
                f"no block is {wrong[0]!r}" if wrong else "a hybrid without a block",
                f"M is a mixer, * attention, - a feed-forward network, E experts: one of {', '.join(sorted(WORDS))}",
            )

    def of_block(self, number: int) -> str:
        """Return the parts of a block, counted from 0."""
        return self.pattern[number % len(self.pattern)]


@dataclass(frozen=True, slots=True)
class ExtraTokens:
    """Modules that predict further tokens during training (DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 2.2).

    Each joins its input with the embedding of the next token by a product, and has blocks and a loss. Embedding and logits
    share the network's weights.

    Attributes:
        count: number of further tokens.
        blocks: blocks of a module.
        repeated: True if all modules have the same weights (``mtp_use_repeated_layer`` of Megatron-Core).

    Raises:
        UserError: fewer than one token or block.
    """

    count: int = 1
    blocks: Sequence[str] = ("*E",)
    repeated: bool = False

    def __post_init__(self) -> None:
        if self.count < 1 or not self.blocks or set(self.blocks) - WORDS:
            raise UserError(f"no module predicts {self.count} further tokens with blocks {self.blocks}", "give at least 1")
