"""The wire formats. ``codecs.get(name)`` is the way in; ``docs/wire-format.md`` is the specification."""

from __future__ import annotations

from typing import Any

from paceline.codecs.ternary import PayloadError, Ternary
from paceline.errors import unknown

_CODECS = {"ternary": Ternary}


def names() -> list[str]:
    """Every codec's name."""
    return sorted(_CODECS)


def get(name: str, **options: Any) -> Ternary:
    """The codec of that name. Raises UserError naming the nearest for an unknown one; TypeError for an unknown option."""
    if name not in _CODECS:
        raise unknown("codec", name, _CODECS)
    return _CODECS[name](**options)


__all__ = ["PayloadError", "Ternary", "get", "names"]
