"""Selection of the cases of a test that run every day; its other cases are of the same kind."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

__all__ = ["mark_the_rest_full"]


def mark_the_rest_full(items: Iterable[pytest.Item]) -> list[str]:
    """Mark as ``full`` each case that ``everyday("id", ...)`` of its test does not name; as ``long`` with ``others="long"``.

    Returns:
        Tests that have none of the cases that they name.
    """
    ids: dict[str, tuple[set[str], set[str]]] = {}
    for item in items:
        mark = item.get_closest_marker("everyday")
        if mark is not None:
            name, _, rest = item.nodeid.partition("[")
            case = rest.removesuffix("]")
            ids.setdefault(name, (set(mark.args), set()))[1].add(case)
            if case not in mark.args:
                item.add_marker(mark.kwargs.get("others", "full"))
    return [name for name, (named, found) in ids.items() if len(found) > 1 and not named & found]
