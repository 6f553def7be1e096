"""Transformers from their dimensions, without torch: the layer table of one training step for any sequence length.

FLOPs are those of the products: 24 h^2 + 4 s h forward for a token and a layer of width h without gate or shared heads
(Narayanan et al. 2021, arXiv:2104.04473, section 3, whose 72 counts forward and twice that backward); fused attention
adds the scores that it computes again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from paceline.errors import UserError
from paceline.workload.builders.attention import SlidingWindow, attention
from paceline.workload.builders.experts import Experts, expert_layers
from paceline.workload.builders.hybrid import ATTENTION, DENSE, EXPERTS, MIXER, ExtraTokens, Hybrid
from paceline.workload.builders.latent_attention import LatentAttention, latent_attention
from paceline.workload.builders.layer_builders import (
    INDEX,
    WORD,
    LayerSpec,
    cross_entropy,
    dropout,
    elementwise,
    embedding,
    lay_out,
    linear,
    memory,
    normalisation,
    positions,
)
from paceline.workload.builders.rwkv import Rwkv, channel_mixing
from paceline.workload.details import Details
from paceline.workload.layers import Coverage, LayerTable

MASKED_SHARE = 0.15  # share of the tokens that BERT predicts (Devlin et al. 2018, arXiv:1810.04805, section 3.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Dimensions of a transformer that is all encoder or all decoder.

    Attributes:
        kv_heads: heads of keys and values; 0: as many as ``heads``.
        head_dim: numbers of a head; 0: as many as make the heads together as wide as ``hidden``.
        ffn: inner width of the feed-forward network; 0: four times ``hidden``.
        experts: experts of blocks without a feed-forward network.
        latent: latent attention, whose heads have separate widths.
        hybrid: blocks of other parts than attention and a feed-forward network, and their linear mixer; None: none.
        extra_tokens: modules that predict further tokens during training; None: none.
        sliding: blocks that attend only to the nearest tokens; None: none.
        head_norm: whether queries and keys are normalised head by head (``True``), or over all heads (``"whole"``).
        output_gate: whether a product of as many numbers as the queries gates the result of attention (Qwen3-Next).
        sinks: each head has a trained number in addition to its scores, as gpt-oss.
        gated: whether the feed-forward network has a gate, a second product of the same width.
        norm: LayerNorm, or RMSNorm without bias. ``norm_bias``: whether LayerNorm has one.
        bias: whether the linear layers in the blocks have a bias; ``qkv_bias`` and ``output_bias`` are the same for queries,
            keys and values and for attention's last product if these differ, ``key_bias`` for keys alone, ``head_bias`` for the
            output layer of a decoder.
        tied: whether the output shares the weights of the token embedding.
        causal: whether it is a decoder: a fused kernel of attention leaves out the scores of later tokens.
        post_norm: whether sums are normalised, as in BERT, and not the inputs of attention and feed-forward network.
        input_norm, output_norm: whether their inputs are, and their results before they are added, as in Gemma 2 and OLMo 2.
        parallel: norms of a block whose attention and feed-forward network both read its input, one for both or one for each
            (GPT-J, GPT-NeoX); 0: they follow each other.
        shared_blocks: whether all blocks have the same weights, as in ALBERT.
        fused_qkv: whether queries, keys and values are one product.
        positions: learned embeddings for ``context`` positions (0: the sequence length), rotation of queries and keys, a
            bias of the scores, which costs nothing in a fused kernel, none, fixed sinusoids, or a trained bias of ``context``
            distances for each head (T5).
        offset: rows of the position table that no token has (OPT).
        embedding_width: width of tokens and positions, if a product widens them for the blocks; 0: ``hidden``.
        embedding_norm: whether the embedding is normalised in front of blocks that normalise their input (BLOOM).
        segments: token types, embedded as the tokens are.
        dropout: after attention, feed-forward network and embedding, and of the attention weights.
        attention_dropout: the last alone, where it differs; None: as ``dropout``.
        details: facts without a cost, such as the activation; None: unknown.
        head: ``tokens`` predicts a token per position; ``dense`` does so after a dense layer, as BERT; ``masked`` does so
            for 15 % of the positions, with a pooler and the next-sentence head; ``span`` gives two numbers per position.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    experts: Experts | None = None
    latent: LatentAttention | None = None
    hybrid: Hybrid | None = None
    extra_tokens: ExtraTokens | None = None
    sliding: SlidingWindow | None = None
    head_norm: bool | Literal["whole"] = False
    output_gate: bool = False
    sinks: bool = False
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    bias: bool = True
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    key_bias: bool = True
    head_bias: bool = False
    tied: bool = True
    causal: bool = True
    post_norm: bool = False
    input_norm: bool = True
    output_norm: bool = False
    parallel: int = 0
    shared_blocks: bool = False
    fused_qkv: bool = True
    positions: Literal["learned", "rotary", "alibi", "none", "fixed", "relative"] = "learned"
    context: int = 0
    offset: int = 0
    embedding_width: int = 0
    embedding_norm: bool = False
    segments: int = 0
    dropout: bool = True
    attention_dropout: bool | None = None
    head: Literal["tokens", "dense", "masked", "span"] = "tokens"
    details: Details | None = None

    def __post_init__(self) -> None:
        kv = self.kv_heads or self.heads
        least = min(self.layers, self.hidden, self.heads, self.vocabulary)
        whole = self.latent is not None or self.head_dim > 0 or self.hidden % self.heads == 0
        if least < 1 or self.head_dim < 0 or not whole or self.heads % kv:
            raise UserError(
                f"no transformer has {self.layers} layers of width {self.hidden}, {self.heads} heads ({kv} of keys) and "
                f"{self.vocabulary} tokens",
                "each is at least 1; the width is a multiple of the heads, they are one of the heads of keys",
            )
        if self.parallel not in (0, 1, 2) or (self.parallel and (self.post_norm or self.output_norm)):
            raise UserError(f"no parallel block has {self.parallel} norms", "it has 1 or 2, of its input alone")

    def of_block(self, number: int) -> str:
        """Return the parts of a block, counted from 0, in the letters of ``hybrid``."""
        if self.hybrid is not None:
            return self.hybrid.of_block(number)
        return ATTENTION + (EXPERTS if self.experts is not None and self.experts.of_block(number) else DENSE)

    @property
    def drops_weights(self) -> bool:
        """True if dropout applies to the weights of attention."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values."""
        return self.head_width * (self.kv_heads or self.heads)


def llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int) -> TransformerShape:
    """Return the dimensions of Llama's design: a gate, RMSNorm, rotated positions, no biases, no dropout, separate output
    weights (Touvron et al. 2023, arXiv:2302.13971, section 2.2).
    """
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=vocabulary,
        gated=True,
        norm="rms",
        bias=False,
        tied=False,
        fused_qkv=False,
        positions="rotary",
        dropout=False,
    )


def transformer(
    shape: TransformerShape, seq_len: int, *, name: str = "", source: str = "", fused_attention: bool = True
) -> LayerTable:
    """Return the layer table of one training step on sequences of ``seq_len`` tokens.

    Args:
        fused_attention: scores are not written to memory (FlashAttention); else attention runs as in eager PyTorch.

    Raises:
        UserError: fewer than one token, or more than the learned positions.
    """
    if seq_len < 1 or (shape.positions == "learned" and 0 < shape.context < seq_len):
        raise UserError(
            f"{name or 'the transformer'} has no sequences of {seq_len} tokens",
            f"give 1 to {shape.context}" if shape.context and shape.positions == "learned" else "give at least 1",
        )
    known: dict[tuple[str, int], list[LayerSpec]] = {}
    repeated: list[LayerSpec] = []
    for i in range(shape.layers):
        parts_of_block, sliding = shape.of_block(i), shape.sliding.of_block(i) if shape.sliding else 0
        if (parts_of_block, sliding) not in known:
            known[parts_of_block, sliding] = blocks(shape, seq_len, fused_attention, sliding=sliding, letters=parts_of_block)
        repeated += [part.named(f"blocks.{i}.") for part in known[parts_of_block, sliding]]
    if shape.shared_blocks:  # the gradients are complete in the first block, which the backward pass reaches last
        repeated = [part if part.name.startswith("blocks.0.") else replace(part, weights=()) for part in repeated]
    further = _further_tokens(shape, seq_len, fused_attention)
    parts = [*start(shape, seq_len), *repeated, *further, *end(shape, seq_len)]
    name = name or f"transformer-{shape.layers}x{shape.hidden}"
    table = as_table(parts, name, source, f"sequence of {seq_len} tokens", INDEX * seq_len)
    if shape.dropout and not shape.drops_weights:
        table = replace(table, drops_scores=False)
    table = replace(table, shape=shape)
    return table if shape.experts is None else replace(table, routed_share=shape.experts.limited / shape.experts.groups)


