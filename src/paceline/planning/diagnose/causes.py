"""Cause of a wrong speed, read from ``causes.toml``: its change of the question, its signs, and how often it occurs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

Reading = Literal["", "each", "total", "sparse", "inverse", "micro"]
HALF = 0.5
"""Thread that is added to each cause's number, so that a cause without threads stays possible."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cause:
    """One cause of a speed other than the predicted one.

    Attributes:
        title: what it is; words in braces are values of the question (``question_values``).
        tries: changes of the question, as ``whatif`` takes them. Each inner tuple is one variant, and each value of a word in
            braces is another.
        predictor: fields of the predictor with other values.
        host: factors on the host's seconds for a kernel. Each is a variant.
        repeats: ``micro steps`` if the changed step runs once for each micro step.
        slows: two factors on the step, or on the seconds for the resources ``of``, between which 80 % of cases lie. ``of``:
            ``step`` or names of resources.
        fallback: True if ``slows`` counts only where no change applies.
        delivers: two rates of a node, between which 80 % of cases lie, that limit the run: of ``images``, and of ``tokens``
            where samples have tokens.
        reading: other reading of the measured number: of one device (``each``) or of ``total``, against the peak with sparsity
            (``sparse``), its ``inverse``, or of a ``micro`` step.
        when: conditions that the question meets (``conditions``).
        needs_memory: True if it takes memory, so that a run that would not hold it has another cause.
        settings: choices that rule it out, mostly, where the user states them.
        usual: conditions that most cases meet. Others weigh less.
        likelier: factors on its weight by condition: it is named more often in threads that meet the condition than in all.
        faster: True if it makes the run faster than predicted.
        waits: resource that the predicted step waits for if the cause is already in the question.
        said: regular expressions of a user's words that hint at it, without case.
        log: texts of a log's lines that show it. ``denied``: those that exclude it.
        sign: how it shows. ``proof``: a command or a run of two minutes that proves it. ``fix``: what helps.
        tokens, images: numbers of public threads that name it, about models of text and of images.
        threads: the first of them.
    """

    name: str
    title: str
    tries: tuple[tuple[str, ...], ...] = ()
    predictor: Mapping[str, Any] = field(default_factory=dict)
    host: tuple[float, ...] = ()
    repeats: str = ""
    slows: tuple[float, ...] = ()
    of: tuple[str, ...] = ()
    fallback: bool = False
    delivers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reading: Reading = ""
    when: tuple[str, ...] = ()
    needs_memory: bool = False
    settings: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    likelier: Mapping[str, float] = field(default_factory=dict)
    faster: bool = False
    waits: str = ""
    said: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    sign: str
    proof: str
    fix: str
    tokens: float
    images: float
    threads: tuple[str, ...] = ()

    def seen(self, images: bool) -> float:
        """Return the number of public threads about such models, and a half."""
        return (self.images if images else self.tokens) + HALF


@cache
def causes() -> Mapping[str, Cause]:
    """Read all causes by name."""
    text = files("paceline.planning.diagnose").joinpath("causes.toml").read_text(encoding="utf-8")
    known = {entry.name for entry in fields(Cause)}
    made: dict[str, Cause] = {}
    for table in tomllib.loads(text)["cause"]:
        assert not table.keys() - known, f"causes.toml, {table['name']}: no field {sorted(table.keys() - known)}"
        values = {key: _frozen(value) for key, value in table.items()}
        if isinstance(values.get("of"), str):
            values["of"] = (values["of"],)
        made[table["name"]] = Cause(**values)
    return MappingProxyType(made)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return MappingProxyType({key: _frozen(entry) for key, entry in value.items()}) if isinstance(value, dict) else value
