"""Legal values of a choice, with their checks, their parsing, and their form on the command line."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Protocol

from paceline.errors import LARGEST_COUNT, UserError, check_count, check_flag, check_name, known_name, shown, unknown
from paceline.names import NO_ALIASES
from paceline.strategy.choices.values import chosen, plain
from paceline.units import parse_bytes

_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class LegalValues(Protocol):
    """Legal values of a choice.

    Attributes:
        counted: True if a value can be counted up and down: ``tensor+1``.
        argument_type: type of the command line's option; None for text.
        objects: True if legal values are objects with names; JSON has the names.
    """

    counted: ClassVar[bool] = False
    argument_type: ClassVar[type[int] | type[float] | None] = None
    objects: ClassVar[bool] = False

    @abstractmethod
    def check(self, value: Any, name: str) -> Any:
        """Return the legal value that ``value`` means. Raises UserError for an illegal one."""

    @abstractmethod
    def parse(self, text: str, name: str) -> Any:
        """Return the value that ``text`` means. Raises UserError for an illegal one."""

    def from_argument(self, value: Any) -> Any:
        """Return the value that an option's parsed argument means."""
        return value

    def to_argument(self, value: Any) -> Any:
        """Return a value as the option's parsed argument."""
        return value

    @property
    def names(self) -> Collection[str]:
        """Legal names or numbers, if they are few."""
        return ()

    @property
    def least(self) -> int:
        """Smallest legal number."""
        return 1


@dataclass(frozen=True, slots=True)
class WholeNumber(LegalValues):
    """A whole number from ``least`` up. ``unit``: what is counted, in the plural."""

    unit: str
    minimum: int = 1
    counted: ClassVar[bool] = True
    argument_type: ClassVar[type[int] | type[float] | None] = int

    def check(self, value: Any, name: str) -> int:
        if type(value) is int and self.minimum <= value <= LARGEST_COUNT:
            return value  # usual case
        return check_count(value, self.unit, self.minimum)

    def parse(self, text: str, name: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = self.minimum - 1
        if number < self.minimum:
            raise UserError(f"{name} {text!r} is not a whole number from {self.minimum} up", f"write it as {name}=8")
        return number

    @property
    def least(self) -> int:
        return self.minimum


@dataclass(frozen=True, slots=True)
class Bits(LegalValues):
    """One of a few bit widths. ``fix``: advice in an error."""

    legal: tuple[int, ...]
    fix: str = ""
    counted: ClassVar[bool] = True
    argument_type: ClassVar[type[int] | type[float] | None] = int

    def check(self, value: Any, name: str) -> int:
        if isinstance(value, bool | float) or value not in self.legal:
            raise UserError(f"{name}={shown(value)}", self.fix or f"give one of {', '.join(self.names)}")
        return int(value)

    def parse(self, text: str, name: str) -> int:
        if text not in self.names:
            raise UserError(f"{name}={shown(text)}", self.fix or f"give one of {', '.join(self.names)}")
        return int(text)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.legal))

    @property
    def least(self) -> int:
        return min(1, *self.legal)