def as_table(parts: list[LayerSpec], name: str, source: str, sample: str, input_bytes: float) -> LayerTable:
    """Return the table of these layers, every operation of which has a known FLOP count."""
    layers, parameters = lay_out(parts)
    ops = sum(operation.calls for layer in layers for operation in layer.operations)
    return LayerTable(
        name=name,
        layers=layers,
        parameters=parameters,
        input_bytes=input_bytes,
        sample=sample,
        source=source,
        coverage=Coverage(ops=ops, known=ops),
    )


def norm(shape: TransformerShape, name: str, rows: float, width: int, *, kept: bool = True, sums: int = 0) -> LayerSpec:
    """Return a normalisation of the kind that the shape has."""
    whole = normalisation(name, rows, width, rms=shape.norm == "rms", kept=kept, sums=sums)
    return whole if shape.norm_bias else replace(whole, weights=whole.weights[:1])


def start(shape: TransformerShape, s: int) -> list[LayerSpec]:
    """Return the layers from ``s`` tokens to the input of the first block."""
    h, width = shape.hidden, shape.embedding_width or shape.hidden
    x = WORD * s * width
    parts = [embedding("tokens", s, shape.vocabulary, width, tied=shape.tied and shape.head != "span")]
    if shape.segments:
        added = elementwise("segment_sum", "Add", (1, 3 * x), (0, 0.0))
        parts += [embedding("segments", s, shape.segments, width), added]
    if shape.positions == "learned":
        parts.append(positions("positions", s, (shape.context or s) + shape.offset, width))
    elif shape.positions == "fixed":
        parts.append(elementwise("positions", "Add", (1, 2 * x), (0, 0.0), fixed=x))
    elif shape.positions == "relative":
        scores = WORD * s * s * shape.heads  # the bias of all heads, which every block adds
        operations = memory(False, 1, 0.0, 2 * scores), memory(True, 1, 0.0, 2 * scores)
        parts.append(LayerSpec("positions", "Embedding", operations, weights=(("weight", (shape.context, shape.heads)),)))
    if shape.post_norm or shape.embedding_norm:
        parts.append(norm(shape, "norm", s, width, kept=False))
    parts += [dropout("drop", s * width)] if shape.dropout else []
    return [*parts, linear("widen", s, width, h)] if width != h else parts


