"""Configuration of Hugging Face that states the widths of a smaller model, found by building models of other numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.shrink import tensors_in

EQUAL = 1e-5
"""Largest difference of the outputs of the model that the configuration builds, relative to the largest output."""
WIDTH_OF_HEAD = "head_dim"
"""Number that never shrinks, since heads go whole. It is stated: else models divide their width by the number of heads."""
TOKENS = 8
Shapes = Mapping[str, tuple[int, ...]]


def is_hugging_face(model: nn.Module) -> bool:
    """Return whether a model is one of Hugging Face, which saves itself with a configuration."""
    return hasattr(model, "save_pretrained") and hasattr(model, "config") and hasattr(type(model), "from_pretrained")


def stated_config(whole: nn.Module, small: nn.Module) -> Any | None:
    """Return a configuration from which transformers builds the smaller model, or None if no numbers of it state the widths.

    Numbers are changed one by one, each in the ratio of a parameter's sizes, as long as more parameters have the sizes of the
    small model. The result is built, takes the small model's weights, and must give the same outputs on a few tokens.

    Args:
        whole: model before slimming. ``small``: its configuration states fewer layers already, if there are fewer.
    """
    wanted = _shapes(small.state_dict())
    before = _shapes(whole.state_dict())
    config: Any = copy.deepcopy(small.config)
    heads = getattr(config, "num_attention_heads", 0)
    unstated = getattr(config, WIDTH_OF_HEAD, None) is None and bool(heads)
    if unstated:
        setattr(config, WIDTH_OF_HEAD, config.hidden_size // config.num_attention_heads)
    wrong = _wrong(small, config, wanted)
    ratios = {Fraction(a, b) for name, shape in wanted.items() for a, b in zip(shape, before.get(name, ()), strict=False)} - {1}
    sizes = sorted({size for name in wrong for size in wanted[name]})
    while wrong:
        best: tuple[int, Any] | None = None
        for name, value in _candidates(config, ratios, sizes):
            tried = copy.deepcopy(config)
            try:
                setattr(tried, name, value)
                left = len(_wrong(small, tried, wanted))
            except Exception:  # a configuration that its model refuses
                continue
            if best is None or left < best[0]:
                best = left, tried
        if best is None or best[0] >= len(wrong):
            return None
        config = best[1]
        wrong = _wrong(small, config, wanted)
    if unstated and config.num_attention_heads == heads:
        delattr(config, WIDTH_OF_HEAD)
    return config if _same_outputs(small, config) else None


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in tensors.items()}


def _candidates(config: Any, ratios: set[Fraction], sizes: list[int]) -> Iterator[tuple[str, int]]:
    """Yield numbers of a configuration in each ratio, and the sizes where it has none, such as GPT-2's ``n_inner``."""
    for name, value in vars(config).items():
        if name.startswith("_") or WIDTH_OF_HEAD in name or name.endswith("_token_id"):
            continue
        if type(value) is int and value > 1:
            yield from ((name, int(value * ratio)) for ratio in sorted(ratios) if (value * ratio).denominator == 1)
        elif value is None and name in getattr(type(config), "__annotations__", {name: None}):
            yield from ((name, size) for size in sizes if "inner" in name or "intermediate" in name or "ffn" in name)


def _wrong(small: nn.Module, config: Any, wanted: Shapes) -> set[str]:
    """Return the names of tensors that a model of a configuration lacks, has of another shape or has too many."""
    with torch.device("meta"):
        made: nn.Module = type(small)(config)
    found = _shapes(made.state_dict())
    return {name for name in {*found, *wanted} if found.get(name) != wanted.get(name)} & {*wanted} | ({*found} - {*wanted})


def _same_outputs(small: nn.Module, config: Any) -> bool:
    kind: Any = type(small)
    try:
        weights = {name: each.detach().clone() for name, each in small.state_dict().items()}
        with quiet():
            made = kind.from_pretrained(None, config=config, state_dict=weights).to(next(small.parameters()))
        inputs = _example(small)
        with quiet(), eval_mode(small), eval_mode(made), torch.no_grad():
            left, right = (list(tensors_in(each(**inputs))) for each in (small, made))
    except Exception:  # a configuration that its model refuses only when it runs
        return False
    pairs = [(a, b) for a, b in zip(left, right, strict=False) if a.shape == b.shape]
    largest = max((float(a.abs().max()) for a, _ in pairs), default=0.0)
    return bool(pairs) and max(float((a - b).abs().max()) for a, b in pairs) <= EQUAL * largest


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers write no bars and no warnings in the block."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _example(model: Any) -> dict[str, Tensor]:
    """Return a few tokens, or the inputs that the model's class declares."""
    device = next(model.parameters()).device
    if model.main_input_name != "input_ids":
        return {name: each.to(device) for name, each in model.dummy_inputs.items()}
    tokens = (torch.arange(TOKENS, device=device) * 7 % model.config.vocab_size)[None]
    return {"input_ids": tokens, **({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})}
