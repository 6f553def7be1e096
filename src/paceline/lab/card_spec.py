"""Specification of a lab's network cards, as text and as data: ``inceptionn,bound=2^-10:25.6Gb/s``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import log2
from pathlib import Path

from paceline.errors import UserError, unknown
from paceline.units import format_bandwidth, parse_bandwidth

LARGEST_K = {"inceptionn": 15, "inceptionn-scaled": 14}
DEFAULT_K = {"inceptionn": 10, "inceptionn-scaled": 6}
"""Exponents of the bounds that ``strategy`` declares, which a lab does not load. A test compares them."""
RATES = (125.0, 1.25e12)
"""Bytes/s: the slowest and the fastest engine."""
EXAMPLE = "--nic inceptionn, or with more: --nic inceptionn,bound=2^-8:25.6Gb/s"
VARIABLE = "PACELINE_NIC"
"""Specification of a host's card, as text, for every rank there."""
_POWER = re.compile(r"2(?:\^|\*\*)-([0-9]{1,2})")


@dataclass(frozen=True)
class CardSpec:
    """One kind of network card that compresses.

    Attributes:
        codec, k: name of its codec, and the exponent of its error bound ``2**-k``.
        rate: bytes/s of uncompressed values in each direction; None: as fast as the processor.
        engine: path of a shared library that encodes; empty: the C++ codec.
    """

    codec: str
    k: int
    rate: float | None = None
    engine: str = ""

    @property
    def text(self) -> str:
        """Text of all parameters, including defaults, that :func:`parse_card` can read."""
        engine = f",engine={self.engine}" if self.engine else ""
        rate = f":{self.rate * 8 / 1e9:.12g}Gb/s" if self.rate else ""
        return f"{self.codec},bound=2^-{self.k}{engine}{rate}"


def parse_card(text: str) -> CardSpec:
    """Parse ``NAME[,bound=2^-K][,engine=PATH][:RATE]``. Raises UserError for anything else."""
    head, rate = _split_rate(text.strip())
    codec, *options = head.split(",")
    if codec not in LARGEST_K:
        raise unknown("codec of a card", codec, LARGEST_K)
    if rate is not None and not RATES[0] <= rate <= RATES[1]:
        given, least, most = (format_bandwidth(each) for each in (rate, *RATES))
        raise UserError(f"an engine of {given}", f"give {least} to {most}: {EXAMPLE}")
    k, engine = DEFAULT_K[codec], ""
    named = [option.partition("=")[0] for option in options]
    if twice := next((name for name in named if named.count(name) > 1), ""):
        raise UserError(f"{twice} is given more than once: {text}", f"give it once: {EXAMPLE}")
    for option in options:
        name, _, value = option.partition("=")
        if name == "bound":
            k = _parse_bound(value, codec)
        elif name == "engine" and value:
            engine = str(Path(value).absolute())
            if not Path(engine).is_file():
                raise UserError(f"no engine {value}", "give the path of a shared library that paceline nic engine built")
        else:
            raise UserError(f"{option!r} is no option of a card", f"give bound=2^-K, engine=PATH, or a rate: {EXAMPLE}")
    return CardSpec(codec, k, rate, engine)


def card_of_this_host() -> CardSpec | None:
    """Return the card of this process's host, from the environment of ``lab exec``; None without one. Raises UserError as
    ``parse_card``."""
    text = os.environ.get(VARIABLE, "")
    return parse_card(text) if text else None


def _split_rate(text: str) -> tuple[str, float | None]:
    head, colon, tail = text.rpartition(":")
    if not colon or "/" in tail[:1] or ",engine=" in tail:
        return text, None
    try:
        rate = parse_bandwidth(tail)
    except UserError:
        if ",engine=" in head:
            return text, None  # a path may have a colon
        raise
    return head, rate


def _parse_bound(value: str, codec: str) -> int:
    legal = f"a bound of {codec} is 2^-1 to 2^-{LARGEST_K[codec]}"
    if power := _POWER.fullmatch(value):
        k = int(power[1])
    else:
        try:
            number = float(value)
            k = round(-log2(number)) if number > 0 else 0
            k = k if number == 2.0**-k else 0
        except (ValueError, OverflowError):
            k = 0
    if not 1 <= k <= LARGEST_K[codec]:
        raise UserError(f"bound={value}", f"{legal}: {EXAMPLE}")
    return k
