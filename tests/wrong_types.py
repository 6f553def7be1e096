"""Values of types that a caller may give by mistake."""

from __future__ import annotations

from typing import Any

_VALUES: tuple[Any, ...] = (
    None,
    3,
    1.5,
    "8",
    b"ddp",
    [1],
    ["dense"],
    (1,),
    {},
    {"a": 1},
    {1},
    object(),
    float("nan"),
    10**5000,  # Python refuses to print it
)


def wrong_types(*legal: type) -> list[Any]:
    """All of them but those of the ``legal`` types."""
    return [value for value in _VALUES if not isinstance(value, legal)]
