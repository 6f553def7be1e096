"""Configuration of Hugging Face that states the widths of a smaller model, found by building models of other numbers."""

from __future__ import annotations

import copy
from collections import Counter
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
INNER = ("inner", "intermediate", "ffn")
"""Parts of the names of an MLP's width."""
MOST_RATIOS = 8
"""Most ratios of sizes that are tried: layers of equal widths have one for heads, MLPs and experts each."""
Shapes = Mapping[str, tuple[int, ...]]


def is_hugging_face(model: nn.Module) -> bool:
    """Return whether a model is one of Hugging Face, which saves itself with a configuration."""
    kinds = type(model).__mro__
    return any(kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.") for kind in kinds)


def stated_config(whole: nn.Module, small: nn.Module, inputs: tuple[Any, ...] = ()) -> Any | None:
    """Return a configuration from which transformers builds the smaller model, or None if no numbers of it state the widths.

    Numbers are changed one by one, each in the ratio of a parameter's sizes, as long as more parameters have the sizes of the
    small model. The result is built, takes the small model's weights, and must give the same outputs on a few tokens.

    Args:
        whole: model before slimming. ``small``: its configuration states fewer layers already, if there are fewer.
        inputs: an example, for models that take no tokens.
    """
    wanted = _shapes(small.state_dict())
    before = _shapes(whole.state_dict())
    config: Any = copy.deepcopy(small.config)
    heads = getattr(config, "num_attention_heads", 0)
    unstated = getattr(config, WIDTH_OF_HEAD, None) is None and type(heads) is int and heads > 0
    if unstated:
        setattr(config, WIDTH_OF_HEAD, config.hidden_size // heads)
    try:
        wrong = _wrong(small, config, wanted)
    except Exception:  # a class of the user's, with further arguments
        return None
    pairs = [(a, b) for name, shape in wanted.items() for a, b in zip(shape, before.get(name, ()), strict=False) if a != b]
    ratios = {Fraction(a, b) for a, b in pairs}
    if len(ratios) > MOST_RATIOS:
        return None
    while wrong:
        better = next(_better(small, config, wanted, wrong, ratios, dict(pairs)), None)
        if better is None:
            return None
        config, wrong = better
    for name, value in _epsilons(whole, small):
        setattr(config, name, value)
    if unstated and config.num_attention_heads == heads:
        delattr(config, WIDTH_OF_HEAD)
    return config if _same_outputs(small, config, inputs) else None


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in tensors.items()}


def _better(
    small: nn.Module, config: Any, wanted: Shapes, wrong: set[str], ratios: set[Fraction], pairs: Mapping[int, int]
) -> Iterator[tuple[Any, set[str]]]:
    """Yield configurations with one other number of which fewer tensors are wrong and no others, with the names of these."""
    for name, value in _candidates(config, ratios, pairs):
        tried = copy.deepcopy(config)
        try:
            setattr(tried, name, value)
            left = _wrong(small, tried, wanted)
        except Exception:  # a configuration that its model refuses
            continue
        if left < wrong:
            yield tried, left


def _epsilons(whole: nn.Module, small: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a configuration that norms over fewer units have changed: of several, the commonest."""
    for name, value in vars(small.config).items():
        if not (isinstance(value, float) and name.endswith(("eps", "epsilon"))):
            continue
        pairs = zip(whole.modules(), small.modules(), strict=False)
        found = [
            vars(after).get(attribute)
            for before, after in pairs
            for attribute, own in vars(before).items()
            if isinstance(own, float) and own == value
        ]
        changed = Counter(each for each in found if isinstance(each, float) and each != value)
        if changed:
            yield name, changed.most_common(1)[0][0]


def _candidates(config: Any, ratios: set[Fraction], pairs: Mapping[int, int]) -> list[tuple[str, int]]:
    """Return numbers of a configuration in each ratio, those that are a size of the whole model first, then heads and experts.
    A number without a value, such as GPT-2's ``n_inner``, takes the sizes.

    Args:
        pairs: sizes in the whole model, by those in the small one.
    """
    found: list[tuple[tuple[bool, bool], str, int]] = []
    for name, value in vars(config).items():
        if name.startswith("_") or WIDTH_OF_HEAD in name or name.endswith("_token_id"):
            continue
        if type(value) is int and value > 1:
            order = value not in pairs.values(), not ("head" in name or "expert" in name)
            found += [(order, name, int(value * ratio)) for ratio in sorted(ratios) if (value * ratio).denominator == 1]
        elif value is None and any(part in name for part in INNER):
            found += [((True, False), name, size) for size in sorted(pairs)]
    return [(name, value) for _, name, value in sorted(found, key=lambda each: each[0])]


def _wrong(small: nn.Module, config: Any, wanted: Shapes) -> set[str]:
    """Return the names of tensors that a model of a configuration lacks, has of another shape or has too many."""
    with torch.device("meta"):
        made: nn.Module = type(small)(config)
    found = _shapes(made.state_dict())
    return {name for name in {*found, *wanted} if found.get(name) != wanted.get(name)} & {*wanted} | ({*found} - {*wanted})


def _same_outputs(small: nn.Module, config: Any, given: tuple[Any, ...]) -> bool:
    kind: Any = type(small)
    try:
        weights = {name: each.detach().clone() for name, each in small.state_dict().items()}
        with quiet():
            made = kind.from_pretrained(None, config=config, state_dict=weights).to(next(small.parameters()))
        inputs, named = ((), _example(small)) if not given or small.main_input_name == "input_ids" else (given, {})
        with quiet(), eval_mode(small), eval_mode(made), torch.no_grad():
            left, right = (list(tensors_in(each(*inputs, **named))) for each in (small, made))
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
    """Return a few tokens or an image."""
    like, config = next(model.parameters()), model.config
    if model.main_input_name == "pixel_values":
        side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        return {"pixel_values": torch.linspace(-1, 1, 3 * side * side).to(like).view(1, 3, side, side)}
    tokens = (torch.arange(TOKENS, device=like.device) * 7 % config.vocab_size)[None]
    return {"input_ids": tokens, **({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})}
