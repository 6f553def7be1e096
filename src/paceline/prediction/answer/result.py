"""A prediction: its figures, its assumptions, and both as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Any, Literal, Self

from paceline.errors import UserError, shown
from paceline.hardware.placement import nodes_text
from paceline.memory_timeline import BEYOND, OUTSIDE, MemoryTimeline, fullest, of_rank
from paceline.prediction.step.memory import FRAGMENTED, Fit
from paceline.prediction.step.waits import BETWEEN, LANE, OVERLAP_LOSS
from paceline.record import Metrics
from paceline.strategy.choices.choice_values import Name
from paceline.strategy.frameworks import LEVELS
from paceline.strategy.parallelism import WITHIN_LAYER
from paceline.strategy.strategy import CHOICES, Strategy
from paceline.units import format_bytes, format_memory, format_seconds, format_seconds_range

_USUAL_NAMES = {
    item.name: Strategy(global_batch_size=1).choice(item.name) if item.part else ""
    for item in sorted(CHOICES.values(), key=lambda item: item.part)  # the strategy's own, its exchange's, its mesh's
    if item.recorded and isinstance(item.values, Name)
}
"""Choices that one line of a prediction states, and the value at which it leaves them out."""
NARROWEST = 40
"""Least number of columns of an explanation."""
AssumptionKind = Literal[
    "accuracy",
    "calibrated",
    "codec",
    "constants",
    "corrected",
    "coverage",
    "device",
    "exchange",
    "fit",
    "free resource",
    "held-out error",
    "input pipeline",
    "links",
    "memory",
    "optimizer",
    "overlap",
    "parallelism",
    "parts",
    "payload",
    "read back",
    "recomputation",
    "stragglers",
    "uncalibrated",
    "unused",
    "workload",
]
"""Subjects of an assumption. ``read back``: it comes from a file, which stores only the text."""


class Assumption(str):
    """One assumption of a prediction. The string is its text, ``kind`` its subject.

    Attributes:
        source: source of the fact, by the catalogue or the file of constants; empty for an assumption of the model itself.
    """

    kind: AssumptionKind
    source: str

    def __new__(cls, kind: AssumptionKind, text: str, source: str = "") -> Self:
        """Create an assumption with the sentence ``text``."""
        assumption = super().__new__(cls, text)
        assumption.kind, assumption.source = kind, source
        return assumption

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        return self.kind, str(self), self.source


@dataclass(frozen=True, kw_only=True)
class Prediction(Metrics):
    """A predicted step. Its metrics are those of ``RunRecord``, so a measurement can be subtracted.

    Attributes:
        cluster: the predicted cluster, by names.
        memory: bytes on one device by purpose; they sum to ``memory_bytes``.
        fits: whether they fit the device's memory. ``missing_bytes``: how many more it would need. ``fit``: the same in words;
            ``may not fit`` if the headroom for fragments does not (``memory.FRAGMENTED``), which a plan reserves.
        framework: name of the software that trains. ``software``: the level of its constants, ``ordinary`` or ``tuned``.
        attention: kernel of attention (``calibration.attention``); empty in a network without attention.
        held_out_error: mean of |predicted - measured| / measured of such predictions on published runs; None without such runs.
        useful_tokens_per_s: tokens without padding, if samples differ in length; else 0.
        counted: share of the workers' steps that count in the trained model, where late workers are left behind; else 1.
        parts: seconds of the step by part, if its task has several; they sum to ``step_time_s``.
        exposed: seconds of the step by what it waits for. They sum to ``step_time_s``; the largest is the ``bottleneck``.
        memory_timelines: memory over time, one timeline for ranks that do the same; empty in a prediction that was read back.
        assumptions, timeline, memory_timelines: computed on first access.
    """

    assumptions: tuple[Assumption, ...]
    cluster: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    fits: bool = True
    fit: Fit = "fits"
    missing_bytes: float = 0.0
    framework: str = "ordinary"
    software: str = "ordinary"
    attention: str = ""
    held_out_error: float | None = None
    exposed: Mapping[str, float] = field(default_factory=dict)
    memory_timelines: Sequence[MemoryTimeline] = field(default=(), repr=False, compare=False)
    parts: Mapping[str, float] = field(default_factory=dict)
    useful_tokens_per_s: float = 0.0
    counted: float = 1.0

    @property
    def allocated_bytes(self) -> float:
        """Peak of the tensors that PyTorch allocates (``torch.cuda.max_memory_allocated``)."""
        return self.memory_bytes - sum(self.memory.get(name, 0.0) for name in BEYOND)

    @property
    def reserved_bytes(self) -> float:
        """Peak that PyTorch reserves for tensors and fragments (``torch.cuda.max_memory_reserved``)."""
        return self.memory_bytes - sum(self.memory.get(name, 0.0) for name in OUTSIDE)

    def __repr__(self) -> str:
        """Return one line: the network, the cluster, the main choices and the step time. ``explain()`` gives the rest."""
        s, on = self.strategy, self.cluster
        choices = [str(s[name]) for name, usual in _USUAL_NAMES.items() if s.get(name) and s[name] != usual]
        size = nodes_text(str(on.get("devices_per_node", 1)), int(on.get("num_nodes", 1)))
        where = f" on {size} {on['device']}" if "device" in on else ""
        batch = f"batch {s['global_batch_size']}" if "global_batch_size" in s else ""
        span = format_seconds_range(self.low_s, self.high_s, self.step_time_s)
        step = f"{format_seconds(self.step_time_s)} a step ({span})"
        return f"{type(self).__name__}({self.workload!r}{where}: {', '.join(filter(None, [batch, *choices, step]))})"

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict with ``schema`` and the texts of the assumptions, without the timeline (see a trace file)."""
        plain: Any = tuple(str(assumption) for assumption in self.assumptions)
        data = super(Prediction, replace(self, assumptions=plain, timeline=(), memory_timelines=())).to_json()
        left_out = {"memory_timelines", *(name for name in ("parts", "useful_tokens_per_s") if not getattr(self, name))}
        left_out |= {"counted"} if self.counted == 1 else set()
        return {name: value for name, value in data.items() if name not in left_out}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a dict of ``to_json``. Keys of later schemas are ignored."""
        texts = tuple(Assumption("read back", text) for text in data["assumptions"])
        return super().from_json({**data, "assumptions": texts})

    def memory_timeline(self, rank: int | None = None) -> MemoryTimeline:
        """Return the memory of one step over time, of the fullest ranks or of a named one.

        Its ``peak_bytes`` are the predicted bytes of those ranks. ``memory_snapshot.write`` makes a file for PyTorch's viewer.

        Raises:
            UserError: no such rank; a prediction that was read from a file.
        """
        if not self.memory_timelines:
            raise UserError("a prediction from a file has no memory over time", "predict the step again")
        if rank is None:
            return fullest(self.memory_timelines)
        if type(rank) is not int or (found := of_rank(self.memory_timelines, rank)) is None:
            last = self.memory_timelines[-1].ranks[-1]
            raise UserError(f"rank {shown(rank)} of a job with {last + 1:,} ranks", f"give a number from 0 to {last:,}")
        return found

    @property
    def headline(self) -> str:
        """Warning that the step does not or may not fit, with the missing memory; empty if it fits."""
        if self.fit == "may not fit":
            return f"MAY NOT FIT: fragments of memory may take the {FRAGMENTED:.0%} beyond what the step allocates."
        return "" if self.fits else f"DOES NOT FIT: {self.missing_bytes / 2**30:,.4g} GiB are missing on each device."

    @property
    def overlap_loss_s(self) -> float:
        """Seconds of ``exposed_comm_s`` that compute and exchange lose by running at once, by the timeline."""
        lost = sum(event.duration_s for event in self.timeline if event.name == OVERLAP_LOSS)
        return min(lost, self.exposed_comm_s)

    @property
    def critical_path(self) -> str:
        """Chain of events that determines the step, in one sentence."""
        return _critical_path(self)

    def explain(self, width: int = 80) -> str:
        """Explain the parts of the step time, the critical path, the reasons for the range, and the assumptions.

        Args:
            width: columns of a line, such as ``shutil.get_terminal_size().columns``.

        Raises:
            UserError: less than 40 columns.
        """
        if type(width) is not int or width < NARROWEST:
            raise UserError(f"{shown(width)} columns", f"give a whole number from {NARROWEST} up")
        return "\n".join(_lines(self, width))


def _lines(p: Prediction, width: int) -> Iterator[str]:
    if p.headline:
        yield from (*wrap(p.headline, width), "")
    yield from wrap(
        f"One step of {p.workload} takes {format_seconds(p.step_time_s)} "
        f"({format_seconds_range(p.low_s, p.high_s, p.step_time_s)}): {p.samples_per_s:.4g} samples/s.",
        width,
    )
    yield ""
    yield from wrap("Time of the step by the resource that it waits for:", width)
    for name, seconds in sorted(p.exposed.items(), key=lambda item: -item[1]):
        if seconds > 0:
            yield f"  {name:<18}{format_seconds(seconds):>12}{seconds / p.step_time_s:>7.1%}"
    if p.parts:
        yield ""
        yield from wrap("Parts of the step, one after the other:", width)
        for name, seconds in p.parts.items():
            yield f"  {name:<18}{format_seconds(seconds):>12}{seconds / p.step_time_s:>7.1%}"
    yield ""
    yield from wrap(f"Critical path: {p.critical_path}", width)
    yield from wrap(f"Range: {_range(p)}", width)
    yield ""
    fit = "" if p.fit == "fits" else f", which {p.fit}"
    yield from wrap(f"Memory on one device: {format_memory(p.memory_bytes)}{fit}", width)
    for name, size in p.memory.items():
        if size:
            yield f"  {name:<18}{format_memory(size):>12}"
    yield ""
    yield "Assumptions:"
    for sentence in p.assumptions:
        yield from wrap(sentence, width, initial_indent="- ", subsequent_indent="  ", break_long_words=True)


def _critical_path(p: Prediction) -> str:
    update = next(event for event in p.timeline if event.name == "optimizer")
    backward = max((e.end_s for e in p.timeline if e.name.startswith("backward")), default=0.0)
    if p.comm_s + p.codec_s == 0 and not any(map(p.exposed.get, ("pipeline bubble", "pipeline send"))):
        return "forward, backward, optimizer; nothing is exchanged."
    if p.exposed_comm_s == 0 and not p.exposed.get("pipeline bubble"):
        return (
            f"forward, backward, optimizer. The exchange of {format_bytes(p.wire_bytes_per_device)} "
            f"({format_seconds(p.comm_s)} of network) overlaps the backward pass completely."
        )
    divided = any(p.strategy.get(name, 1) != 1 for name in WITHIN_LAYER)
    if p.exposed.get("pipeline bubble", 0.0) > 0 or divided:
        return _path_on_a_mesh(p, update.start_s)
    between = sum(e.duration_s for e in p.timeline if (e.lane, e.name) == (LANE, BETWEEN))
    last = max(
        (e for e in p.timeline if e.lane not in ("compute", LANE) and e.name != BETWEEN), key=lambda e: e.end_s, default=update
    )
    after = update.start_s - backward
    within = p.exposed_comm_s - between - after
    waiting = f"; {format_seconds(within)} of this time they wait for the exchange" if within > 1e-3 * p.step_time_s else ""
    lost = min(p.overlap_loss_s, after)
    others = f" After its step a worker waits {format_seconds(between)} for the others, in the mean." if between else ""
    both = f", and {format_seconds(lost)} are lost because compute and exchange ran at once" if lost else ""
    return (
        f"forward and backward take {format_seconds(backward)}{waiting}. Then {format_seconds(after - lost)} of the exchange "
        f"are exposed (the last part is {last.name}){both}. The optimizer starts at {format_seconds(update.start_s)}."
        f"{others} The bottleneck is {p.bottleneck}."
    )


def _path_on_a_mesh(p: Prediction, update_s: float) -> str:
    """Describe the critical path if several devices hold the network: the waits of the stage with the most work."""
    bubble, sends = (p.exposed.get(name, 0.0) for name in ("pipeline bubble", "pipeline send"))
    worked, exchanged = p.compute_s - bubble, max(0.0, p.exposed_comm_s - sends)
    waits = [f"{format_seconds(exchanged)} for collectives and the exchange"] if exchanged else []
    waits += [f"{format_seconds(sends)} for sends between stages (pipeline send)"] if sends else []
    waits += [f"{format_seconds(bubble)} for other stages (pipeline bubble)"] if bubble else []
    return (
        f"the stage with the most work computes {format_seconds(worked)} and waits {' and '.join(waits) or 'for nothing'}. "
        f"The optimizer starts at {format_seconds(update_s)}. The bottleneck is {p.bottleneck}."
    )


def _range(p: Prediction) -> str:
    """Describe the coverage of the range."""
    kinds = {assumption.kind for assumption in p.assumptions}
    payload = ". It covers the smallest and the largest payload of the gradients" if "payload" in kinds else ""
    if "calibrated" in kinds:
        return f"the spread of the calibration's repetitions{payload}. It does not cover load that starts later."
    share = "80 % of measured steps" if p.framework in LEVELS else "nine of ten steps that users report under such a framework"
    return (
        f"{share} should lie in it. It comes from the errors of the constants on held-out measurements "
        f"and from slower and faster links{payload}. Observed steps or a calibration on the machine narrow it."
    )
