"""Parameters of a compression: what it takes, what is legal, and the text ``name=value`` of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, log2

from paceline.errors import UserError, unknown

Given = Mapping[str, float] | Iterable[tuple[str, float]]
Values = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One parameter. ``whole``: an integer; ``power``: a power of two. Legal from ``least`` to ``most``."""

    name: str
    default: float
    least: float
    most: float
    text: str
    whole: bool = False
    power: bool = False

    def check(self, value: object, owner: str) -> float:
        """``value`` as a legal number. Raises UserError naming what is legal."""
        kind = "a power of two" if self.power else "a whole number" if self.whole else "a number"
        wrong = UserError(
            f"{self.name} {value:g} of {owner}" if isinstance(value, float) else f"{self.name} {value} of {owner}",
            f"give {kind} from {self.least:g} to {self.most:g} (default {self.default:g})",
        )
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise wrong
        if not self.least <= value <= self.most or (self.whole and value != int(value)):
            raise wrong
        if self.power and not log2(value).is_integer():
            raise wrong
        return int(value) if self.whole else float(value)


def resolve(given: Given, options: tuple[Option, ...], owner: str) -> Values:
    """What was ``given``, checked and in the order of ``options``. Raises UserError for an unknown name or an illegal value."""
    pairs = list(given.items()) if isinstance(given, Mapping) else [(str(name), value) for name, value in given]
    known = {option.name: option for option in options}
    for name, _ in pairs:
        if name not in known:
            if not known:
                raise UserError(f"{owner} takes no option, {name!r} was given", "leave it out")
            raise unknown(f"option of {owner}", name, known)
    values = dict(pairs)
    return tuple((o.name, o.check(values[o.name], owner)) for o in options if o.name in values)


def parse_options(texts: Iterable[str]) -> dict[str, float]:
    """``["bound=0.0078", "block=256"]`` as numbers; ``2^-7`` is one too. Raises UserError for anything else."""
    values: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            base, power, exponent = number.partition("^")
            values[name.strip()] = float(base) ** float(exponent) if power else float(number)
        except (ValueError, OverflowError, ZeroDivisionError, TypeError):
            equals = ""
        if not equals or not name.strip():
            raise UserError(f"--option {text!r} is not NAME=NUMBER", "write it as bound=0.0078 or bound=2^-7")
    return values
