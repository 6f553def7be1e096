"""Computation of the loss over the vocabulary, and the logits that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

from paceline.strategy.choices.values import Value


class Loss(Value):
    """Way to compute cross entropy from the last hidden states.

    Attributes:
        chunks: parts of the tokens whose logits are in memory one after another; 0: no logits are in memory.
        fp32_copies: fp32 tensors of the logits' size that the backward pass holds in addition to the stored one.
        again: True if the backward pass computes the logits a second time.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    chunks: ClassVar[int] = 1
    fp32_copies: ClassVar[int] = 0
    again: ClassVar[bool] = False


@final
class PlainLoss(Loss):
    """PyTorch's cross entropy on an fp32 copy of all logits (transformers, ``ForCausalLMLoss``).

    The backward pass holds the fp32 logarithms that it stores, their gradient and that of the logits: 12 bytes a logit
    (PyTorch, ``nll_loss`` and ``log_softmax``). The forward pass needs as many: the logits in 16 bits and their shifted copy,
    the fp32 copy and the logarithms.
    """

    __slots__ = ()
    name = "plain"
    fp32_copies = 2


@final
class InPlaceLoss(Loss):
    """One kernel that replaces the logits by their gradients (Megatron-Core, ``tensor_parallel/cross_entropy.py``)."""

    __slots__ = ()
    name = "in_place"


@final
class ChunkedLoss(Loss):
    """Logits and loss of an eighth of the tokens at a time, with their gradients (torchtune, ``LinearCrossEntropyLoss``; Liger
    Kernel, ``LigerFusedLinearCrossEntropy``, arXiv:2410.10989, section 3.2).
    """

    __slots__ = ()
    name = "chunked"
    chunks = 8
    fp32_copies = 2


@final
class SplitLoss(Loss):
    """Output layer and cross entropy of 128 tokens at a time, in the weights' type. All logits and logarithms are stored, in 16
    bits 4 bytes a logit (LitGPT, ``finetune/lora.py`` and ``chunked_cross_entropy``).
    """

    __slots__ = ()
    name = "split"


@final
class CutLoss(Loss):
    """Cut cross entropy: a kernel that computes the logits of a tile of tokens in registers, in both passes (Wijmans et al.
    2024, arXiv:2411.09009, section 4).
    """

    __slots__ = ()
    name = "cut"
    chunks = 0
    again = True


PLAIN_LOSS, IN_PLACE_LOSS, CHUNKED_LOSS, SPLIT_LOSS, CUT_LOSS = (
    PlainLoss(),
    InPlaceLoss(),
    ChunkedLoss(),
    SplitLoss(),
    CutLoss(),
)
LOSSES: Mapping[str, Loss] = Loss.known
"""All losses by name."""
LOSS_ALIASES: Mapping[str, str] = {
    "eager": "plain",
    "liger": "chunked",
    "fused linear": "chunked",
    "cce": "cut",
    "cut cross entropy": "cut",
    "vocab parallel": "in_place",
}
"""Other names of losses."""
