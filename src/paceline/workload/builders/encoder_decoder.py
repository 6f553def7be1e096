"""Transformers with an encoder and a decoder, from their dimensions: the layer table of one training step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.errors import UserError
from paceline.workload.builders.layer_builders import INDEX, WORD, LayerSpec, elementwise, linear
from paceline.workload.builders.transformer import TransformerShape, as_table, blocks, end, norm, start
from paceline.workload.layers import LayerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """Spectrogram that two convolutions over three frames turn into the tokens of an encoder (Radford et al. 2022, Whisper,
    arXiv:2212.04356, section 2.2). The second has a stride of two.

    Attributes:
        bins: numbers of a frame.
        tokens: tokens of the encoder, half of the frames.
    """

    bins: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderShape:
    """Dimensions of an encoder and of a decoder that attends to its output (Vaswani et al. 2017, arXiv:1706.03762).

    Both share one table of tokens, as does the output if the decoder is tied.

    Attributes:
        encoder, decoder: one stack each; the head is the decoder's.
        audio: input of the encoder instead of tokens.
        source_tokens: tokens of the encoder; 0: as many as the decoder has.
    """

    encoder: TransformerShape
    decoder: TransformerShape
    audio: Audio | None = None
    source_tokens: int = 0


def encoder_decoder(
    shape: EncoderDecoderShape, seq_len: int, *, name: str, source: str = "", fused_attention: bool = True
) -> LayerTable:
    """Return the layer table of one training step.

    Args:
        seq_len: tokens of the decoder, and of the encoder unless it reads audio or has others.
        fused_attention: True if scores are not written to memory.

    Raises:
        UserError: fewer than one token, or more than the learned positions.
    """
    first, last, s = shape.encoder, shape.decoder, seq_len
    if s < 1 or (last.positions == "learned" and 0 < last.context < s):
        raise UserError(
            f"{name} has no sequences of {s} tokens", f"give 1 to {last.context}" if last.context else "give 1 or more"
        )
    keys = shape.audio.tokens if shape.audio else shape.source_tokens or s
    parts = _spectrogram(shape.audio, first.hidden) if shape.audio else _entry(first, keys, "tokens", "source_")
    parts += [part.named(f"encoder.{i}.") for i in range(first.layers) for part in blocks(first, keys, fused_attention)]
    parts += [] if first.post_norm else [norm(first, "encoder_norm", keys, first.hidden)]
    table, *rest = _entry(last, s, "tokens" if shape.audio else "target_tokens", "target_")
    parts += [table if shape.audio else replace(table, weights=()), *rest]
    inner = blocks(last, s, fused_attention, keys=keys, cross=True)
    parts += [part.named(f"decoder.{i}.") for i in range(last.layers) for part in inner]
    parts += end(last, s)
    if shape.audio:
        frames = f"audio of {2 * keys} frames and {s} tokens"
        return as_table(parts, name, source, frames, WORD * 2 * keys * shape.audio.bins + INDEX * s)
    tokens = f"{s}" if keys == s else f"{keys} and {s}"
    return as_table(parts, name, source, f"sentences of {tokens} tokens", INDEX * (keys + s))


def _entry(shape: TransformerShape, s: int, name: str, prefix: str) -> list[LayerSpec]:
    """Return the first layers of a stack: the token table under its own name, the others after ``prefix``."""
    table, *rest = start(shape, s)
    return [replace(table, name=name), *(part.named(prefix) for part in rest)]


def _spectrogram(audio: Audio, hidden: int) -> list[LayerSpec]:
    """Return two convolutions, each as the product of three frames with its kernel, and fixed positions."""
    parts = []
    for name, rows, channels in (("conv1", 2 * audio.tokens, audio.bins), ("conv2", audio.tokens, hidden)):
        whole = linear(name, rows, 3 * channels, hidden)
        operations = tuple(
            replace(o, kind="conv", window=3, bytes=WORD * (rows * hidden + 2 * audio.tokens * channels))
            for o in whole.operations
            if o.kind == "matmul" and (channels == hidden or not o.backward or o.grows == "k")  # data need no gradient
        )
        kept = WORD * 2 * audio.tokens * channels
        weights = ("bias", (hidden,)), ("weight", (hidden, channels, 3))
        spec = LayerSpec(name, "Conv1d", operations, kept, weights, kept / 2)
        x = WORD * rows * hidden
        parts += [spec, elementwise(f"{name}_act", "GELU", (1, 2 * x), (1, 3 * x), x)]
    x = WORD * audio.tokens * hidden
    return [*parts, elementwise("source_positions", "Add", (1, 2 * x), (0, 0.0), fixed=x)]