def blocks(
    shape: TransformerShape,
    s: int,
    fused: bool,
    *,
    keys: int = 0,
    cross: bool = False,
    sliding: int = 0,
    letters: str = ATTENTION + DENSE,
) -> list[LayerSpec]:
    """Return the layers of one block over ``s`` tokens, with the parts of ``letters`` (``Hybrid``). With ``cross`` it also
    attends to ``keys`` tokens of an encoder; with ``sliding`` only to the nearest of its tokens.
    """
    inside = _attend(shape, s, s, "attention.", fused, sliding) if ATTENTION in letters else []
    mixer = _mix(shape, s) if MIXER in letters else []
    forward: list[LayerSpec] = []
    if EXPERTS in letters and shape.experts is not None:
        forward = _mixture(shape, shape.experts, s)
    elif DENSE in letters:
        forward = _dense(shape, s)
    if shape.parallel:
        return _parallel_block(shape, s, inside, forward)
    if inside and mixer:  # both read the block's input
        first, *rest = mixer
        added = elementwise("mixer_sum", "Add", (1, 3 * WORD * s * shape.hidden), (1, 3 * WORD * s * shape.hidden))
        parts = _residual("attention", shape, s, [*inside, replace(first, kept=0.0), *rest, added])
    else:
        named = ("mixer", mixer), ("attention", inside)
        parts = [part for name, own in named if own for part in _residual(name, shape, s, own)]
    if cross:
        parts += _residual("cross", shape, s, _attend(shape, s, keys, "cross.", fused))
    return parts + (_residual("mlp", shape, s, forward) if forward else [])


def _mix(shape: TransformerShape, s: int) -> list[LayerSpec]:
    if shape.hybrid is None:
        raise UserError("a block with a linear mixer that has no dimensions", "give hybrid")
    return [part.named("mixer.") for part in shape.hybrid.mixer.layers(s, shape.hidden)]


def _dense(shape: TransformerShape, s: int) -> list[LayerSpec]:
    """Return the feed-forward network of a block, which RWKV replaces by a mixing of channels."""
    if shape.hybrid is not None and isinstance(shape.hybrid.mixer, Rwkv):
        return channel_mixing(s, shape.hidden, shape.ffn or 4 * shape.hidden)
    return _feed_forward(shape, s)


def _further_tokens(shape: TransformerShape, s: int, fused: bool) -> list[LayerSpec]:
    """Return the modules that predict further tokens, in front of the network's own head, whose weights they share."""
    extra = shape.extra_tokens
    if extra is None:
        return []
    h, x = shape.hidden, WORD * s * shape.hidden
    own = [
        replace(embedding("next_tokens", s, shape.vocabulary, h), weights=()),
        norm(shape, "token_norm", s, h),
        norm(shape, "input_norm", s, h),
        elementwise("join", "Concat", (1, 4 * x), (1, 4 * x)),
        linear("widen", s, 2 * h, h, bias=False),
    ]
    for number, letters in enumerate(extra.blocks):
        own += [part.named(f"block{number}.") for part in blocks(shape, s, fused, letters=letters)]
    head = [part if part.name == "norm" else replace(part, weights=()) for part in end(shape, s)]
    modules = [part.named(f"further{number}.") for number in range(extra.count) for part in [*own, *head]]
    if extra.repeated:
        modules = [part if part.name.startswith("further0.") else replace(part, weights=()) for part in modules]
    return modules


def _parallel_block(shape: TransformerShape, s: int, inside: list[LayerSpec], forward: list[LayerSpec]) -> list[LayerSpec]:
    """Return attention and feed-forward network that both read the block's input, and the sum of both results and the input."""
    h, x = shape.hidden, WORD * s * shape.hidden
    own = [norm(shape, "mlp_norm", s, h, kept=False, sums=1)] if shape.parallel == 2 else []
    if not own:  # both read the same tensor: their gradients are added there
        first, *rest = forward
        forward = [replace(first, kept=0.0), *rest]
    drop = [dropout(f"{name}_drop", s * h) if shape.dropout else None for name in ("attention", "mlp")]
    parts = [norm(shape, "attention_norm", s, h, sums=1), *inside, drop[0], *own, *forward, drop[1]]
    added = elementwise("mlp_sum", "Add", (2, 6 * x), (1, 3 * x) if not own else (0, 0.0))
    return [part for part in (*parts, added) if part is not None]


