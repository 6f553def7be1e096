"""Dimensions of encoders with a decoder from their Hugging Face configurations: T5, BART and Whisper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError
from paceline.workload.builders.encoder_decoder import Audio, EncoderDecoderShape
from paceline.workload.builders.transformer import TransformerShape
from paceline.workload.configs.config_values import Config, drops, flag, number, refuse

PairShaped = tuple[EncoderDecoderShape, int]


def _t5(config: Config) -> PairShaped:
    hidden, heads, layers = number(config, "d_model"), number(config, "num_heads"), number(config, "num_layers")
    ffn = str(config.get("feed_forward_proj", "relu"))
    width = number(config, "d_kv", default=64)
    decoder = TransformerShape(
        layers=number(config, "num_decoder_layers", default=layers),
        hidden=hidden,
        heads=heads,
        head_dim=0 if width * heads == hidden else width,
        ffn=number(config, "d_ff"),
        vocabulary=number(config, "vocab_size"),
        gated=ffn.startswith("gated-"),
        norm="rms",
        bias=False,
        tied=flag(config, "tie_word_embeddings", True),
        fused_qkv=False,
        positions="relative",
        context=number(config, "relative_attention_num_buckets", default=32),
        dropout=drops(config, "dropout_rate", default=0.1),
    )
    shape = EncoderDecoderShape(encoder=replace(decoder, layers=layers, causal=False), decoder=decoder)
    return shape, number(config, "n_positions", default=512)


def _stack(config: Config, part: str, context: int) -> TransformerShape:
    """Return one stack of BART or Whisper; ``part`` is ``encoder`` or ``decoder``."""
    return TransformerShape(
        layers=number(config, f"{part}_layers"),
        hidden=number(config, "d_model"),
        heads=number(config, f"{part}_attention_heads"),
        ffn=number(config, f"{part}_ffn_dim"),
        vocabulary=number(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings", True),
        causal=part == "decoder",
        context=context,
        fused_qkv=False,
    )


def _bart(config: Config) -> PairShaped:
    refuse(config, tie_word_embeddings=True)
    longest, dropped = number(config, "max_position_embeddings", default=1024), drops(config, "dropout", default=0.1)
    own: dict[str, Any] = {"post_norm": True, "offset": 2, "dropout": dropped}
    first, last = (replace(_stack(config, part, longest), **own) for part in ("encoder", "decoder"))
    return EncoderDecoderShape(encoder=first, decoder=last), longest


def _whisper(config: Config) -> PairShaped:
    refuse(config, tie_word_embeddings=True)
    frames, longest = (number(config, f"max_{end}_positions", default=n) for end, n in (("source", 1500), ("target", 448)))
    own: dict[str, Any] = {"key_bias": False, "dropout": drops(config, "dropout", "attention_dropout", "activation_dropout")}
    first, last = (replace(_stack(config, part, longest), **own) for part in ("encoder", "decoder"))
    audio = Audio(bins=number(config, "num_mel_bins", default=80), tokens=frames)
    if first.hidden != last.hidden:
        raise UserError("an encoder and a decoder of other widths in the configuration", "give a whole config.json")
    return EncoderDecoderShape(encoder=first, decoder=last, audio=audio), longest


PAIRS: Mapping[str, Callable[[Config], PairShaped]] = MappingProxyType({"bart": _bart, "t5": _t5, "whisper": _whisper})
