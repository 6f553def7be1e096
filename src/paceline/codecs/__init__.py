"""The wire formats. ``codecs.get(name)`` is the way in; ``docs/wire-format.md`` is the specification."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from paceline.codecs.codec import ADD, SET, SUBTRACT, Codec, decode_into, vector
from paceline.codecs.container import PayloadError
from paceline.codecs.registry import BY_NAME
from paceline.codecs.threads import set_threads, threads
from paceline.errors import UserError, unknown

_TAKES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((Integral,), "a whole number"),
    "float": ((Real,), "a number"),
    "float | None": ((Real, type(None)), "a number or None"),
    "str": ((str,), "a name"),
}
"""By the annotation of a codec's field."""


def names() -> list[str]:
    """Every codec's name."""
    return sorted(BY_NAME)


def get(name: str, **options: Any) -> Codec:
    """The codec of that name; ``backend=`` is ``reference``, ``native`` or ``triton``, by default the fastest that serves.

    Raises:
        UserError: an unknown name or option, with the nearest; an option of another type or outside its range; a backend that
            is not here.
    """
    if not isinstance(name, str) or name not in BY_NAME:
        raise unknown("codec", str(name), BY_NAME)
    kind = BY_NAME[name]
    known = {f.name: str(f.type) for f in fields(kind)}
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of {name}", option, known)
        types, wanted = _TAKES[known[option]]
        if not isinstance(value, types):
            raise UserError(f"option {option} of {name} is {value!r}", f"give {wanted}")
    return kind(**options)


__all__ = [
    "ADD",
    "SET",
    "SUBTRACT",
    "Codec",
    "PayloadError",
    "UserError",
    "decode_into",
    "get",
    "names",
    "set_threads",
    "threads",
    "vector",
]
