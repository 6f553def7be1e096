"""Conversion of units at the edges: text such as ``100Gb/s`` in, SI floats inside, three significant digits out.

Inside Paceline a size is in bytes, a time in seconds, a bandwidth in bytes per second *per direction*, a compute
rate in FLOP/s (a multiply-add is two). A small ``b`` is a bit and a capital ``B`` a byte, as the standards have it.
"""

from __future__ import annotations

import math
import re

from paceline.errors import UserError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_QUANTITY = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(Ki|Mi|Gi|Ti|[kKMGTPE]?)\s*([A-Za-z/]*)\s*$")
_TIME = "100us, 1.5ms or 6h"
_SECONDS = {
    unit: seconds
    for units, seconds in (
        ("s sec secs second seconds", 1.0),
        ("ms msec milliseconds", 1e-3),
        ("us µs μs microseconds", 1e-6),
        ("ns nanoseconds", 1e-9),
        ("m min mins minute minutes", 60.0),
        ("h hr hrs hour hours", 3600.0),
        ("d day days", 86400.0),
        ("year years", 365.25 * 86400.0),
    )
    for unit in units.split()
}
_UNITS = "|".join(sorted(_SECONDS, key=len, reverse=True))
_PART = re.compile(rf"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*({_UNITS})(?![a-zµμ])", re.IGNORECASE)
_DURATION = re.compile(rf"\s*(?:{_PART.pattern}\s*,?\s*)+", re.IGNORECASE)
_COUNTS = {
    unit: count
    for units, count in (
        ("", 1.0),
        ("k thousand", 1e3),
        ("m mn million", 1e6),
        ("b bn g billion", 1e9),
        ("t tn trillion", 1e12),
    )
    for unit in (units.split() or [""])
}
_COUNT = re.compile(rf"\s*(-?[0-9][0-9,_]*(?:\.[0-9]+)?(?:e\+?[0-9]+)?|\.[0-9]+)\s*({'|'.join(_COUNTS)})\s*", re.IGNORECASE)
_CURRENCY = re.compile(r"^\s*(?:\$|usd\b)|(?:\$|usd|dollars?)\s*$", re.IGNORECASE)
_TOKENS = re.compile(r"\s*([1-9][0-9]*(?:[,_][0-9]{3})*)\s*([kKmM]i?)?\s*(?:tokens)?\s*")


def _parse(text: str, units: dict[str, float], kind: str, example: str, zero: bool = False) -> float:
    match = _QUANTITY.match(text)
    if match is None or match[3] not in units:
        raise UserError(f"{text!r} is not a {kind}", f"write it as {example}")
    value = float(match[1]) * ({**_DECIMAL, **_BINARY}[match[2]]) * units[match[3]]
    return _checked(value, text, kind, example, zero)


def _checked(value: float, text: str, kind: str, example: str, zero: bool) -> float:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise UserError(f"{text!r} is not a {'' if zero else 'positive '}{kind}", f"write it as {example}")
    return value


def parse_bandwidth(text: str) -> float:
    """Parse ``"10Gb/s"``, ``"10Gbps"`` or ``"1.25GB/s"`` to bytes per second in one direction. Raises UserError otherwise."""
    units = {"b/s": 0.125, "bps": 0.125, "bit/s": 0.125, "B/s": 1.0, "Bps": 1.0}
    return _parse(text, units, "bandwidth", "10Gb/s (bits) or 1.25GB/s (bytes)")


def parse_bytes(text: str, zero: bool = False) -> float:
    """Parse ``"25MiB"`` or ``"1.7MB"`` to bytes; with ``zero``, ``"0GB"`` is legal too. Raises UserError otherwise."""
    return _parse(text, {"B": 1.0, "b": 0.125}, "size", "25MiB or 26.2MB", zero)


def parse_seconds(text: str, zero: bool = False) -> float:
    """Parse ``"100us"``, ``"90min"``, ``"2 hours"``, ``"3d"`` or a sum as ``"1h 30min"`` to seconds; ``m`` is a minute.

    It parses the output of ``format_seconds``; ``zero``: ``"0s"`` is legal too. Raises UserError otherwise.
    """
    if _DURATION.fullmatch(text) is None:
        return _parse(text, {"s": 1.0}, "time", _TIME, zero)
    value = sum(float(number) * _SECONDS[unit.casefold()] for number, unit in _PART.findall(text))
    return _checked(value, text, "time", _TIME, zero)


def parse_count(text: str) -> float:
    """Parse ``"15T"``, ``"1.2M"``, ``"300 billion"``, ``"1,281,167"`` or ``"2e6"`` to a number; ``B`` is a billion.

    Raises:
        UserError: anything else, such as a number with a unit, or one that is not finite.
    """
    match = _COUNT.fullmatch(text)
    value = float(match[1].replace(",", "").replace("_", "")) * _COUNTS[match[2].casefold()] if match else math.nan
    if not math.isfinite(value):
        raise UserError(f"{text!r} is not a count", "write it as 1200000, 1.2M or 15T")
    return value


