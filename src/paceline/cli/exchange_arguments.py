"""How gradients travel and how often, the same for a prediction and for training."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from paceline.errors import UserError
from paceline.strategy import CLIP, ONE_WAY, PLACES, DenseRule, GradientExchange, parse_options
from paceline.strategy.compression import COMPRESSIONS
from paceline.strategy.exchange import EXCHANGES
from paceline.strategy.local_steps import MIXING, OUTER_LR, OUTER_MOMENTUM


def add_exchange_arguments(parser: argparse.ArgumentParser) -> None:
    """The compression, its parameters, and the exchange."""
    options = {option.name: option for c in COMPRESSIONS.values() for option in c.options}
    taken = [f"{name} ({', '.join(c.name for c in COMPRESSIONS.values() if name in c.option_values)})" for name in options]
    parser.add_argument("--compression", metavar="C", help=f"{', '.join(COMPRESSIONS)} (default dense)")
    parser.add_argument("--exchange", metavar="X", help=f"{', '.join(EXCHANGES)} (default: the compression's)")
    place = f"where the codec works: {', '.join(PLACES)}, the network card (default: where the gradients live)"
    parser.add_argument("--codec-at", metavar="PLACE", help=place)
    add_bits_arguments(parser)
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
    pull = f"send sums back as fp32 ({', '.join(ONE_WAY)})"
    parser.add_argument("--no-compress-pull", dest="compress_pull", action="store_false", default=None, help=pull)
    ranks = "ranks of a node, for hierarchical (default: the cluster's)"
    parser.add_argument("--ranks-per-node", metavar="N", type=int, help=ranks)
    every = "steps that each worker takes alone before the workers exchange how far they have come (default 1: gradients)"
    parser.add_argument("--sync-every", metavar="H", type=int, help=every)
    turns = "with --sync-every: parts of the network that are exchanged in turn (default 1)"
    parser.add_argument("--fragments", metavar="F", type=int, help=turns)
    beside = "with --sync-every: steps that an exchange runs beside (default 0: workers wait for it)"
    parser.add_argument("--sync-delay", metavar="D", type=int, help=beside)
    share = f"with --sync-delay: share of a worker's own weights in what it goes on from (default {MIXING:g})"
    parser.add_argument("--mixing", metavar="A", type=float, help=share)
    outer = f"with --sync-every: rate of the outer step; 1 without momentum is Local SGD (default {OUTER_LR:g})"
    parser.add_argument("--outer-lr", metavar="RATE", type=float, help=outer)
    nesterov = f"with --sync-every: Nesterov momentum of the outer step (default {OUTER_MOMENTUM:g})"
    parser.add_argument("--outer-momentum", metavar="M", type=float, help=nesterov)


def add_bits_arguments(parser: argparse.ArgumentParser) -> None:
    """How residuals are kept, and how what is not compressed travels."""
    keeps = ", ".join(name for name, c in COMPRESSIONS.items() if c.error_feedback)
    bits = f"bits of a residual between exchanges ({keeps}): 32, or 16 for bfloat16 by stochastic rounding (default 32)"
    parser.add_argument("--residual-bits", metavar="N", type=int, help=bits)
    lies = "where residuals lie between exchanges: host, its memory (default: where the codec works)"
    parser.add_argument("--residuals-at", metavar="PLACE", help=lies)
    rest = "bits of what is not compressed, such as dense tensors and PowerSGD's factors: 32, or 16 for bfloat16 (default 32)"
    parser.add_argument("--dense-bits", metavar="N", type=int, help=rest)


def exchange_choices(o: argparse.Namespace, before: GradientExchange | None = None) -> dict[str, Any]:
    """The choices that were given, as ``Strategy.of`` names them. Raises UserError.

    Args:
        before: the exchange that they change, if any.
    """
    base = before or GradientExchange()
    choices = {name: getattr(o, name) for name in _PLAIN}
    choices = {name: value for name, value in choices.items() if value is not None}
    if o.option is not None:
        choices["options"] = parse_options(o.option)
    if o.clip is not None:
        choices["clip"] = _clip(o.clip)
    if o.min_elements is not None or o.dense:
        compression = choices.get("compression", base.compression)
        rule = base.dense_rule if compression == base.compression else GradientExchange(compression).dense_rule
        rule = rule or DenseRule()
        least = rule.min_elements if o.min_elements is None else o.min_elements
        choices["dense_rule"] = replace(rule, min_elements=least, names=tuple(o.dense or rule.names))
    return choices


_PLAIN = (
    *("compression", "exchange", "codec_at", "compress_pull", "ranks_per_node"),
    *("residual_bits", "residuals_at", "dense_bits"),
    *("sync_every", "fragments", "sync_delay", "mixing", "outer_lr", "outer_momentum"),
)


def _clip(text: str) -> float | None:
    if text.casefold() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--clip {text}", "give standard deviations, such as 2.5, or none") from None