def _mixture(shape: TransformerShape, experts: Experts, s: int) -> list[LayerSpec]:
    """Return the experts, and the layers that process all tokens."""
    parts = expert_layers(experts, s, shape.hidden, gated=shape.gated, bias=shape.bias)
    if not experts.shared:
        return parts
    x = WORD * s * shape.hidden
    first, *rest = _feed_forward(replace(shape, ffn=experts.shared), s)
    scale = (
        [linear("shared.scale", s, shape.hidden, 1, bias=False, kept=False, kept_half=True, sums=1)] if experts.scaled else []
    )
    return [
        *parts,
        *(part.named("shared.") for part in (replace(first, kept=0.0), *rest)),  # the router keeps what enters
        *scale,
        elementwise("shared_sum", "Add", (1, 3 * x), (1, 3 * x)),
    ]


def _residual(name: str, shape: TransformerShape, s: int, inner: list[LayerSpec]) -> list[LayerSpec]:
    """Return ``inner`` with a residual connection: a sum of outputs in the forward pass, of gradients in the backward pass."""
    h, x = shape.hidden, WORD * s * shape.hidden
    drop = [dropout(f"{name}_drop", s * h)] if shape.dropout else []
    added = elementwise(f"{name}_sum", "Add", (1, 3 * x), (0, 0.0))
    own = norm(shape, f"{name}_norm", s, h, sums=0 if shape.post_norm else 1)
    shortcut = elementwise(f"{name}_shortcut", "Add", (0, 0.0), (1, 3 * x))
    if shape.post_norm:
        return [shortcut, *inner, *drop, added, own]
    result = [norm(shape, f"{name}_output_norm", s, h)] if shape.output_norm else []
    return [own if shape.input_norm else shortcut, *inner, *result, *drop, added]


def _attend(shape: TransformerShape, s: int, keys: int, prefix: str, fused: bool, sliding: int = 0) -> list[LayerSpec]:
    h, kv, heads, kv_heads = shape.hidden, shape.kv_width, shape.heads, shape.kv_heads or shape.heads
    bias = shape.bias if shape.qkv_bias is None else shape.qkv_bias
    last_bias = shape.bias if shape.output_bias is None else shape.output_bias
    causal = shape.causal and prefix != "cross."
    if shape.latent is not None:
        return latent_attention(
            shape.latent, s, h, heads, bias=shape.bias, fused=fused, drop=shape.drops_weights, causal=causal
        )
    head = shape.head_width
    width = heads * head
    x = WORD * s * width
    mixed = attention(
        "mix", s, keys, heads, kv_heads, head, fused=fused, drop=shape.drops_weights, causal=causal, sliding=sliding
    )
    if shape.sinks:
        mixed = replace(mixed, weights=(("sinks", (heads,)),))
    parts = []
    if prefix == "cross.":
        # The product of the keys reads the encoder's output first; the gradients are summed there.
        both = _copying("key_value", keys, h, 2 * kv, bias, sums=1)
        if bias and not shape.key_bias:
            both = replace(both, weights=(("bias", (kv,)), *both.weights[1:]))
        parts = [linear("query", s, h, width, bias=bias), both]
    elif shape.fused_qkv:
        whole = WORD * s * (width + 2 * kv)
        turned = WORD * s * (width + kv) if shape.positions == "rotary" else 0.0
        # the values are a view: they keep the product's whole result, also queries and keys before their rotation
        split = elementwise("split", "Split", (0, 0.0), (2, 4 * whole), turned)
        parts = [linear("qkv", s, h, width + 2 * kv, bias=bias), split]
    else:
        wide = [("query", width, 1), ("key", kv, 1), ("value", kv, 0)]
        biases = {"key": bias and shape.key_bias}
        parts = [
            linear(n, s, h, to, bias=biases.get(n, bias), kept=n == "query", kept_half=True, sums=sums) for n, to, sums in wide
        ]
    if shape.head_norm == "whole":
        parts += [norm(shape, f"{n}_norm", s, to) for n, to in (("query", width), ("key", kv))]
    elif shape.head_norm:
        parts += [normalisation(f"{n}_norm", s * count, head, rms=True) for n, count in (("query", heads), ("key", kv_heads))]
    if shape.positions == "rotary":
        turned = 2 * (x + WORD * s * kv)
        parts.append(elementwise("rotate", "Rotary", (1, turned), (1, turned)))
    gated = []
    if shape.output_gate:
        parts.append(_copying("gate", s, h, width, bias, sums=1))
        gated.append(elementwise("gate_output", "Mul", (2, 5 * x), (2, 6 * x), 2 * x))
    project = linear("project", s, width, h, bias=last_bias, kept=False)
    return [part.named(prefix) for part in (*parts, mixed, *gated, project)]


