"""Reader of files that are trees of settings: JSON, TOML and YAML of a known tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.errors import UserError, shorten
from paceline.questions.asked import STATED, looked_up
from paceline.questions.facts import LINKS, Reading, StatedFact, facts_of
from paceline.questions.readers.keys import tool_keys
from paceline.questions.readers.source import Leaf, Source, leaves
from paceline.strategy.choices.synonyms import DEEPSPEED, PER_NODE, TORCHTITAN, worded

_TITAN_MODELS: Mapping[str, str] = {
    "llama3": "llama-3-{}",
    "llama3_2": "llama-3.2-{}",
    "llama4": "llama-4-{}",
    "qwen3": "qwen-3-{}",
    "deepseek_v3": "deepseek-v3",
    "gpt_oss": "gpt-oss-{}",
    "flux": "flux1",
}
"""Our names of torchtitan's models, with their flavors (``torchtitan/models``)."""
_SHOWN = 60


def read_settings(tool: str, tree: Mapping[str, Any], source: Source) -> Reading:
    """Return what a tool's tree of settings states. Raises UserError for a tree too large."""
    found = Reading()
    inner = {name: tree[name] for name in LINKS if isinstance(tree.get(name), Mapping) and tool != DEEPSPEED}
    nested = {name: value for name, value in inner.items() if "zero_optimization" in value}
    rest = {name: value for name, value in tree.items() if name not in nested}
    for value in nested.values():
        found.add(read_settings(DEEPSPEED, value, source))
    every = list(leaves(rest, source.name))
    found.add(read_leaves(tool, every, source))
    if tool == TORCHTITAN:
        _titan_model(dict(every), source, found)
    add_defaults(tool, found, source)
    return found


def read_leaves(tool: str, every: Iterable[Leaf], source: Source) -> Reading:
    """Return what settings state, by their paths."""
    found = Reading()
    for path, value in every:
        key = ".".join(path)
        if path[-1].replace("-", "_") in LINKS and isinstance(value, str) and worded(value) not in ("none", "null", ""):
            found.links.append((value, source))
            continue
        words = f"{key} = {shorten(_text(value), _SHOWN)}"
        entry = looked_up(tool, path)
        try:
            stated = [] if entry is None else list(facts_of(entry, value, source.name, words))
            _check(stated)
        except (UserError, ValueError):
            found.unknown.append(f"{source.name}: {words}")
            continue
        if entry is not None:
            found.understood += 1
            found.facts += stated
        elif tool_keys()[tool].ignores(path) or value in (None, False, "", [], {}):
            found.ignored.append(f"{source.name}: {key}")
        else:
            found.unknown.append(f"{source.name}: {words}")
    return found


def _text(value: object) -> str:
    """Return a value as files have it: ``true`` for True."""
    return worded(value) if isinstance(value, bool | None) else str(value)


def _check(stated: Sequence[StatedFact]) -> None:
    """Raise UserError for a value that a choice does not have."""
    for fact in stated:
        values = getattr(STATED[fact.name], "values", None)
        if values is None or fact.added or not isinstance(fact.value, str) or fact.value == PER_NODE:
            continue
        if values.argument_type is None:
            values.check(values.from_argument(fact.value), fact.name)


def _titan_model(settings: Mapping[tuple[str, ...], Any], source: Source, found: Reading) -> None:
    name, flavor = settings.get(("model", "name")), settings.get(("model", "flavor"))
    if isinstance(name, str) and name in _TITAN_MODELS:
        model = _TITAN_MODELS[name].format(str(flavor).casefold())
        found.facts.append(StatedFact("workload", model, source.name, f"model {name} {flavor}"))
    elif name:
        found.unknown.append(f"{source.name}: model.name = {name}")


def add_defaults(tool: str, found: Reading, source: Source) -> None:
    """Add what the tool does if its file does not say it, and the software."""
    keys = tool_keys()[tool]
    stated = {fact.name for fact in found.facts}
    for key, value in keys.defaults.items():
        entry = looked_up(tool, key.split("."))
        assert entry is not None, key
        if entry[0] in stated:
            continue
        words = f"the default of {keys.framework}, {key} = {worded(value)}"
        for fact in facts_of(entry, value, source.name, words):
            found.facts.append(StatedFact(fact.name, fact.value, source.name, words, assumed=True))
    words = keys.title
    found.facts.append(StatedFact("framework", keys.framework, source.name, words, keys.priority, assumed=True))
