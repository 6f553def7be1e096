"""Options of the gradient exchange, the same for prediction and training."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from paceline.cli.arguments.choice_arguments import OF_EXCHANGE, PREDICTED, given_choices
from paceline.errors import UserError
from paceline.strategy import CLIP, EXCHANGES, DenseRule, Exchange, GradientExchange, parse_options
from paceline.strategy.compression.compressions import COMPRESSIONS


def add_compression_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for parameters of the compression."""
    options = {option.name: option for c in COMPRESSIONS.values() for option in c.options}
    taken = [f"{name} ({', '.join(c.name for c in COMPRESSIONS.values() if name in c.option_values)})" for name in options]
    parser.add_argument(
        "--option",
        metavar="NAME=NUMBER",
        action="append",
        help=f"a parameter of the compression, such as bound=2^-7; may be repeated: {'; '.join(taken)}",
    )
    clip = f"standard deviations at which terngrad clips each tensor, or none (default {CLIP:g})"
    parser.add_argument("--clip", metavar="SIGMAS", help=clip)
    smaller = "tensors with fewer elements stay dense (default: the compression's rule)"
    parser.add_argument("--min-elements", metavar="N", type=int, help=smaller)
    names = "further tensors that stay dense, by a pattern such as *.embedding.*; may be repeated"
    parser.add_argument("--dense", metavar="PATTERN", action="append", help=names)


def named_exchange(o: argparse.Namespace) -> Exchange | None:
    """Return the exchange that an option names; None without one."""
    return EXCHANGES.get(o.exchange) if o.exchange else None


def exchange_choices(o: argparse.Namespace, before: GradientExchange | None = None) -> dict[str, Any]:
    """Return the given choices under the names of ``Strategy.of``. Raises UserError.

    Args:
        before: exchange that the choices change, if any.
    """
    base = before or GradientExchange()
    choices = given_choices(o, (item for item in PREDICTED if item.part in OF_EXCHANGE))
    if o.option is not None:
        choices["options"] = parse_options(o.option)
    if o.clip is not None:
        choices["clip"] = _clip(o.clip)
    if o.min_elements is not None or o.dense:
        compression = choices.get("compression", base.compression.name)
        rule = base.dense_rule if compression == base.compression.name else GradientExchange(compression).dense_rule
        rule = rule or DenseRule()
        least = rule.min_elements if o.min_elements is None else o.min_elements
        choices["dense_rule"] = replace(rule, min_elements=least, names=tuple(o.dense or rule.names))
    return choices


def _clip(text: str) -> float | None:
    if text.casefold() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--clip {text}", "give standard deviations, such as 2.5, or none") from None
