"""Controls of the page: one table, derived from the declared choices and statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from paceline import hardware
from paceline.calibration.attention import KERNELS
from paceline.errors import UserError
from paceline.hardware.networks import transports
from paceline.names import SECTIONS
from paceline.questions.asked import QUESTIONS, is_flag, options_of
from paceline.serve.catalogue_groups import ListGroup, device_groups, model_groups
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import Bits, ByteSize, Flag, LegalValues, Name, RealNumber, WholeNumber
from paceline.strategy.frameworks import FRAMEWORKS, ORDINARY
from paceline.strategy.strategy import CHOICES
from paceline.units import parse_count, parse_dollars, parse_tokens

_YES_NO = ("yes", "no")
_DOUBLINGS = tuple(str(1 << n) for n in range(18))
SPEEDS = tuple(f"{speed}Gb/s" for speed in (1, 10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200))
"""Stops of the slider of the network: bandwidth of a node in one direction."""
_MOST_STEPS = 9
"""Stops of a slider of a small number, up to 256."""
_SHORT = 40
"""Most characters of a rule that is shown in an empty control."""
START_DEVICE = "H100 SXM"
"""Device of the first visit: the one that most clusters for rent have."""
_FIRST = {"model": 0, "machines": 1, "software": 3, "training": 4, "limits": 5}
"""Places of the sections of common controls; choices of a run are between the machines and the software."""
Kind = Literal["text", "number", "select"]


@dataclass(frozen=True, slots=True)
class Control:
    """Control for one choice.

    Attributes:
        option: name on the command line without its dashes, and in the address; ``workload`` is the command's argument.
        keyword: choice of a strategy; empty for other statements.
        section: key of ``SECTIONS``. ``common``: True if it is shown at once, False if its section is folded.
        values: legal values of a control whose text is not its value; None for names. ``read``: parser of other texts.
        choices: legal names of a ``select``; suggestions of a ``text``. ``groups``: the same in groups, if they are many.
        stops: values of its slider; empty without a slider.
        start: value at the first visit.
        unset: meaning of an empty value, in words.
        switch: for a ``Flag``, the option of the command line, which has no value, and the value of the flag that it means.
        help: one sentence; empty for common controls.
    """

    option: str
    keyword: str
    label: str
    kind: Kind
    choices: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    start: str = ""
    unset: str = ""
    values: LegalValues | None = None
    switch: tuple[str, bool] | None = None
    section: str = "run"
    common: bool = True
    read: Callable[[str], Any] | None = None
    groups: tuple[ListGroup, ...] = ()
    help: str = ""

    @property
    def minimum(self) -> str:
        """Smallest legal number."""
        if isinstance(self.values, RealNumber):
            return f"{self.values.low:g}"
        return str(self.values.least if self.values else 0)

    @property
    def step(self) -> str:
        """Distance of legal numbers, as HTML writes it."""
        return "1" if isinstance(self.values, WholeNumber) else "any"

    def value(self, text: str) -> Any:
        """Return the value that a text means; the question checks its range. Raises UserError for another kind of text."""
        if self.read is not None:
            return self.read(text)
        return self.values.parse(text, self.option) if self.values else text

    def text(self, value: object) -> str:
        """Return the text of a value in JSON form."""
        if isinstance(value, bool):
            return _YES_NO[not value]
        if isinstance(self.values, ByteSize):
            return f"{value}B"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def words(self, text: str) -> list[str]:
        """Return the words of the command line that a text means."""
        if self.switch is None:
            return [f"--{self.option}", text]
        option, meant = self.switch
        return [f"--{option}"] if self.value(text) is meant else []


@cache
def controls() -> tuple[Control, ...]:
    """Return all controls in the order of the page: common ones first. Legal names are those of the catalogues."""
    every = [*(_of_choice(item) for item in CHOICES.values() if item.option), *_of_job()]
    places = list(SECTIONS)
    common = sorted((control for control in every if control.common), key=lambda control: _FIRST.get(control.section, 2))
    return (*common, *sorted((c for c in every if not c.common), key=lambda control: places.index(control.section)))


@cache
def folded() -> Mapping[str, tuple[Control, ...]]:
    """Return the controls of the folded sections, by the section's title."""
    rest = [control for control in controls() if not control.common]
    keys = dict.fromkeys(control.section for control in rest)
    return {SECTIONS[key].capitalize(): tuple(c for c in rest if c.section == key) for key in keys}


@cache
def by_option() -> Mapping[str, Control]:
    """Return the controls by option."""
    return {control.option: control for control in controls()}


@cache
def by_keyword() -> Mapping[str, Control]:
    """Return the controls of choices by the choice's name."""
    return {control.keyword: control for control in controls() if control.keyword}