def _copying(name: str, rows: float, inputs: int, outputs: int, bias: bool, sums: int = 0) -> LayerSpec:
    """Return another product of a normalised input, which is copied once more only under autocast."""
    return linear(name, rows, inputs, outputs, bias=bias, kept=False, kept_half=True, sums=sums)


def _feed_forward(shape: TransformerShape, s: int) -> list[LayerSpec]:
    h, ffn, bias = shape.hidden, shape.ffn or 4 * shape.hidden, shape.bias
    f = WORD * s * ffn
    parts = [
        linear("expand", s, h, ffn, bias=bias, sums=int(shape.gated)),
        elementwise("act", "GELU", (1, 2 * f), (1, 3 * f), f),
    ]
    if shape.gated:
        parts.append(_copying("gate", s, h, ffn, bias))
        parts.append(elementwise("multiply", "Mul", (1, 3 * f), (2, 6 * f), 2 * f))  # saves both factors
    return [*parts, linear("contract", s, ffn, h, bias=bias)]


def end(shape: TransformerShape, s: int) -> list[LayerSpec]:
    """Return the layers from the last block to the loss."""
    h, v, width = shape.hidden, shape.vocabulary, shape.embedding_width or shape.hidden
    first = [] if shape.post_norm else [norm(shape, "norm", s, h)]
    if shape.head == "tokens":
        return [*first, _logits(shape, s, bias=shape.head_bias), cross_entropy("loss", s, v)]
    if shape.head == "span":
        return [*first, linear("head", s, h, 2), cross_entropy("loss", 2, s)]
    rows = max(1, round(MASKED_SHARE * s)) if shape.head == "masked" else s
    x, wide = WORD * rows * h, WORD * rows * width
    dense = [
        linear("head.dense", rows, h, width),
        elementwise("head.act", "GELU", (1, 2 * wide), (1, 3 * wide), wide),
        normalisation("head.norm", rows, width),
        _logits(shape, rows, bias=True),
        cross_entropy("loss", rows, v),
    ]
    if shape.head == "dense":
        return [*first, *dense]
    chosen = elementwise("head.chosen", "Gather", (1, 2 * x + INDEX * rows), (2, WORD * s * h * 4 + x))
    pooler = [linear("pooler", 1, h, h), linear("next_sentence", 1, h, 2), cross_entropy("sentence_loss", 1, 2)]
    return [*first, chosen, *pooler, *dense]


def _logits(shape: TransformerShape, rows: float, *, bias: bool) -> LayerSpec:
    """Return the output layer over the vocabulary. Tied weights belong to the embedding, where their gradient is complete."""
    whole = linear("head.logits", rows, shape.embedding_width or shape.hidden, shape.vocabulary, bias=bias)
    kept = tuple(weight for weight in whole.weights if weight[0] == "bias") if shape.tied else whole.weights
    return replace(whole, weights=kept)
