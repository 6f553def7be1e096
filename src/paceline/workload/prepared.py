"""Values that keep what was computed from them, such as a network with its tables, parts and exchanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound="Prepared")


class Prepared:
    """Value that keeps the results of functions of it, each with its own choices, as long as it lives."""

    @cached_property
    def results(self) -> defaultdict[Callable[..., Any], dict[Hashable, Any]]:
        """Results of ``once`` and ``once_by``, by function and choices."""
        return defaultdict(dict)


def once_by(
    key: Callable[..., Hashable], most: int = 0
) -> Callable[[Callable[Concatenate[Owner, P], T]], Callable[Concatenate[Owner, P], T]]:
    """Cache a function of a prepared value and further arguments; equal keys give the same object.

    Args:
        key: returns the choices that determine the result, from the further arguments.
        most: most results of one value that are kept; 0: all.
    """

    def decorate(function: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
        @wraps(function)
        def cached(owner: Owner, /, *choices: P.args, **named: P.kwargs) -> T:
            results: dict[Hashable, T] = owner.results[function]
            index = key(*choices, **named)
            if index not in results:
                if most and len(results) >= most:
                    del results[next(iter(results))]
                results[index] = function(owner, *choices, **named)
            return results[index]

        return cached

    return decorate


def once(function: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """Cache a function of a prepared value and hashable choices; equal choices give the same object."""
    return once_by(lambda *choices, **named: (choices, *named.items()))(function)
