"""Dimensions of encoders of text from their Hugging Face configurations. The task is pre-training: predicting masked words,
with an output layer tied to the token table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from paceline.errors import UserError
from paceline.workload.builders.transformer import TransformerShape
from paceline.workload.configs.config_values import TRACE, Config, NotRead, drops, number, refuse
from paceline.workload.configs.decoder_configs import Shaped


def _bert(config: Config) -> Shaped:
    refuse(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, tie_word_embeddings=True)
    longest = number(config, "max_position_embeddings", default=512)
    shape = TransformerShape(
        layers=number(config, "num_hidden_layers"),
        hidden=number(config, "hidden_size"),
        heads=number(config, "num_attention_heads"),
        ffn=number(config, "intermediate_size"),
        vocabulary=number(config, "vocab_size"),
        context=longest,
        segments=number(config, "type_vocab_size", default=2),
        causal=False,
        post_norm=True,
        fused_qkv=False,
        dropout=drops(config, "hidden_dropout_prob", "attention_probs_dropout_prob", default=0.1),
        head="dense",
    )
    return shape, longest


def _roberta(config: Config) -> Shaped:
    """Return RoBERTa, whose positions begin after that of padding, so that two of the table are never used."""
    shape, rows = _bert(config)
    padding = config.get("pad_token_id")
    offset = (1 if padding is None else int(padding)) + 1
    if rows <= offset:
        raise UserError(f"max_position_embeddings {rows} in the configuration", f"RoBERTa needs more than {offset}")
    return replace(shape, context=rows - offset, offset=offset), rows - offset


def _electra(config: Config) -> Shaped:
    shape, longest = _bert(config)
    width = number(config, "embedding_size", default=128)
    return replace(shape, embedding_width=0 if width == shape.hidden else width), longest


def _albert(config: Config) -> Shaped:
    refuse(config, num_hidden_groups=1, inner_group_num=1)
    usual = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    shape, longest = _bert({**usual, **config})
    width = number(config, "embedding_size", default=128)
    widened = replace(shape, embedding_width=width, shared_blocks=True)
    if width == shape.hidden:
        raise NotRead(f"embedding_size {width} in the configuration, as wide as the blocks of an ALBERT", TRACE)
    return widened, longest


def _distilbert(config: Config) -> Shaped:
    refuse(config, sinusoidal_pos_embds=False, tie_word_embeddings=True)
    longest = number(config, "max_position_embeddings", default=512)
    shape = TransformerShape(
        layers=number(config, "n_layers", "num_hidden_layers"),
        hidden=number(config, "dim", "hidden_size"),
        heads=number(config, "n_heads", "num_attention_heads"),
        ffn=number(config, "hidden_dim"),
        vocabulary=number(config, "vocab_size"),
        context=longest,
        causal=False,
        post_norm=True,
        fused_qkv=False,
        dropout=drops(config, "dropout", "attention_dropout", default=0.1),
        head="dense",
    )
    return shape, longest


ENCODERS: Mapping[str, Callable[[Config], Shaped]] = MappingProxyType(
    {
        "albert": _albert,
        "bert": _bert,
        "camembert": _roberta,
        "distilbert": _distilbert,
        "electra": _electra,
        "roberta": _roberta,
        "xlm-roberta": _roberta,
    }
)
