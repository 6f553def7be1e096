"""Values of choices: small named objects that implement the choice.

A value is looked up by its name (``EXCHANGES["ring"]``) and prints as its name. The command line, JSON and tables use names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from paceline.errors import known_name, unknown
from paceline.names import NO_ALIASES

V = TypeVar("V")
PLAIN_TYPES = (str, int, float, type(None))


class NamedChoice:
    """Object that equals its name and formats like it, so scripts that compare or print names keep their meaning."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Name of the object as the user writes it."""

    else:  # a type checker refuses comparisons with names: the package itself compares values

        def __eq__(self, other: object) -> bool:
            if isinstance(other, str):
                return other == self.name
            return self is other or (type(other) is type(self) and other.name == self.name)

        def __hash__(self) -> int:
            return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


class Value(NamedChoice):
    """Legal value of a choice; each class has one object.

    A family is a direct subclass. Each final class of a family registers its only object under its name in ``known``.
    """

    __slots__ = ()
    name: ClassVar[str]
    known: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if Value in cls.__bases__:
            cls.known = {}

    def __new__(cls) -> Self:
        """Return the only object of the class, and register it on the first call."""
        value = cls.known.get(cls.name)
        if value is None:
            value = cls.known[cls.name] = super().__new__(cls)
        assert isinstance(value, cls), f"two classes are called {cls.name}"
        return value

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ByName(Generic[V]):
    """Type of a field that holds a value and accepts its name, for type checkers only."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: object) -> V: ...
        @overload
        def __get__(self, instance: object, owner: object) -> V: ...
        def __get__(self, instance: object, owner: object) -> V: ...
        def __set__(self, instance: object, value: V | str) -> None: ...


def chosen(kind: str, value: object, legal: Mapping[str, V], aliases: Mapping[str, str] = NO_ALIASES) -> V:
    """Return the value that a user means.

    Args:
        kind: kind of the value, for the error.
        value: a value, or its name in any case, with any separators, or an alias of it.

    Raises:
        UserError: no such value, with the nearest one.
    """
    if isinstance(value, str):
        found = legal.get(value)
        return legal[known_name(kind, value, legal, aliases)] if found is None else found
    found = legal.get(getattr(value, "name", ""))
    if found is None or found != value:
        raise unknown(kind, value, legal)
    return found


def plain(value: object) -> object:
    """Return the name of a value, for JSON and tables. Anything else is returned unchanged."""
    return value if isinstance(value, PLAIN_TYPES) else getattr(value, "name", value)
