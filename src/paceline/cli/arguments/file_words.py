"""Files of ``--from``: what they state, what a command makes of it, and the sentences on what they leave open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline import hardware
from paceline.errors import UserError
from paceline.questions.asked import QUESTIONS, options_of
from paceline.questions.facts import COMMAND, LINKS, Reading, StatedFact, option
from paceline.questions.joined import DEVICES, NODE, sizes, whole_batch
from paceline.strategy.choices.synonyms import folded
from paceline.strategy.strategy import CHOICES

WORKLOAD, FROM, CLUSTER, DEVICE, BATCH = "workload", "--from", "cluster", "device", "micro_batch_size"
_WHY_NOT = "--why-not"
_SHOWN = 4
"""Names in a sentence; ``--why`` lists further ones."""
_OF_TRAINING = ("epochs", "samples", "tokens", "steps")
"""Statements that a single step does not need."""


def split_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without ``--from``, and its files. Words after the files that are no paths are operands.

    Raises:
        UserError: no file.
    """
    rest: list[str] = []
    paths: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return [*rest, word, *words], paths
        name, equals, text = word.partition("=")
        if name != FROM and name.startswith("-") and folded(name) in LINKS and (text or (words and _is_path(words[0]))):
            paths.append(text or words.pop(0))  # --deepspeed ds_config.json, as scripts have it
            continue
        if name != FROM:
            rest.append(word)
            continue
        found = [text] if equals else []
        while not equals and words and not words[0].startswith("--"):
            follows = words.pop(0)
            if found and not _is_path(follows):
                rest.append(follows)
            else:
                found.append(follows)
        if not found:
            raise UserError("--from names no file", "give one or several: --from ds_config.json job.sbatch")
        paths += found
    return rest, paths


def _is_path(word: str) -> bool:
    """Return whether a word names a file, there or not."""
    from paceline.questions.from_files import divided_path  # most commands name no files

    path = Path(divided_path(word)[0])
    return path.exists() or path.suffix.casefold() in _ENDINGS


_ENDINGS = (".json", ".yaml", ".yml", ".toml", ".py", ".sh", ".sbatch", ".slurm", ".txt", ".conf", ".cfg")


def _kept(facts: Sequence[StatedFact]) -> str:
    """Return how to keep the numbers of machines among statements that are not taken; empty without any."""
    sizes = {fact.name: fact.value for fact in facts if fact.name in (NODE, DEVICES)}
    if not sizes:
        return ""
    numbers = "x".join(str(sizes[name]) for name in (NODE, DEVICES) if name in sizes)
    return f" Name the device to keep the machines: --on '{numbers} DEVICE'."


