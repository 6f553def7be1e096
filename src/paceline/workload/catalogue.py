"""Workloads by name: tables that come with the package, read without torch; or ``module:function``, traced."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from paceline.errors import unknown
from paceline.workload.factory import load_factory
from paceline.workload.layers import Workload
from paceline.workload.trace import trace

_ZOO = files("paceline.workload") / "zoo"


@cache
def names() -> tuple[str, ...]:
    """The names that come with the package, sorted."""
    return tuple(sorted(entry.name.removesuffix(".json") for entry in _ZOO.iterdir() if entry.name.endswith(".json")))


def workload(name: str) -> Workload:
    """The layer table of a named network, or of the one that ``module:function`` returns (this needs torch).

    Raises:
        UserError: an unknown name, with the nearest ones; or what ``load_factory`` and ``trace`` raise.
    """
    if ":" in name:
        return trace(load_factory(name), name=name, source=name)
    if name not in names():
        raise unknown("workload", name, names(), "a network of your own is module:function")
    return _table(name)


@cache
def _table(name: str) -> Workload:
    return Workload.from_json(json.loads((_ZOO / f"{name}.json").read_text(encoding="utf-8")))
