"""Layers of a mixture of experts: a router sends each token to a few of many feed-forward networks.

The products of all experts are one grouped operation of as many products as there are experts, of equally many tokens each: a
router is trained, or told, to balance them (Fedus et al. 2021, Switch Transformers, arXiv:2101.03961, section 2.2). The
scores of the router weigh the activations before the last product, as Megatron-Core does, so that no copy of a token is kept
for the sum over experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.errors import UserError
from paceline.workload.builders.layer_builders import INDEX, WORD, LayerSpec, elementwise, grouped, linear, memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Dimensions of the experts of a transformer's blocks.

    Attributes:
        count: experts of a block. ``active``: experts per token.
        ffn: inner width of an expert.
        shared: total inner width of the experts of all tokens; 0: none. ``scaled``: True if a product of each token with one
            row scales their output (Qwen2-MoE).
        latent: width of a vector that experts read and write instead of the token (Nemotron 3, LatentMoE); 0: the token.
        groups, limited: groups of experts, and most of them that one token goes to (DeepSeek-AI 2024, arXiv:2412.19437, section
            2.1.2: a group is a node's, so that a token goes to few nodes).
        first: blocks at the beginning that have no experts (DeepSeek).
        every: every how many blocks one has experts, the last of them (Llama 4).

    Raises:
        UserError: fewer than one of any, or more active experts than there are.
    """

    count: int
    active: int
    ffn: int
    shared: int = 0
    latent: int = 0
    groups: int = 1
    limited: int = 1
    first: int = 0
    every: int = 1
    scaled: bool = False

    def __post_init__(self) -> None:
        least = min(self.count, self.active, self.ffn, self.every, self.limited, 1 + self.groups - self.limited)
        if least < 1 or min(self.shared, self.latent, self.first) < 0 or self.active > self.count:
            raise UserError(
                f"no block has {self.count} experts of width {self.ffn}, {self.active} of them active",
                "each is at least 1; at most all are active",
            )

    def of_block(self, number: int) -> bool:
        """Return whether a block, counted from 0, has experts."""
        return number >= self.first and (number + 1) % self.every == 0


def _scaled_bias(count: int, rows: float, width: int) -> LayerSpec:
    """Return the addition of the last product's bias times the router's scores, expert by expert in fp32, and one copy of all.

    Megatron-Core, ``TEGroupedMLP._apply_bias``: the product, the sum, the copy and the cast back each read and write a row.
    """
    x, scores = WORD * rows * width, 2 * WORD * rows
    # fp32 counts twice in a table that 16 bits halve; the backward pass has the gradients of result, bias and scores
    forward, back = 14 * x + scores, 18 * x + 2 * scores
    operations = memory(False, 4, forward), memory(True, 7, back)
    return LayerSpec("experts.add_bias", "Add", tuple(replace(o, batch=float(count)) for o in operations))


def expert_layers(e: Experts, s: float, hidden: int, *, gated: bool, bias: bool) -> list[LayerSpec]:
    """Return the layers of one block's experts over ``s`` tokens, without the shared ones.

    ``dispatch`` copies each token for its experts and ``combine`` adds the copies. Between them each expert has
    ``s active / count`` rows.
    """
    width = e.latent or hidden
    x, copies, rows = WORD * s * width, e.active * s, e.active * s / e.count
    f, scores = WORD * copies * e.ffn, WORD * s * e.count
    parts = [
        linear("router", s, hidden, e.count, bias=bias, sums=1),
        # softmax, the largest scores, their mask; the shares of each expert for the balancing loss
        elementwise("route", "Softmax", (3, 5 * scores), (2, 4 * scores), 2 * scores, kept_half=2 * scores),
        *([linear("latent_in", s, hidden, width, bias=bias, kept=False, sums=1)] if e.latent else []),
        elementwise(
            "dispatch", "Gather", (1, x * (1 + e.active)), (1, x * (1 + e.active)), INDEX * copies, kept_half=INDEX * copies
        ),
        grouped("experts.expand", e.count, rows, width, e.ffn, bias=bias, sums=int(gated)),
        elementwise("experts.act", "GELU", (1, 2 * f), (1, 3 * f), f),
    ]
    if gated:
        parts.append(grouped("experts.gate", e.count, rows, width, e.ffn, bias=bias, kept=False))
        parts.append(elementwise("experts.multiply", "Mul", (1, 3 * f), (2, 6 * f), 2 * f))
    return [
        *parts,
        grouped("experts.contract", e.count, rows, e.ffn, width, bias=bias),
        *([_scaled_bias(e.count, copies, width)] if bias else []),
        elementwise("combine", "Sum", (1, x * (1 + e.active)), (1, x * (1 + e.active))),
        *([linear("latent_out", s, width, hidden, bias=bias)] if e.latent else []),
    ]