@dataclass(slots=True)
class FileWords:
    """Statements of files, for one command.

    Attributes:
        given: the command's own words.
        facts: their statements.
        details: everything that they leave open, a line each.
    """

    command: str = ""
    names: str = ""
    given: Collection[str] = ()
    legal: Collection[str] = ()
    reading: Reading = field(default_factory=Reading)
    facts: list[StatedFact] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    unused: list[StatedFact] = field(default_factory=list)
    compared: str = ""

    def settled(self, found: Mapping[str, StatedFact], notes: list[str]) -> dict[str, StatedFact]:
        """Return the facts as the command takes them: machines in one text, the batch of all devices, a plan's layout as what
        is compared.

        Raises:
            UserError: no network or no machines.
        """
        facts = dict(found)
        _compose(facts, self.legal)
        self._check(facts)
        if _WHY_NOT in self.legal:
            self._whole_batch(facts)
        if "epochs" in facts and self._takes("epochs") and facts["epochs"].source != COMMAND and "--data" not in self.given:
            epochs = facts.pop("epochs")
            notes.append(f"{epochs.where} is left out: the samples of an epoch are unknown (--epochs with --data).")
        if _WHY_NOT in self.legal:
            self._compare(facts)
        for name in _OF_TRAINING:
            if name in facts and not self._takes(name):
                facts.pop(name)
        return facts

    def _whole_batch(self, facts: dict[str, StatedFact]) -> None:
        """Give a plan the files' batch of all devices, which it divides itself."""
        each = facts.get(BATCH)
        batch = whole_batch(facts) if each is not None and each.source != COMMAND else None
        if each is not None and batch is not None:
            del facts[BATCH]
            facts.setdefault("global_batch_size", replace(each, name="global_batch_size", value=batch))

    def _takes(self, name: str) -> bool:
        return any(f"--{each}" in self.legal for each in options_of(name))

    def _check(self, facts: Mapping[str, StatedFact]) -> None:
        """Raise UserError for a question without a network, or without machines that the command needs."""
        known = sizes(facts)
        text = f"{known[0]}x{known[1]} H100" if known and known[0] > 1 else f"{known[1]} H100" if known else "8 H100"
        on = next((each for each in ("--cluster", "--on") if each in self.legal), "--cluster")
        if WORKLOAD in self.legal and WORKLOAD not in facts:
            machines = "" if CLUSTER in facts or DEVICE in facts else f" {on} '{text}'"
            raise UserError(f"{self.names} names no network", f"add it: {self.command} llama-3-8b --from ...{machines}")
        rents = self.command.endswith(" ask")  # without machines it compares what can be rented
        if (
            "--cluster" in self.legal
            and not rents
            and CLUSTER not in facts
            and DEVICE not in facts
            and "--records" not in self.given
        ):
            counted = f" says {known[0]} x {known[1]} devices, but not which" if known else " names no machines"
            raise UserError(f"{self.names}{counted}", f"add them: --cluster '{text}'")

    def _compare(self, facts: dict[str, StatedFact]) -> None:
        """Compare the layout of the files with the plan's instead of narrowing its search."""
        words = []
        for name in [name for name in facts if name in CHOICES and facts[name].source != COMMAND]:
            item = CHOICES[name]
            if item.of_layout and item.word:
                fact = facts.pop(name)
                if not fact.assumed and str(fact.value) != str(item.default):
                    words.append(f"{item.word}={fact.value}")
        self.compared = ",".join(words)

    def comparison(self, own: Collection[str]) -> list[str]:
        """Return the option that compares the files' layout with the plan's, unless the user compares another."""
        return [_WHY_NOT, self.compared] if self.compared and _WHY_NOT not in own else []

    def left(self, fact: StatedFact) -> None:
        """Note a fact for which the command has no option."""
        if not fact.assumed:
            self.unused.append(fact)

    def notes(self, found: Mapping[str, StatedFact]) -> list[str]:
        """Return sentences on what was assumed and left out."""
        notes = list(self.reading.notes)
        assumed = [fact for fact in found.values() if fact.assumed and fact.source != COMMAND and self._takes(fact.name)]
        if assumed:
            said = "; ".join(f"{option(fact.name)} {fact.value} ({fact.words})" for fact in assumed)
            notes.append(f"Assumed: {said}.")
        if self.unused:
            said = ", ".join(f"{option(fact.name)} {fact.value}" for fact in self.unused)
            notes.append(f"{self.command} chooses itself, in spite of the files: {said}.{_kept(self.unused)}")
        if self.reading.unknown:
            shown = "; ".join(self.reading.unknown[:_SHOWN])
            more = len(self.reading.unknown) - _SHOWN
            notes.append(f"Not understood: {shown}{f', and {more} more (--why)' if more > 0 else ''}.")
        self.details += [f"Not understood: {each}." for each in self.reading.unknown]
        if self.reading.ignored:
            self.details.append(f"Without effect on a prediction: {'; '.join(self.reading.ignored)}.")
        return notes


def file_words(
    command: str, paths: Sequence[str], typed: Sequence[StatedFact], legal: Collection[str], given: Collection[str] = ()
) -> FileWords:
    """Read files for a command. Raises UserError as ``read_files``."""
    from paceline.questions.from_files import read_files

    reading = read_files(paths)
    names = " and ".join(Path(path).name for path in paths)
    found = FileWords(command, names, given, legal, reading, list(reading.facts))
    found.facts = _with_counts(found.facts, typed)
    return found


def _with_counts(facts: list[StatedFact], typed: Sequence[StatedFact]) -> list[StatedFact]:
    """Return the facts without machines, if the user names other machines than a device alone."""
    cluster = next((fact for fact in typed if fact.name == CLUSTER), None)
    if cluster is None or _is_device(str(cluster.value)):
        return facts
    return [fact for fact in facts if fact.name not in (NODE, DEVICES, DEVICE, "world_size")]


def _is_device(text: str) -> bool:
    """Return whether a text names a device and no number of it."""
    name = text.partition(",")[0].strip()
    try:
        return bool(hardware.device(name)) and not name[:1].isdecimal()
    except UserError:
        return False


def _compose(facts: dict[str, StatedFact], legal: Collection[str]) -> None:
    """Write the number of nodes, their devices and the kind of device as one text."""
    named, device = facts.get(CLUSTER), facts.get(DEVICE)
    text = str(named.value) if named else str(device.value) if device else ""
    if named and not _is_device(text):
        for name in (NODE, DEVICES, DEVICE):
            facts.pop(name, None)
        return
    if device is not None and device.source == COMMAND and "--device" in legal:
        return
    nodes = facts[NODE].value if NODE in facts else 1
    if not text or (NODE not in facts and DEVICES not in facts):
        if device is not None and named is None:
            facts[CLUSTER] = replace(facts.pop(DEVICE), name=CLUSTER)
        return
    each = facts[DEVICES].value if DEVICES in facts else 1
    counted = f"{nodes}x{each}" if int(nodes) > 1 else str(each)
    first = named or device
    assert first is not None
    source = facts[NODE if NODE in facts else DEVICES].source
    facts[CLUSTER] = replace(first, name=CLUSTER, value=f"{counted} {text}", source=source)
    for name in (NODE, DEVICES, DEVICE):
        facts.pop(name, None)


assert {CLUSTER, DEVICE, BATCH, NODE, DEVICES} <= QUESTIONS.keys()
