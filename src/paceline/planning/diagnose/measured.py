"""A measured speed in a user's words, ``9,800 tokens/s`` or ``0.58 s/step``, as the seconds of a step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UserError
from paceline.hardware.precision import RECIPES
from paceline.prediction import Prediction
from paceline.prediction.layouts.batch import Candidate
from paceline.units import parse_count, parse_seconds
from paceline.workload.table import Workload

Kind = Literal["seconds", "steps", "tokens", "samples", "mfu", "flops", "slower"]
EXAMPLES = "'9,800 tokens/s', '0.58 s/step', '12 it/s', '45 samples/s', '38 % MFU', '120 TFLOPS' or '3.4 times slower'"
_NUMBER = r"(?P<number>\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)\s*(?P<scale>[kKM](?=\s*(?:tok|samp|img|imag|seq)))?"
_EACH = r"(?:\s*(?:/|per|a|each)?\s*(?P<each>gpus?|devices?|cards?|ranks?|chips?|each))?"
_SECOND = r"(?:\s*(?:/|per|a)\s*(?:s|sec|second)\b)"
_STEP = r"(?:steps?|it|its|iters?|iterations?|batch(?:es)?)"
_FORMS: tuple[tuple[Kind, str], ...] = (
    (
        "tokens",
        rf"(?:tokens?|toks?|tk|words?){_EACH}{_SECOND}(?:(?:\s*/|\s+per|\s+a|\s+each)?\s*(?P<behind>gpus?|devices?|cards?|ranks?|chips?))?",
    ),
    ("tokens", rf"(?:tps|wps|tgs){_EACH}"),
    (
        "samples",
        rf"(?:samples?|images?|imgs?|sequences?|seqs?|examples?){_EACH}{_SECOND}(?:(?:\s*/|\s+per|\s+a|\s+each)?\s*(?P<behind>gpus?|devices?|cards?|ranks?|chips?))?",
    ),
    ("steps", rf"{_STEP}{_SECOND}"),
    ("mfu", r"%\s*(?:mfu)?(?:\s*mfu)?"),
    ("flops", rf"(?P<unit>[TP])F(?:LOPS?|LOP/s|LOPS/s|LOP)?(?:/s)?{_EACH}"),
    ("slower", r"(?:x|times?)\s*(?:slower|as slow|too slow).*"),
    ("seconds", rf"(?P<time>ms|s|sec|secs|seconds?|min|minutes?)(?:\s*(?:/|per|a)\s*{_STEP})?"),
)
_PATTERNS = [(kind, re.compile(rf"\s*{_NUMBER}\s*{form}\s*", re.IGNORECASE)) for kind, form in _FORMS]


@dataclass(frozen=True, slots=True)
class Speed:
    """A measured speed.

    Attributes:
        text: the user's words.
        value: seconds, steps/s, tokens/s, samples/s, share of the peak (``mfu``), FLOP/s, or a factor (``slower``).
        each: True if it is that of one device.
    """

    text: str
    kind: Kind
    value: float
    each: bool = False

    def seconds(self, workload: Workload, candidate: Candidate, prediction: Prediction) -> float:
        """Return the seconds of a step at this speed. Raises UserError for tokens of a network without a sequence."""
        cluster, strategy = candidate
        batch, devices = strategy.global_batch_size, cluster.world_size
        rate = self.value * (devices if self.each else 1)
        if self.kind == "seconds":
            return self.value
        if self.kind == "steps":
            return 1 / self.value
        if self.kind == "slower":
            return self.value * prediction.step_time_s
        if self.kind == "samples":
            return batch / rate
        if self.kind == "tokens":
            if not workload.tokens:
                raise UserError(f"{self.text!r}: a sample of {workload.name} has no tokens", "give samples/s or seconds a step")
            return batch * workload.tokens / rate
        work = workload.flops_per_sample * batch / devices
        if self.kind == "flops":
            return work / self.value
        precision = strategy.precision
        return work / (self.value * cluster.device.peak(RECIPES[precision].peak if precision in RECIPES else precision).value)


def parse_speed(text: str) -> Speed:
    """Parse a measured speed. A rate of tokens or samples is that of all devices unless it says ``per GPU``.

    Raises:
        UserError: text that is none, or a speed that is not positive.
    """
    for kind, pattern in _PATTERNS:
        if found := pattern.fullmatch(text):
            return _speed(text, kind, found)
    if re.fullmatch(r"\s*[\d.,]+\s*", text):
        raise UserError(f"{text.strip()} has no unit", f"write it as {EXAMPLES}")
    raise UserError(f"{text!r} is not a speed", f"write it as {EXAMPLES}")


def _speed(text: str, kind: Kind, found: re.Match[str]) -> Speed:
    parts = found.groupdict()
    value = parse_count(parts["number"]) * {"k": 1e3, "m": 1e6}.get((parts["scale"] or "").casefold(), 1.0)
    if kind == "seconds":
        value = parse_seconds(f"{value!r}{parts['time']}", zero=True)
    elif kind == "mfu":
        value /= 100
    elif kind == "flops":
        value *= {"t": 1e12, "p": 1e15}[parts["unit"].casefold()]
    if value <= 0:
        raise UserError(f"{text!r} is not a speed above 0", f"write it as {EXAMPLES}")
    one = kind == "flops" or bool(parts.get("each") or parts.get("behind")) or bool(re.search(r"\btgs\b", text, re.IGNORECASE))
    return Speed(text.strip(), kind, value, one and kind in ("tokens", "samples", "flops"))
