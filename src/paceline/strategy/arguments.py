"""The words of a strategy on a command line, the same for a prediction and for training."""

from __future__ import annotations

import argparse

from paceline.strategy.compression import COMPRESSIONS
from paceline.strategy.compression_options import Option
from paceline.strategy.exchange import EXCHANGES


def add_exchange_arguments(parser: argparse.ArgumentParser) -> None:
    """How gradients travel."""
    taken = [f"{o.name} ({', '.join(c.name for c in COMPRESSIONS.values() if o.name in c.option_values)})" for o in _options()]
    parser.add_argument("--compression", metavar="C", help=f"{', '.join(COMPRESSIONS)} (default dense)")
    parser.add_argument("--exchange", metavar="X", help=f"{', '.join(EXCHANGES)} (default: the compression's)")
    parser.add_argument(
        "--option",
        metavar="NAME=NUMBER",
        action="append",
        help=f"a parameter of the compression, such as bound=2^-7; may be repeated: {'; '.join(taken)}",
    )


def _options() -> list[Option]:
    """Every option of any compression, once."""
    return list({o.name: o for c in COMPRESSIONS.values() for o in c.options}.values())