@dataclass(frozen=True, slots=True)
class RealNumber(LegalValues):
    """A finite number from ``low`` to ``high``, or None if ``optional``."""

    low: float
    high: float
    optional: bool = False
    fix: str = ""
    argument_type: ClassVar[type[int] | type[float] | None] = float

    def check(self, value: Any, name: str) -> float | None:
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, Real) or not self.low <= float(value) <= self.high < math.inf:
            raise UserError(f"{name}={shown(value)}", self.fix or f"give a number from {self.low:g} to {self.high:g}")
        return float(value)

    def parse(self, text: str, name: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{name} {text!r} is not a number", f"write it as {name}=1.2") from None


@dataclass(frozen=True, slots=True)
class ByteSize(LegalValues):
    """A number of bytes, at least one. ``unit``: its name in errors."""

    unit: str

    def check(self, value: Any, name: str) -> int:
        return check_count(value, self.unit)

    def parse(self, text: str, name: str) -> int:
        return int(parse_bytes(text))

    def from_argument(self, value: str) -> int:
        return int(parse_bytes(value))

    def to_argument(self, value: int) -> str:
        return f"{value / (1 << 20):g}MiB"


@dataclass(frozen=True, slots=True)
class Flag(LegalValues):
    """True or False."""

    def check(self, value: Any, name: str) -> bool:
        check_flag(value, name)
        return bool(value)

    def parse(self, text: str, name: str) -> bool:
        if text.lower() not in _FLAGS:
            raise unknown(name, text, ["yes", "no"])
        return _FLAGS[text.lower()]


@dataclass(frozen=True, slots=True)
class Name(LegalValues):
    """One name of a short list.

    Attributes:
        title: its name in errors.
        legal: the names; a mapping's keys.
        aliases: other names, and the legal ones that they mean. ``listed``: aliases that an error lists too.
        exact: True if capitals and separators must be as in ``legal``.
        optional: True if the empty text is legal and leaves the choice to its rule.
        few: most names that an error lists.
    """

    title: str
    legal: Collection[str]
    aliases: Mapping[str, str] = field(default_factory=lambda: NO_ALIASES)
    listed: tuple[str, ...] = ()
    exact: bool = False
    optional: bool = False
    few: int = 6

    def check(self, value: Any, name: str) -> str:
        if type(value) is str and (value in self.legal or (self.optional and not value)):
            return value  # usual case: skips the aliases
        if self.exact:
            check_name(self.title, value, self.legal)
            return str(value)
        meant = known_name(self.title, value, (*self.legal, *self.listed), self.aliases, few=self.few)
        return self.aliases.get(meant, meant)

    def parse(self, text: str, name: str) -> str:
        return known_name(name, text, tuple(self.legal), self.aliases)

    @property
    def names(self) -> Collection[str]:
        return self.legal


@dataclass(frozen=True, slots=True)
class OneOf(Name):
    """One value of a family, given as itself or by name. ``legal``: the values by name.

    Attributes:
        empty: meaning of the empty text; None if it is illegal.
    """

    empty: Any = None
    objects: ClassVar[bool] = True

    def check(self, value: Any, name: str) -> Any:
        values: Mapping[str, Any] = self.legal  # type: ignore[assignment]
        if not isinstance(value, str):
            return value if value is self.empty is not None else chosen(self.title, value, values)
        if value == "" and self.empty is not None:
            return self.empty
        return values[value if value in values else Name.check(self, value, name)]

    def to_argument(self, value: Any) -> Any:
        return plain(value)


@dataclass(frozen=True, slots=True)
class Parsed(LegalValues):
    """A value checked and parsed by one function. ``legal``: its plain names."""

    read: Callable[[Any], Any]
    legal: tuple[str, ...] = ()
    objects: ClassVar[bool] = True

    def check(self, value: Any, name: str) -> Any:
        return self.read(value)

    def parse(self, text: str, name: str) -> Any:
        return plain(self.read(text))

    def to_argument(self, value: Any) -> Any:
        return plain(value)

    @property
    def names(self) -> tuple[str, ...]:
        return self.legal


@dataclass(frozen=True, slots=True)
class PartOption:
    """Option of the command line for a part of a compound value.

    Attributes:
        name: name without dashes. ``metavar``: name of its value.
        argument_type: type of the option; None for text.
        repeated: True if it may be given several times.
    """

    name: str
    metavar: str
    help: str
    argument_type: type[int] | None = None
    repeated: bool = False

    @property
    def dest(self) -> str:
        """Name of the option's value among parsed arguments."""
        return self.name.replace("-", "_")


def _no_text(given: str | Sequence[Any], owner: Callable[[], Any]) -> Any:
    raise UserError("this choice has no options", "give it in Python")


@dataclass(frozen=True, slots=True)
class Compound(LegalValues):
    """A value of several parts, checked by its owner. Its one text is the cell of a table of jobs.

    Attributes:
        options: options of its parts.
        read: returns the value from the parts' parsed arguments, None for parts that are not given, and a function that returns
            the owner that they change.
        read_text: returns the value from its text and such a function. ``write`` is the inverse.
    """

    options: tuple[PartOption, ...] = ()
    read: Callable[[Sequence[Any], Callable[[], Any]], Any] = _no_text
    read_text: Callable[[str, Callable[[], Any]], Any] = _no_text
    write: Callable[[Any], str] = str

    def check(self, value: Any, name: str) -> Any:
        return value

    def parse(self, text: str, name: str) -> Any:
        raise UserError(f"{name} has no single text", "give it in Python, or by the options of its parts")

    def to_argument(self, value: Any) -> str:
        return self.write(value)
