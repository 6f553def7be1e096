"""Exclusion of tensors from weight decay and trust ratio: by a named rule, by patterns of names, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from paceline.errors import UserError
from paceline.names import did_you_mean

Exclude = str | Sequence[str] | Callable[[str, Tensor], bool]
"""A rule's name, patterns of names such as ``["*.bias", "head.*"]``, or ``f(name, tensor) -> bool``."""

RULES: Mapping[str, Callable[[str, Tensor], bool]] = {
    "biases-and-norms": lambda name, tensor: tensor.ndim <= 1,
    "none": lambda name, tensor: False,
}
"""``biases-and-norms``: tensors of at most one dimension, which biases and the parameters of normalisation layers are (as in
MLPerf's skip list); ``none``: every tensor has both (as in apex's use_nvlamb)."""
DEFAULT_RULE = "biases-and-norms"


def check_rule(rule: Exclude, named: bool) -> None:
    """Raise UserError for an unknown rule, or for patterns if the parameters have no names."""
    if callable(rule):
        return
    if isinstance(rule, str):
        if rule not in RULES:
            near = did_you_mean(rule, RULES, 1)[0]
            raise UserError(
                f"unknown exclusion rule {rule!r}; legal: {', '.join(RULES)}",
                f"did you mean {near!r}? A pattern of names goes into a list: exclude=[{rule!r}]",
            )
    elif not isinstance(rule, Sequence) or not all(isinstance(pattern, str) for pattern in rule):
        raise UserError(f"exclude={rule!r}; legal: a rule's name, a list of patterns, or a function of (name, tensor)")
    elif not named:
        raise UserError(
            f"exclude={list(rule)!r} asks for names, and the parameters have none",
            "pass model.named_parameters() instead of model.parameters()",
        )


def is_excluded(rule: Exclude, name: str, tensor: Tensor) -> bool:
    """Return whether the rule excludes this tensor."""
    if isinstance(rule, str):
        return RULES[rule](name, tensor)
    if callable(rule):
        return bool(rule(name, tensor))
    return any(fnmatchcase(name, pattern) for pattern in rule)


def check_patterns_match(rules: Sequence[Exclude], names: Sequence[str]) -> None:
    """Raise UserError for a pattern that matches no name, because a misspelt one would silently exclude nothing."""
    for rule in rules:
        if isinstance(rule, str) or callable(rule):
            continue
        for pattern in rule:
            if not any(fnmatchcase(name, pattern) for name in names):
                near = did_you_mean(pattern, names, 3)
                raise UserError(f"the pattern {pattern!r} in exclude matches no parameter", f"nearest names: {', '.join(near)}")