def parse_dollars(text: str) -> float:
    """Parse ``$500``, ``500``, ``1.5k`` or ``50 dollars`` to a budget above 0. Raises UserError otherwise."""
    try:
        amount = parse_count(_CURRENCY.sub("", text))
    except UserError:
        amount = 0.0
    if amount <= 0:
        raise UserError(f"budget {text!r} is not an amount of dollars", "write it as 500 or $1.5k")
    return amount


def parse_tokens(text: str) -> int:
    """Parse the tokens of a sequence: ``512``, or ``4k``, ``128k`` and ``1M`` in powers of 1,024, as in names of models.

    Raises:
        UserError: anything else.
    """
    match = _TOKENS.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} is not a length of a sequence", "write it as 512, 4096 or 4k")
    return int(match[1].replace(",", "").replace("_", "")) * (1024 ** " km".index(match[2][0].casefold()) if match[2] else 1)


def _scaled(value: float, unit: str, steps: tuple[tuple[float, str], ...]) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {unit}"
    scale, prefix = next((s for s in steps if abs(value) >= s[0] * 0.9995), steps[-1])
    return f"{digits3(value / scale)} {prefix}{unit}"


def digits3(value: float) -> str:
    """Format three significant digits, never in exponent form: 0.0123, 1.23, 12.3, 123, 1230."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{float(f'{value:.3g}'):.{places}f}"


_UP = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_YEAR = 365.25 * 86400
_DOWN = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def format_bytes(value: float) -> str:
    """Format decimal bytes: ``1.72 MB``."""
    return _scaled(value, "B", _UP)


def format_memory(value: float) -> str:
    """Format binary bytes, as memory is sold: ``80.0 GiB``. Larger amounts keep GiB, to compare them with a device."""
    return _scaled(value, "B", ((2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, "")))


def format_gib(value: float) -> str:
    """Format GiB of any size, such as a missing amount: ``0.250 GiB``."""
    return f"{digits3(value / 2**30)} GiB"


def format_bandwidth(value: float) -> str:
    """Format bytes per second in one direction as bits, as networks are sold: ``10.0 Gb/s``."""
    return _scaled(value * 8, "b/s", _UP)


def format_byte_rate(value: float) -> str:
    """Format bytes per second, as memories and NVLink are sold: ``300 GB/s``."""
    return _scaled(value, "B/s", _UP)


def format_flops(value: float) -> str:
    """Format FLOP/s: ``312 TFLOP/s``."""
    return _scaled(value, "FLOP/s", _UP)


def format_count(value: float) -> str:
    """Format a count such as parameters or FLOPs: ``431 k``; a whole number below a thousand is unchanged."""
    if abs(value) < 1000 and value == int(value):
        return f"{value:.0f}"
    return _scaled(value, "", _UP).rstrip()


def format_seconds(value: float) -> str:
    """Format a time: ``12.3 ms`` and ``119 s`` with three digits; from two minutes ``2.5 min`` and ``46 min``, from two hours
    ``3 h 26 min``, from two days ``4 d 2 h``, from two months ``75 d``, from two years ``2.50 years``.

    Digits suit predictions: the rounding error is at most 2.5 % from two minutes on, and 5 % from ten minutes on.
    """
    if not math.isfinite(value) or value < 119.5:
        return _scaled(value, "s", _DOWN)
    if value < 119.5 * 60:
        return f"{_two_digits(value / 60)} min"
    if value < 47.5 * 3600:
        return _in_two(value / 60, "h", 60, "min")
    if value < 59.5 * 86400:
        return _in_two(value / 3600, "d", 24, "h")
    return f"{value / 86400:.0f} d" if value < 729.5 * 86400 else f"{digits3(value / _YEAR)} years"


def format_seconds_range(low: float, high: float, like: float) -> str:
    """Format a range of seconds, ``36-92 min``, with both ends in the largest unit of ``format_seconds(like)``."""
    unit = format_seconds(like).split()[1]
    digits = digits3 if unit.endswith("s") else _two_digits
    ends = [digits(end / _SECONDS[unit]) for end in (low, high)]
    return f"{'-'.join(ends)} {unit}"


def _in_two(smaller: float, unit: str, parts: int, part: str) -> str:
    """Format a number of the smaller unit in two units: ``3 h 26 min``, ``6 h``."""
    whole, rest = divmod(round(smaller), parts)
    return f"{whole} {unit} {rest} {part}" if rest else f"{whole} {unit}"


def _two_digits(value: float) -> str:
    """Format a number with at least two digits: ``0.012``, ``2.5``, ``46``, ``115``."""
    return f"{value:.0f}" if value >= 9.95 else f"{float(f'{value:.2g}'):g}"
