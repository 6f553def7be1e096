"""Parameters of a compression: their names, legal values, and the form ``name=value`` of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2, nan
from numbers import Real

from paceline.errors import UserError, check_name, shown

Given = Mapping[str, float] | Iterable[tuple[str, float]]
Values = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One parameter, a number from ``least`` to ``most``.

    Attributes:
        whole, power: True for an integer, for a power of two.
        others: legal values outside of this range.
    """

    name: str
    default: float
    least: float
    most: float
    text: str
    whole: bool = False
    power: bool = False
    others: tuple[float, ...] = ()

    def check(self, value: object, owner: str) -> float:
        """Return ``value`` as a legal number. Raises UserError that names the legal ones."""
        number = _as_number(value)
        if number in self.others:
            return int(number) if self.whole else number
        legal = self.least <= number <= self.most and not (self.whole and number % 1)
        if not legal or (self.power and not log2(number).is_integer()):
            kind = "a power of two" if self.power else "a whole number" if self.whole else "a number"
            text = f"{value:g}" if isinstance(value, float) else shown(value)
            raise UserError(
                f"{self.name} {text} of {owner}",
                f"give {''.join(f'{other:g} or ' for other in self.others)}{kind} from {self.least:g} to {self.most:g} "
                f"(default {self.default:g})",
            )
        return int(number) if self.whole else number


def _as_number(value: object) -> float:
    """Convert a real number, also NumPy's, to float. Anything else becomes NaN."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    except OverflowError:
        return nan


def resolve(options: Given, legal: tuple[Option, ...], owner: str) -> Values:
    """Check ``options`` and put them in the order of ``legal``. Raises UserError for an unknown name or an illegal value."""
    values = _as_dict(options, legal, owner)
    names = [option.name for option in legal]
    for name in values:
        if not legal:
            raise UserError(f"{owner} takes no option, {shown(name)} was given", "leave it out")
        check_name(f"option of {owner}", name, names)
    return tuple((o.name, o.check(values[o.name], owner)) for o in legal if o.name in values)


def _as_dict(options: Given, legal: tuple[Option, ...], owner: str) -> dict[str, float]:
    """Convert a mapping, or pairs of a name and a number, to a dict."""
    try:
        if not isinstance(options, str | bytes):
            return dict(options)
    except (TypeError, ValueError):
        pass
    example = {option.name: option.default for option in legal[:1]}
    raise UserError(f"options of {owner}: {shown(options)}", f"write {example}" if example else "leave them out")


def options_text(values: Given) -> str:
    """Return the texts of ``parse_options``, with commas between them."""
    return ",".join(f"{name}={value!r}" for name, value in dict(values).items())


def parse_options(texts: Iterable[str]) -> dict[str, float]:
    """Parse texts such as ``["bound=0.0078", "block=256"]``. A number may be ``2^-7``. Raises UserError for anything else."""
    values: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            base, power, exponent = number.partition("^")
            values[name.strip()] = float(base) ** float(exponent) if power else float(number)
        except (ValueError, OverflowError, ZeroDivisionError, TypeError):
            equals = ""
        if not equals or not name.strip():
            raise UserError(f"option {text!r} is not NAME=NUMBER", "write it as bound=0.0078 or bound=2^-7")
    return values
