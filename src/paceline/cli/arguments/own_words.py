"""Words of other tools on the command line, and files of ``--from``, in Paceline's own words.

``--per_device_train_batch_size 2`` is ``--micro-batch-size 2``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from paceline.cli.arguments.file_words import WORKLOAD, FileWords, file_words, split_files
from paceline.errors import UserError
from paceline.questions.asked import STATED, Entry, is_flag, options_of, typed_names
from paceline.questions.facts import COMMAND, StatedFact, combined, facts_of
from paceline.questions.joined import joined_facts
from paceline.questions.typed_words import typed_entry
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.synonyms import Synonym, folded

_LOG = "--log"
"""Option of commands that read files of runs, which also take them from ``--from``."""
_FIRST = 1000
"""Rank of what the command's own options state."""


@dataclass(frozen=True, slots=True)
class Words:
    """Arguments of a command in its own words, with sentences on what was read into them.

    Attributes:
        details: further sentences, for ``--why``.
    """

    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


@dataclass(slots=True)
class _Divided:
    """Arguments of a command: its own words, what the others state, and remarks."""

    own: list[str] = field(default_factory=list)
    facts: list[StatedFact] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def in_own_words(
    command: str,
    arguments: Sequence[str],
    legal: Collection[str],
    valued: Collection[str],
    listing: Collection[str] = (),
) -> Words:
    """Return the arguments of a command with options of other tools replaced, and files by what they state.

    Args:
        command: the command with its program, as a user types it.
        arguments: words after the command's name.
        legal: options of the command, with dashes, and its operands. ``valued``: those that take a value. ``listing``: those
            that take several.

    Raises:
        UserError: a value that an option of another tool does not have; statements that contradict each other; a file that
            cannot be read; files that leave something open which the command needs.
    """
    rest, paths = split_files(arguments) if "--from" in legal else (list(arguments), [])
    if paths and _LOG in legal:
        from paceline.questions.from_files import run_files, sets_nccl  # most commands name no files

        logs = run_files(paths)
        paths = [path for path in paths if path not in logs]
        signs = [path for path in paths if sets_nccl(path)]
        rest += [word for path in (*logs, *signs) for word in (_LOG, path)]
    divided = _divided(rest, legal, valued)
    if not divided.facts and not paths:
        return Words(tuple(divided.own), tuple(divided.notes))
    stated = _own_facts(divided.own, legal, valued, listing)
    typed = [fact for fact in divided.facts if _spelled(fact.words.split()[0], legal)]
    _check_agreement(divided.facts, [*stated, *typed])
    of_files = file_words(command, paths, [*divided.facts, *stated], legal, divided.own) if paths else FileWords()
    facts, overruled = combined([*divided.facts, *stated, *of_files.facts])
    found, derived = joined_facts(facts)
    if paths:
        found = of_files.settled(found, derived)
    kept = {fact.name for fact in stated if fact.name in found and found[fact.name].value == fact.value}
    changed = {fact.name for fact in stated} - kept
    own = _without(divided.own, changed & found.keys(), valued)
    written = _written(found, kept, legal, of_files)
    operand = [str(found[WORKLOAD].value)] if WORKLOAD in found and WORKLOAD not in kept else []
    words = [*operand, *own, *written, *of_files.comparison(own)]
    notes = [*divided.notes, *overruled, *derived]
    if paths:
        notes = [f"Read as: {shlex.join([*command.split(), *words])}", *of_files.notes(found), *notes]
    return Words(tuple(words), tuple(notes), tuple(of_files.details))


def _check_agreement(foreign: Iterable[StatedFact], stated: Iterable[StatedFact]) -> None:
    """Raise UserError for an option of another tool that contradicts one of the command's own."""
    own = {fact.name: fact for fact in stated}
    for fact in foreign:
        other = own.get(fact.name)
        if other is not None and not fact.assumed and _settled(fact) != _settled(other):
            raise UserError(f"{fact.words} and {other.words} contradict each other", "give one of them")


def _settled(fact: StatedFact) -> object:
    """Return the value of a fact in one spelling."""
    item = STATED[fact.name]
    if isinstance(item, StrategyChoice) and isinstance(fact.value, str):
        with suppress(UserError):
            return item.values.check(item.values.parse(fact.value, fact.name), fact.name)
    return str(fact.value).casefold()


def _divided(arguments: Sequence[str], legal: Collection[str], valued: Collection[str]) -> _Divided:
    """Divide arguments into the command's own words and those of other tools."""
    found = _Divided()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            found.own += [word, *rest]
            break
        name, equals, text = word.partition("=")
        if re.fullmatch(r"-[a-z]{2,}", name, re.IGNORECASE) and _entry(f"-{name}", "", legal) is not None:
            name = f"-{name}"
        if not name.startswith("--"):
            found.own.append(word)
            continue
        written = _spelled(name, legal)
        implied = "" if written else _searched_with(name, legal)
        entry = typed_entry(name) if implied else _entry(name, written, legal)
        following = text if equals else rest[0] if rest and not rest[0].startswith("--") else None
        if entry is None or (written and _is_own(entry[2], following, written in valued)):
            found.own.append(f"{written or name}{equals}{text}")
            if written in valued and not equals and rest and not rest[0].startswith("--"):
                found.own.append(rest.pop(0))
            continue
        synonym = entry[2]
        if not equals and following is not None:
            if synonym.is_flag and not synonym.takes(following):
                following = None  # an operand that follows a flag
            else:
                rest.pop(0)
        if following is None and not synonym.is_flag:
            raise UserError(f"{name} has no value", f"write {name} and a value")
        given = "true" if following is None else following
        if implied:
            if not synonym.read(given):
                raise UserError(f"{name}: a plan takes {entry[0]} parallelism with every {implied} parallelism", "leave it out")
            found.notes.append(f"{name}: {implied} parallelism is searched with {entry[0]} parallelism.")
            continue
        found.facts += facts_of(entry, given, COMMAND, name if following is None else f"{name} {given}")
        if remark := synonym.remark(given):
            found.notes.append(f"{name} {remark}.")
    return found


