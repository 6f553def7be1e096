"""Controls of the page: one table of their names on the command line, in the address and in Python."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from paceline import hardware
from paceline.errors import UserError, shorten, unknown
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.strategy import CHOICES
from paceline.workload import names

LONGEST = 100
"""Most characters of a value."""
UPLOADED = "config:"
"""Prefix of the name of a model with an uploaded configuration."""
_STARTS = {"precision": "bf16", "sharding": "zero3"}
"""Values of the first visit."""
_DOUBLINGS = tuple(str(1 << n) for n in range(18))
_SPEEDS = tuple(f"{speed}Gb/s" for speed in (1, 10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200))


@dataclass(frozen=True, slots=True)
class Control:
    """Control for one choice.

    Attributes:
        option: name on the command line without its dashes, and in the address; ``workload`` is the command's argument.
        keyword: argument of the Python functions; empty for controls that name the cluster.
        choices: legal names of a ``select``; suggestions of a ``text``.
        stops: values of its slider; empty without a slider.
        start: value at the first visit.
        unset: meaning of an empty value, in words.
    """

    option: str
    keyword: str
    label: str
    kind: Literal["text", "number", "select"]
    choices: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    start: str = ""
    unset: str = ""


@cache
def controls() -> tuple[Control, ...]:
    """Return all controls in the order of the page. Legal names are those of the catalogues."""
    devices = tuple(device.name for device in hardware.devices() if device.kind != "cpu")
    links = tuple(link.name for link in hardware.links() if link.kind in ("ethernet", "infiniband"))
    batch, *others = (_of_choice(item) for item in CHOICES.values() if item.label)
    return (
        Control("workload", "", "Model", "text", names(), start="llama-3-8b"),
        Control("device", "", "Device", "select", devices, start=hardware.device("A100").name),
        Control("devices-per-node", "", "Devices of each node", "number", stops=_DOUBLINGS[:4], start="8", unset="1"),
        Control("nodes", "", "Nodes", "number", stops=_DOUBLINGS[:9], start="2", unset="1"),
        Control("network", "", "Network between nodes", "text", (*_SPEEDS, *links), _SPEEDS, "100Gb/s", "none"),
        batch,
        Control("seq-len", "seq_len", "Tokens of a sample", "number", unset="the model's own"),
        *others,
    )


def _of_choice(item: StrategyChoice) -> Control:
    """Return the control of a choice, built from its declaration."""
    names = tuple(map(str, item.values.names))
    kind: Literal["number", "select"] = "select" if names else "number"
    stops, start = () if names else _DOUBLINGS, _STARTS.get(item.option, "")
    return Control(item.option, item.name, item.label, kind, names, stops, start, item.unset)


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


def number(chosen: Selection, option: str) -> int | None:
    """Return a whole number from 1 up; None if it is not given. Raises UserError."""
    text = chosen.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(f"{option} {text!r}", "give a whole number from 1 up")
    return int(text)


def command(chosen: Selection) -> str:
    """Return the question as a command line. An uploaded configuration is named as its file."""
    words = ["paceline", "predict", _model(chosen)]
    for option, value in chosen.items():
        if option != "workload":
            words += [f"--{option}", value]
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
            value = chosen[control.option]
            arguments.append(f"{control.keyword}={value if control.kind == 'number' else repr(value)}")
    return f"import paceline\n\nprint(paceline.predict({', '.join(arguments)}))"


def _model(chosen: Selection) -> str:
    return "config.json" if chosen["workload"].startswith(UPLOADED) else chosen["workload"]
