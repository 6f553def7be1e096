"""How gradients travel, the same for a prediction and for training."""

from __future__ import annotations

import argparse

from paceline.strategy.compression import COMPRESSIONS
from paceline.strategy.exchange import EXCHANGES


def add_exchange_arguments(parser: argparse.ArgumentParser) -> None:
    """The compression, its parameters, and the exchange."""
    options = {option.name: option for c in COMPRESSIONS.values() for option in c.options}
    taken = [f"{name} ({', '.join(c.name for c in COMPRESSIONS.values() if name in c.option_values)})" for name in options]
    parser.add_argument("--compression", metavar="C", help=f"{', '.join(COMPRESSIONS)} (default dense)")
    parser.add_argument("--exchange", metavar="X", help=f"{', '.join(EXCHANGES)} (default: the compression's)")
    parser.add_argument(
        "--option",
        metavar="NAME=NUMBER",
        action="append",
        help=f"a parameter of the compression, such as bound=2^-7; may be repeated: {'; '.join(taken)}",
    )
