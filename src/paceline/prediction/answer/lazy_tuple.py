"""Tuple that is computed on first access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T", covariant=True)


class Lazy(Sequence[T], Generic[T]):
    """A tuple that is computed on first access."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], tuple[T, ...]]) -> None:
        self._make: Callable[[], tuple[T, ...]] = make
        self._made: tuple[T, ...] | None = None

    def whole(self) -> tuple[T, ...]:
        """All elements as a tuple."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.whole()[index]

    def __len__(self) -> int:
        return len(self.whole())

    def __eq__(self, other: object) -> bool:
        return self.whole() == (other.whole() if isinstance(other, Lazy) else other)

    def __hash__(self) -> int:
        return hash(self.whole())

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[type[tuple[T, ...]], tuple[tuple[T, ...]]]:
        return tuple, (self.whole(),)


def lazy(make: Callable[[], tuple[Any, ...]]) -> Any:
    """Return a ``Lazy`` for a field that is typed as a tuple."""
    return Lazy(make)
