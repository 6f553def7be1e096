"""Facts that files and options state, and how several of them become one answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UserError
from paceline.questions.asked import STATED, Entry
from paceline.questions.readers.source import Source

COMMAND = "the command line"
"""Source of facts that a user typed."""
LINKS = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "config_file", "ds_config")
"""Settings that name a file of DeepSpeed or Accelerate."""


@dataclass(frozen=True, slots=True)
class StatedFact:
    """One statement.

    Attributes:
        name: a name of ``STATED``.
        value: in our words.
        source: name of the file, or ``COMMAND``.
        words: the statement as the source has it.
        rank: of several statements of one source the highest holds.
        added: True if it adds to other facts of the same name, joined by ``+``.
        assumed: True if the source does not say it: another source overrules it silently.
    """

    name: str
    value: Any
    source: str
    words: str
    rank: int = 0
    added: bool = False
    assumed: bool = False

    @property
    def where(self) -> str:
        """The statement with its source."""
        return self.words if self.source == COMMAND else f"{self.source}: {self.words}"


@dataclass(slots=True)
class Reading:
    """Result of reading sources.

    Attributes:
        facts: everything that is understood.
        unknown: keys that are not understood, with their source: ``ds.json: flops_profiler``.
        ignored: keys that do not matter to a prediction.
        notes: sentences on what was assumed.
        links: files that a source names, with the source.
        understood: number of keys that are understood.
    """

    facts: list[StatedFact] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    links: list[tuple[str, Source]] = field(default_factory=list)
    understood: int = 0

    def add(self, other: Reading) -> None:
        """Add what another source says."""
        self.facts += other.facts
        self.unknown += other.unknown
        self.ignored += other.ignored
        self.notes += other.notes
        self.links += other.links
        self.understood += other.understood


def facts_of(entry: Entry, value: object, source: str, words: str) -> Iterator[StatedFact]:
    """Yield what a synonym states with a value. Raises UserError for a value without a meaning."""
    name, rank, synonym = entry
    meant = synonym.read(value)
    if meant is None:
        return
    for stated, ours in (meant if isinstance(meant, Mapping) else {name: meant}).items():
        if ours is not None:
            yield StatedFact(stated, ours, source, words, rank, synonym.added)


def combined(facts: Iterable[StatedFact]) -> tuple[dict[str, StatedFact], list[str]]:
    """Return one fact for each name, and sentences on what was overruled.

    Raises:
        UserError: two files that contradict each other.
    """
    by_name: dict[str, list[StatedFact]] = {}
    for fact in facts:
        by_name.setdefault(fact.name, []).append(fact)
    notes: list[str] = []
    return {name: _one(each, notes) for name, each in by_name.items()}, notes


def _one(facts: list[StatedFact], notes: list[str]) -> StatedFact:
    """Return the fact that holds, by source: what is typed, then files. Raises UserError as ``combined``."""
    stated = [fact for fact in facts if not fact.assumed]
    if not stated:
        return max(facts, key=lambda fact: fact.rank)
    by_source: dict[str, StatedFact] = {}
    for fact in stated:
        before = by_source.get(fact.source)
        if before is not None and fact.added and before.added:
            by_source[fact.source] = _sum(before, fact)
        elif before is None or fact.rank >= before.rank:
            by_source[fact.source] = fact
    typed = by_source.pop(COMMAND, None)
    files = list(by_source.values())
    first = next(iter(files), typed)
    assert first is not None
    other = next((fact for fact in files[1:] if not same(fact.value, first.value)), None)
    if typed is None and other is not None and first.added and other.added:
        return _sum(first, other)
    if typed is None and other is not None:
        raise UserError(
            f"{first.where} and {other.where} contradict each other", f"leave one out, or give {option(first.name)}"
        )
    if typed is not None:
        notes += [
            f"{typed.where} is taken, not {fact.where}."
            for fact in files
            if not same(fact.value, typed.value) and not fact.assumed
        ]
        return typed
    return first


def _sum(one: StatedFact, other: StatedFact) -> StatedFact:
    """Return two facts of parts as one."""
    parts = dict.fromkeys((*str(one.value).split("+"), *str(other.value).split("+")))
    return StatedFact(
        one.name, "+".join(parts), one.source, f"{one.words}, {other.words}", max(one.rank, other.rank), added=True
    )


def same(one: object, other: object) -> bool:
    """Return whether two values are equal as a user types them."""
    return str(one).casefold() == str(other).casefold()


def option(name: str) -> str:
    """Return the option of a statement with its dashes, or the statement in words."""
    from paceline.questions.asked import options_of

    item, options = STATED[name], options_of(name)
    return f"--{options[0]}" if options else getattr(item, "title", name)
