"""Lengths of samples that are sequences of tokens, and how a batch of them is made of one length.

Lengths follow a log-normal distribution that is cut at the longest: one in a hundred is cut, and the mean is the stated one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, final

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, check_name, shown
from paceline.strategy.choices.choice import EmitRule, Need, Searched, Trained, choice
from paceline.strategy.choices.choice_values import Parsed
from paceline.strategy.choices.values import NamedChoice

PADDINGS = ("longest", "max", "packed")
"""Padding to the longest sample of a micro batch (transformers, ``DataCollatorForLanguageModeling``), to the longest of all, or
samples one after another in full sequences, each of which attends to itself alone (TRL, ``packing``)."""
CUT = 0.01
"""Share of the samples that are cut at the longest. Assumed."""
_EXAMPLE = "write mean=400,max=2048, and padding=longest (default), max or packed"
_POINTS = 2048
_NORMAL = NormalDist()


@final
@dataclass(frozen=True, eq=False)
class SampleLengths(NamedChoice):
    """Tokens of samples.

    Attributes:
        mean, longest: tokens of a sample at the mean and at most; 0: all have the length of the network's sequences.
        padding: a name of ``PADDINGS``.
    """

    mean: float = 0.0
    longest: int = 0
    padding: str = PADDINGS[0]

    @staticmethod
    def of(text: object) -> SampleLengths:
        """Return the lengths of a choice: ``mean=400,max=2048``, also with ``+``, or ``same``. Raises UserError for others."""
        if isinstance(text, SampleLengths):
            return text
        if not isinstance(text, str):
            raise UserError(f"tokens_per_sample={shown(text)}", _EXAMPLE)
        return _parsed(text)

    @property
    def vary(self) -> bool:
        """True if samples differ in length."""
        return self.longest > 0

    @property
    def packed(self) -> bool:
        """True if several samples share a sequence."""
        return self.padding == PADDINGS[2]

    @cached_property
    def name(self) -> str:
        """The choice as the user writes it."""
        if not self.vary:
            return "same"
        padding = "" if self.padding == PADDINGS[0] else f",padding={self.padding}"
        return f"mean={self.mean:g},max={self.longest}{padding}"

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the logarithm of an uncut length."""
        low, high = 1e-9, 20.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_of(middle) > self.mean else (low, middle)
        return low

    def _mean_of(self, spread: float) -> float:
        """Return the mean of cut lengths with this spread (the mean of a limited log-normal variable)."""
        tail = _NORMAL.inv_cdf(1 - CUT)
        middle = math.log(self.longest) - tail * spread
        return math.exp(middle + spread**2 / 2) * _NORMAL.cdf(tail - spread) + CUT * self.longest

    @cached_property
    def _grid(self) -> tuple[Array, Array]:
        """Lengths up to the longest, and the share of samples that are not longer."""
        at = np.linspace(0.0, self.longest, _POINTS + 1)
        scale = math.log(self.longest) - _NORMAL.inv_cdf(1 - CUT) * self.spread
        logs = (np.log(np.maximum(at, 1e-12)) - scale) / self.spread
        return at, np.array([_NORMAL.cdf(x) for x in logs.tolist()])

    @cached_property
    def mean_square(self) -> float:
        """Mean of the squared tokens of a sample."""
        at, below = self._grid
        return float(np.trapezoid(2 * at * (1 - below), at))

    @lru_cache(maxsize=1024)  # noqa: B019 few values live as long as the process
    def longest_of(self, count: float) -> tuple[float, float]:
        """Return mean and standard deviation of the longest of ``count`` samples."""
        at, below = self._grid
        above = 1 - below**count
        mean = float(np.trapezoid(above, at))
        return mean, math.sqrt(max(0.0, float(np.trapezoid(2 * at * above, at)) - mean**2))

    def computed(self, samples: int, micro_batches: int, replicas: int, in_step: bool) -> float:
        """Return the tokens of a padded sample by which a step of all replicas takes its time.

        A micro batch is as long as its longest sample. A step waits for the replica that computes most, and replicas that shard
        weights wait for each other in every micro batch.

        Args:
            samples: of a micro batch.
            in_step: whether replicas wait for each other in every micro batch.
        """
        if self.padding == PADDINGS[1]:
            return float(self.longest)
        most = self.longest_of(samples * replicas)[0]
        if micro_batches == 1 or in_step or replicas == 1:
            return most if micro_batches == 1 or in_step else self.longest_of(samples)[0]
        mean, deviation = self.longest_of(samples)
        slowest = _NORMAL.inv_cdf((replicas - 0.375) / (replicas + 0.25))  # Blom 1958
        return min(most, mean + deviation / math.sqrt(micro_batches) * slowest)


SAME_LENGTHS = SampleLengths()
"""All samples have the length of the network's sequences."""


@lru_cache(maxsize=256)
def _parsed(text: str) -> SampleLengths:
    """Return the lengths of a text. Raises UserError as ``SampleLengths.of``."""
    if text.strip().casefold() in ("", "same"):
        return SAME_LENGTHS
    given = dict[str, str]()
    for part in text.casefold().replace("+", ",").split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        check_name("part of the tokens of a sample", name, ("mean", "max", "padding"))
        given[name] = value
    padding = given.get("padding", PADDINGS[0])
    check_name("padding", padding, PADDINGS)
    try:
        mean, longest = float(given["mean"]), int(given["max"])
    except (KeyError, ValueError):
        raise UserError(f"tokens of a sample {shown(text)}", _EXAMPLE) from None
    if not 1 <= mean < longest <= 1 << 30 or mean < 2 * CUT * longest:
        raise UserError(
            f"samples of {mean:g} tokens at the mean and {longest:,} at most",
            f"give a mean from {2 * CUT:.0%} of the longest up to it: {_EXAMPLE}",
        )
    return SampleLengths(mean, longest, padding)


TOKENS_PER_SAMPLE: Any = choice(
    SAME_LENGTHS,
    Parsed(SampleLengths.of),
    "tokens of samples of different length: mean=400,max=2048, padded to the longest of a micro batch, or with padding=max or "
    "padding=packed (default {default}: all as long as a sequence)",
    label="Lengths of samples",
    metavar="L",
    example="mean=300+max=1024",
    later=True,
    title="samples of {value} tokens",
    affects=("bytes", "time"),
    strategy_needs=(
        Need(
            lambda strategy: strategy.parallelism.context == 1,
            "samples of different length with context parallelism",
            "leave context out, or give all samples one length",
        ),
    ),
    train=Trained("tokens_per_sample {value}", "train pads nothing: give all samples one length"),
    emit=EmitRule("tokens_per_sample {value}", "the data set and its collator decide it"),
    plan=Searched(single=True, help="{help}"),
    source="transformers, data collators; TRL, packing",
)
"""Declaration of the choice."""
