"""Controls of the page: one table of their names on the command line, in the address and in Python."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from paceline import hardware
from paceline.errors import UserError, shorten, unknown
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import ByteSize, Flag, LegalValues, RealNumber, WholeNumber
from paceline.strategy.frameworks import FRAMEWORKS, ORDINARY
from paceline.strategy.strategy import CHOICES
from paceline.workload import names

LONGEST = 100
"""Most characters of a value."""
UPLOADED = "config:"
"""Prefix of the name of a model with an uploaded configuration."""
_YES_NO = ("yes", "no")
_DOUBLINGS = tuple(str(1 << n) for n in range(18))
_SPEEDS = tuple(f"{speed}Gb/s" for speed in (1, 10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200))


@dataclass(frozen=True, slots=True)
class Control:
    """Control for one choice.

    Attributes:
        option: name on the command line without its dashes, and in the address; ``workload`` is the command's argument.
        keyword: argument of the Python functions; empty for controls that name the cluster.
        values: legal values of a control whose text is not its value; None for names.
        choices: legal names of a ``select``; suggestions of a ``text``.
        stops: values of its slider; empty without a slider.
        start: value at the first visit.
        unset: meaning of an empty value, in words.
        switch: for a ``Flag``, the option of the command line, which has no value, and the value of the flag that it means.
    """

    option: str
    keyword: str
    label: str
    kind: Literal["text", "number", "select"]
    choices: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    start: str = ""
    unset: str = ""
    values: LegalValues | None = None
    switch: tuple[str, bool] | None = None

    @property
    def minimum(self) -> str:
        """Smallest legal number."""
        return f"{self.values.low:g}" if isinstance(self.values, RealNumber) else str(self.values.least if self.values else "")

    @property
    def step(self) -> str:
        """Distance of legal numbers, as HTML writes it."""
        return "any" if isinstance(self.values, RealNumber) else "1"

    def value(self, text: str) -> Any:
        """Return the value that a text means; the question checks its range. Raises UserError for another kind of text."""
        return self.values.parse(text, self.option) if self.values else text

    def words(self, text: str) -> list[str]:
        """Return the words of the command line that a text means."""
        if self.switch is None:
            return [f"--{self.option}", text]
        option, meant = self.switch
        return [f"--{option}"] if self.value(text) is meant else []


def _number(
    option: str, keyword: str, label: str, unit: str, stops: tuple[str, ...] = (), start: str = "", unset: str = ""
) -> Control:
    return Control(option, keyword, label, "number", stops=stops, start=start, unset=unset, values=WholeNumber(unit))


@cache
def controls() -> tuple[Control, ...]:
    """Return all controls in the order of the page. Legal names are those of the catalogues."""
    devices = tuple(device.name for device in hardware.devices() if device.kind != "cpu")
    links = tuple(link.name for link in hardware.links() if link.kind in ("ethernet", "infiniband"))
    batch, *others = (_of_choice(item) for item in CHOICES.values() if item.label)
    return (
        Control("workload", "", "Model", "text", names(), start="llama-3-8b"),
        Control("device", "", "Device", "select", devices, start=hardware.device("A100").name),
        _number("devices-per-node", "", "Devices of each node", "devices", _DOUBLINGS[:4], "8", "1"),
        _number("nodes", "", "Nodes", "nodes", _DOUBLINGS[:9], "2", "1"),
        Control("network", "", "Network between nodes", "text", (*_SPEEDS, *links), _SPEEDS, "100Gb/s", "none"),
        batch,
        _number("seq-len", "seq_len", "Tokens of a sample", "tokens", unset="the model's own"),
        Control("framework", "", "Framework", "select", tuple(FRAMEWORKS), unset=ORDINARY.name),
        *others,
    )


def _of_choice(item: StrategyChoice) -> Control:
    """Return the control of a choice, built from its declaration."""
    values, legal, unset = item.values, tuple(map(str, item.values.names)), item.unset or item.default_text
    if isinstance(values, Flag):
        switch = (item.option, not item.default)
        return Control(item.word, item.name, item.label, "select", _YES_NO, (), item.start, unset, values, switch)
    kind: Literal["text", "number", "select"] = "select" if legal else "number" if values.argument_type else "text"
    stops = tuple(n for n in ("0", *_DOUBLINGS) if int(n) >= values.least) if isinstance(values, WholeNumber) else ()
    parsed = values if values.argument_type or isinstance(values, ByteSize) else None
    return Control(item.option, item.name, item.label, kind, legal, stops, item.start, unset, parsed)


Selection = Mapping[str, str]
"""Chosen values by option, in the order of the controls. A missing option has its default."""


def start() -> Selection:
    """Return the selection of the first visit."""
    return {control.option: control.start for control in controls() if control.start}


def selection(pairs: Iterable[tuple[str, str]]) -> Selection:
    """Return the selection in an address. Raises UserError for unknown options, values that are repeated or too long, and a
    missing model or device."""
    given: dict[str, str] = {}
    legal = [control.option for control in controls()]
    for option, value in pairs:
        if option not in legal:
            raise unknown("option", shorten(option, LONGEST), legal)
        if option in given:
            raise UserError(f"{option} is given twice", "give it once")
        if len(value) > LONGEST:
            raise UserError(f"{option} of {len(value):,} characters", f"give at most {LONGEST}")
        given[option] = value.strip()
    chosen = {option: given[option] for option in legal if given.get(option)}
    for option in ("workload", "device"):
        if option not in chosen:
            raise UserError(f"no {option} is given", f"name one: {start()[option]}")
    return chosen


def value(chosen: Selection, option: str) -> Any:
    """Return the value of a control; None if it is not given. Raises UserError as ``Control.value``."""
    return _by_option()[option].value(chosen[option]) if option in chosen else None


@cache
def _by_option() -> Mapping[str, Control]:
    return {control.option: control for control in controls()}


def command(chosen: Selection) -> str:
    """Return the question as a command line. An uploaded configuration is named as its file."""
    words = ["paceline", "predict", _model(chosen)]
    for option, text in chosen.items():
        if option != "workload":
            words += _by_option()[option].words(text)
    return shlex.join(words)


def python(chosen: Selection) -> str:
    """Return the question in Python."""
    model = repr(_model(chosen))
    if chosen["workload"].startswith(UPLOADED):
        length = f", {chosen['seq-len']}" if "seq-len" in chosen else ""
        model = f"paceline.Workload.from_config({model}{length})"
    size = f"{chosen.get('nodes', '1')}x{chosen.get('devices-per-node', '1')}"
    arguments = [model, repr(f"{size} {chosen['device']}")]
    if "network" in chosen:
        arguments.append(f"network={chosen['network']!r}")
    for control in controls():
        if control.keyword and control.option in chosen and not (control.option == "seq-len" and "(" in model):
            arguments.append(f"{control.keyword}={control.value(chosen[control.option])!r}")
    if "framework" in chosen:
        arguments.append(f"predictor=paceline.Predictor(framework={chosen['framework']!r})")
    return f"import paceline\n\nprint(paceline.predict({', '.join(arguments)}))"


def _model(chosen: Selection) -> str:
    return "config.json" if chosen["workload"].startswith(UPLOADED) else chosen["workload"]
