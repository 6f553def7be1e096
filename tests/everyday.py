"""Selection of the cases of a test that run every day; its other cases are of the same kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["cases_of", "mark_the_rest_full"]


def cases_of(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the parameters of each selected test that takes the requested fixture, so that it makes only what they look at."""
    here = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    specs = [getattr(item, "callspec", None) for item in here if request.fixturename in item.fixturenames]
    return [spec.params if spec else {} for spec in specs]


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