def _of_job() -> Iterator[Control]:
    """Yield the controls of statements that are no choices of a strategy."""
    models, devices = model_groups(), device_groups()
    links = tuple(link.name for link in hardware.links() if link.kind in ("ethernet", "infiniband"))
    count = WholeNumber
    yield Control("workload", "", "Model", "text", _names(models), (), "llama-3-8b", section="model", groups=models)
    yield _stated("seq_len", "text", "Tokens of a sample", unset="the model's own", read=parse_tokens, section="model")
    lora = ("r=16", "r=64", "qlora", "dora")
    yield _stated("lora", "text", "Adapters", lora, unset="none", section="model")
    yield Control("device", "", "Device", "text", _names(devices), (), START_DEVICE, section="machines", groups=devices)
    local: dict[str, Any] = {"stops": _DOUBLINGS[:4], "start": "8", "section": "machines"}
    many: dict[str, Any] = {"stops": _DOUBLINGS[:9], "start": "2", "section": "machines"}
    speeds: dict[str, Any] = {"stops": SPEEDS, "start": "InfiniBand NDR", "section": "machines"}
    yield _stated("devices_per_node", "number", "Devices a node", values=count("devices"), unset="1", **local)
    yield _stated("nodes", "number", "Nodes", values=count("nodes"), unset="1", **many)
    yield _stated("network", "text", "Network of a node", (*SPEEDS, *links), unset="none", **speeds)
    carriers = tuple(transports())
    yield Control("transport", "", "Transport", "select", carriers, unset="its own", section="machines")
    each = count("samples of a device in a micro step")
    yield _stated("micro_batch_size", "number", "Micro batch", values=each, unset="from the batch")
    yield _stated("framework", "select", "Framework", tuple(FRAMEWORKS), unset=ORDINARY.name, section="software")
    yield _stated("samples", "text", "Samples to train", read=parse_count, unset="1M", section="training")
    yield _stated("tokens", "text", "or tokens to train", read=parse_count, unset="none given", section="training")
    yield Control("by", "", "Done by", "text", ("3d", "36h", "friday"), unset="any time", section="limits")
    yield Control("budget", "", "Budget, $", "text", unset="none", section="limits", read=parse_dollars)
    yield Control("price", "", "Price, $ an hour", "text", unset="the listing", section="limits", read=_dollars)
    further = {"section": "software", "common": False, "unset": "the framework's"}
    yield _stated("attention", "select", "Kernel of attention", tuple(KERNELS), **further)
    yield _stated("compile", "select", "torch.compile", _YES_NO, values=Flag(), **further)


def _stated(name: str, kind: Kind, label: str, choices: tuple[str, ...] = (), **more: Any) -> Control:
    """Return the control of a statement: its option is the declared one."""
    option = options_of(name)[0]
    assert name in QUESTIONS
    switch = (option, True) if is_flag(name) else None
    return Control(option, "", label, kind, choices, switch=switch, **more)


def _of_choice(item: StrategyChoice) -> Control:
    """Return the control of a choice, built from its declaration."""
    values, legal = item.values, tuple(map(str, item.values.names))
    label = item.label or item.name.replace("_", " ").capitalize()
    unset = item.unset or (item.rule if 0 < len(item.rule) <= _SHORT else "") or _default_text(item)
    more: dict[str, Any] = {"section": item.topic, "common": item.common}
    more |= {} if item.common else {"help": item.sentence()}
    if isinstance(values, Flag):
        switch = (item.option, not item.default)
        return Control(item.word, item.name, label, "select", _YES_NO, (), item.start, unset, values, switch, **more)
    listed = bool(legal) and isinstance(values, Name | Bits)
    kind: Kind = "select" if listed else "number" if values.argument_type else "text"
    slides = item.common and isinstance(values, WholeNumber)
    most = len(_DOUBLINGS) if item.name == "global_batch_size" else _MOST_STEPS
    stops = tuple(n for n in ("0", *_DOUBLINGS[:most]) if int(n) >= values.least) if slides else ()
    parsed = values if values.argument_type or isinstance(values, ByteSize) else None
    return Control(item.option, item.name, label, kind, legal, stops, item.start, unset, parsed, **more)


def _default_text(item: StrategyChoice) -> str:
    """Return the default as an empty control shows it."""
    if isinstance(item.values, Flag):
        return _YES_NO[not item.default]
    if item.default is None or item.default == "":
        return "the usual one"
    return str(item.values.to_argument(item.default)) if isinstance(item.values, ByteSize) else item.default_text


def _names(groups: tuple[ListGroup, ...]) -> tuple[str, ...]:
    return tuple(entry.name for group in groups for entry in group.entries)


def _dollars(text: str) -> float:
    try:
        return parse_dollars(text)
    except UserError:
        raise UserError(f"price {text!r} of a device-hour", "write it as 2.50") from None
