"""Names of a choice in other tools, with their values in our words.

``synonyms`` of a choice hold them (``choices/tool_names.py``). The command line's other spellings, readers of files of
other tools, and ``docs/choices.md`` come from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UserError, shown, unknown

HF, DEEPSPEED, ACCELERATE, MEGATRON = "hf", "deepspeed", "accelerate", "megatron"
TORCHTITAN, AXOLOTL, LLAMAFACTORY, LIGHTNING, NEMO = "torchtitan", "axolotl", "llamafactory", "lightning", "nemo"
TORCHTUNE = "torchtune"
TOOLS: Mapping[str, str] = {
    HF: "Hugging Face Trainer",
    DEEPSPEED: "DeepSpeed",
    ACCELERATE: "Accelerate",
    MEGATRON: "Megatron-LM",
    TORCHTITAN: "torchtitan",
    AXOLOTL: "axolotl",
    LLAMAFACTORY: "LLaMA-Factory",
    LIGHTNING: "Lightning",
    NEMO: "NeMo",
    TORCHTUNE: "torchtune",
}
"""Tools whose names are declared, with their titles."""
TRAINERS = (HF, AXOLOTL, LLAMAFACTORY)
"""Tools that pass the options of Hugging Face's ``TrainingArguments`` on."""
CORE = (MEGATRON, NEMO)
"""Tools with the options of Megatron-Core."""
TYPED: tuple[str, ...] = ()
"""Tools of a word that only people type."""
PER_NODE = "per node"
"""Value of a number of devices: those of a node."""
LEFT_OPEN = frozenset(("", "auto", "none", "null", "default"))
"""Values that leave a choice open, unless a synonym gives them a meaning."""

Meaning = Mapping[str, Any] | Callable[[Any], Any]
"""Our values by theirs, or a function of theirs. None leaves the choice open. A mapping as our value states several choices."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """Name of a choice in other tools.

    Attributes:
        name: as the tools write it, with dots between the levels of a file.
        tools: tools that write it, keys of ``TOOLS``; ``TYPED``: people on a command line.
        values: how their values become ours; None: they are equal.
        remarks: what to say to a user who typed it, by value; under the empty value for every value.
        added: True if several such names add up to one value, joined by ``+``.
        alone: True if it may be typed without a value although a function reads its values.
    """

    name: str
    tools: tuple[str, ...] = TYPED
    values: Meaning | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)
    added: bool = False
    alone: bool = False

    @property
    def is_flag(self) -> bool:
        """True if the name may be typed without a value."""
        return self.alone or (isinstance(self.values, Mapping) and "true" in self.values)

    def remark(self, value: object) -> str:
        """Return what to say to a user who typed it with a value; empty without anything."""
        return self.remarks.get("", "") or self.remarks.get(worded(value), "")

    def takes(self, value: object) -> bool:
        """Return whether ``value`` has a meaning, as far as a mapping or a name that may be alone says."""
        if isinstance(self.values, Mapping) or not self.alone:
            return not isinstance(self.values, Mapping) or worded(value) in self.values
        with suppress(UserError):
            return self.read(value) is not None
        return False

    def read(self, value: object) -> Any:
        """Return our value for theirs; None if it leaves the choice open.

        Raises:
            UserError: a value that has no meaning here.
        """
        word = worded(value)
        if isinstance(self.values, Mapping):
            if word in self.values:
                return self.values[word]
            if word in LEFT_OPEN:
                return None
            raise unknown(self.name, word, self.values)
        if word in LEFT_OPEN:
            return None
        if self.values is not None:
            return self.values(value)
        if isinstance(value, list | dict):
            raise UserError(f"{self.name}={shown(value)}", "give one value")
        return value


def worded(value: object) -> str:
    """Return a value of a file as a word in small letters: ``true`` for True, ``null`` for None."""
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip().casefold()


def folded(name: str) -> str:
    """Fold a tool's name for look-ups: small letters, underscores for hyphens, without leading dashes."""
    return name.lstrip("-").replace("-", "_").casefold()


def names_of(names: str, tools: tuple[str, ...] = TYPED, values: Meaning | None = None, **more: Any) -> Iterator[Synonym]:
    """Yield a synonym for each of several names between spaces."""
    for name in names.split():
        yield Synonym(name, tools, values, **more)


def flag(value: Any, unless: Any = None) -> Mapping[str, Any]:
    """Return the meanings of a name that is switched on and off."""
    return {
        **dict.fromkeys(("true", "1", "yes", "on"), value),
        **dict.fromkeys(("false", "0", "no", "off", "null", "none"), unless),
    }


def name_in(tool: str, synonyms: Iterable[Synonym]) -> str:
    """Return the first name that a tool has for a choice; empty without one."""
    return next((each.name for each in synonyms if tool in each.tools), "")


def by_tool(synonyms: Collection[Synonym]) -> dict[str, list[str]]:
    """Return the names of a choice in each tool that has one."""
    return {tool: names for tool in TOOLS if (names := [each.name for each in synonyms if tool in each.tools])}