def _is_own(synonym: Synonym, following: str | None, valued: bool) -> bool:
    """Return whether an option of the command has a value that is not another tool's."""
    if following is None:
        return not (valued and synonym.is_flag)
    return not synonym.takes(following)


def _spelled(name: str, legal: Collection[str]) -> str:
    """Return the command's option of this name, with hyphens for underscores; empty if it has none."""
    if name in legal:
        return name
    hyphened = name.replace("_", "-").casefold()
    return hyphened if hyphened in legal else ""


def _entry(name: str, written: str, legal: Collection[str]) -> Entry | None:
    """Return the statement of another tool's option that this command takes; None for others, and for its own option unless
    that has values of other tools."""
    entry = typed_names().get(folded(name)) if written else typed_entry(name)
    if entry is None or (written and not isinstance(entry[2].values, Mapping)):
        return None
    if entry[0] == WORKLOAD:
        return entry if WORKLOAD in legal else None
    return entry if any(f"--{each}" in legal for each in _reach(entry)) else None


def _searched_with(name: str, legal: Collection[str]) -> str:
    """Return the choice with which this command always takes another tool's option; empty if it does not."""
    entry = typed_entry(name)
    item = STATED[entry[0]] if entry else None
    if not isinstance(item, StrategyChoice) or not item.searched_with or f"--{item.option}" in legal:
        return ""
    return item.searched_with if any(f"--{each}" in legal for each in options_of(item.searched_with)) else ""


_JOINED: Mapping[str, tuple[str, ...]] = {
    "pipeline_micro_batch": ("micro_batch_size",),
    "steps": ("samples",),
    "world_size": ("devices_per_node",),
    "copies": ("shard_devices",),
    "layers_per_virtual_stage": ("virtual_stages",),
    "recompute_method": ("recompute_layers",),
    "recomputed_layers": ("recompute_layers",),
    **dict.fromkeys(
        ("adapter", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_bits", "lora_dora", "lora_save"), ("lora",)
    ),
}
"""Statements by those that are joined from them."""


def _reach(entry: Entry) -> Iterable[str]:
    """Yield the options in which a statement may end."""
    for name in _JOINED.get(entry[0], (entry[0],)):
        yield from options_of(name)


def _own_facts(
    own: Sequence[str], legal: Collection[str], valued: Collection[str], listing: Collection[str]
) -> list[StatedFact]:
    """Return what the command's own options and its operand state."""
    by_option = {f"--{option}": name for name in STATED for option in options_of(name)}
    facts: list[StatedFact] = []
    rest = list(own)
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, text = word.partition("=")
        if not word.startswith("-"):
            if WORKLOAD in legal and not any(fact.name == WORKLOAD for fact in facts):
                facts.append(StatedFact(WORKLOAD, word, COMMAND, word, rank=_FIRST))
            continue
        if name in valued and not equals and rest and not rest[0].startswith("--"):
            text = rest.pop(0)
        while name in listing and rest and not rest[0].startswith("--"):
            rest.pop(0)
        if name in by_option and name in legal:
            value: object = text if name in valued else True
            if value != "":
                facts.append(StatedFact(by_option[name], value, COMMAND, f"{name} {text}".strip(), rank=_FIRST))
    return facts


def _without(own: Sequence[str], names: Collection[str], valued: Collection[str]) -> list[str]:
    """Return own words without the options of some statements."""
    dropped = {f"--{option}" for name in names for option in options_of(name)}
    kept: list[str] = []
    rest = list(own)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        follows = name in valued and not equals and rest and not rest[0].startswith("--")
        words = [word, rest.pop(0)] if follows else [word]
        kept += [] if name in dropped else words
    return kept


def _written(facts: Mapping[str, StatedFact], kept: Collection[str], legal: Collection[str], of_files: FileWords) -> list[str]:
    """Return the words for facts that own options do not state already. Raises UserError for typed ones without an option."""
    words: list[str] = []
    for name, fact in facts.items():
        if name in kept or name == WORKLOAD:
            continue
        typed = fact.words.partition(" ")[0]
        takes = [f"--{each}" for each in options_of(name) if f"--{each}" in legal]
        option = typed if typed in takes else next(iter(takes), "")
        if not option and fact.source != COMMAND:
            of_files.left(fact)
        elif not option:
            raise UserError(f"{fact.where} states {name.replace('_', ' ')}, which this command does not take", "leave it out")
        elif is_flag(name):
            words += [option] if fact.value is True else [f"--no-{option[2:]}"] if f"--no-{option[2:]}" in legal else []
        else:
            words += [option, str(fact.value)]
    return words
