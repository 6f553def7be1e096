"""Layer tables of transformers from Hugging Face configurations, with the keys of ``transformers`` 4 and 5, without torch.

The task is that of pre-training: the next token for a decoder, masked words for an encoder, the target's tokens for a pair,
the class of an image. Modules that predict further tokens are included if the configuration counts them
(``num_nextn_predict_layers``). Towers for images and sounds of a model of several kinds are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError, unknown
from paceline.workload.builders.encoder_decoder import EncoderDecoderShape, encoder_decoder
from paceline.workload.builders.transformer import TransformerShape, transformer
from paceline.workload.builders.vision_transformer import VISION, VisionShape, vision_transformer
from paceline.workload.configs.config_values import TRACE, Config, NotRead
from paceline.workload.configs.decoder_configs import DECODERS
from paceline.workload.configs.encoder_configs import ENCODERS
from paceline.workload.configs.expert_configs import EXPERT_DECODERS
from paceline.workload.configs.hybrid_configs import HYBRIDS
from paceline.workload.configs.pair_configs import PAIRS
from paceline.workload.details import config_details
from paceline.workload.layers import LayerTable

LONGEST_USUAL = 8192
"""Tokens of a sample at most where no length is given: models that take more are pre-trained on sequences of 4,096 or 8,192
tokens first (Llama team 2024, arXiv:2407.21783, section 3.4.1 and 3.4.2)."""
Shape = TransformerShape | EncoderDecoderShape | VisionShape
KINDS: Mapping[str, Callable[[Config], tuple[Shape, int]]] = MappingProxyType(
    {**DECODERS, **EXPERT_DECODERS, **HYBRIDS, **ENCODERS, **PAIRS, **VISION}
)


def shape_of(config: Config) -> tuple[Shape, int]:
    """Return the dimensions of a configuration, and its longest sequence.

    Raises:
        UserError: an unknown kind of model, a missing dimension, or one that the layer table cannot express.
    """
    kind = str(config.get("model_type", ""))
    if kind in KINDS:
        shape, longest = KINDS[kind](config)
        if isinstance(shape, TransformerShape):
            shape = replace(shape, details=config_details(config))
        return shape, longest
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and inner.get("model_type") in KINDS:
        fix = "for its language model alone give the file's text_config as a separate config.json"
        raise NotRead(f"model_type {kind!r} has more than one tower", f"{fix}, or {TRACE}")
    error = unknown("model_type", kind, sorted(KINDS), TRACE)
    raise NotRead(error.message, error.fix)


def table_of(
    config: Config, seq_len: int | None = None, *, name: str, source: str = "", fused_attention: bool = True
) -> LayerTable:
    """Return the layer table of one training step of the model that a configuration describes.

    Args:
        seq_len: tokens of a sample; None: the longest of the configuration, at most ``LONGEST_USUAL``.
        fused_attention: True if scores are not written to memory.

    Raises:
        UserError: as ``shape_of``; or an impossible length.
    """
    shape, longest = shape_of(config)
    given: dict[str, Any] = {"name": name, "source": source, "fused_attention": fused_attention}
    if isinstance(shape, VisionShape):
        if seq_len is not None:
            raise UserError(f"{name} has no sequence length to choose", f"its images have {longest} tokens")
        return vision_transformer(shape, **given)
    length = min(longest, LONGEST_USUAL) if seq_len is None else seq_len
    build: Callable[..., LayerTable] = encoder_decoder if isinstance(shape, EncoderDecoderShape) else transformer
    return build(shape, length, **given)
