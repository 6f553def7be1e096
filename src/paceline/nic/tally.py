"""Count of comparisons of an engine's Verilog with a codec, with the first difference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.nic.verilated import EngineFailure, ModelRun

BEAT = 32  # bytes


@dataclass(frozen=True)
class Verified:
    """Result of a comparison.

    Attributes:
        what: subject of the comparison. ``cases``: number of values, patterns, vectors or frames.
        cycles, beats: cycles and beats of both engines together; beats in and out.
        agreed: every bit. ``difference``: the first difference, or the reason why nothing was compared; empty if all agree.
    """

    what: str
    cases: int
    cycles: int
    beats: int
    seconds: float
    agreed: bool
    difference: str


@dataclass(frozen=True)
class Wanted:
    """Expected output for one frame.

    Attributes:
        case: name of frame and engine.
        content: all bytes.
        refused: the engine must signal an error; then only the length and the ``beats`` of the header are compared.
    """

    case: str
    content: bytes
    refused: bool = False
    beats: int = 0

    def difference(self, got: bytes, error: bool) -> str:
        """Describe the first difference of an output; empty if there is none."""
        head = BEAT * self.beats
        if error != self.refused:
            return f"{self.case}: error is {error}"
        if self.refused:
            same = len(got) == len(self.content) and got[:head] == self.content[:head]
            behind = " behind the same header" if head else ""
            return "" if same else f"{self.case}: {len(got)} bytes, expected {len(self.content)}{behind}"
        return "" if got == self.content else f"{self.case}: {first_difference(got, self.content)}"


@dataclass
class EngineTally:
    """Running count of a comparison.

    Attributes:
        seed: seed of the stalls in all batches.
    """

    seed: int
    cycles: int = field(default=0, init=False)
    beats: int = field(default=0, init=False)
    batches: int = field(default=0, init=False)
    difference: str = field(default="", init=False)
    started: float = field(default_factory=time.monotonic, init=False)

    def run(self, drive: Callable[[int], ModelRun], first: str) -> ModelRun | None:
        """Run the next batch of frames, which begins with the frame ``first``. Return None if the engine failed.

        Args:
            drive: runs it with a seed for its stalls.
        """
        self.batches += 1
        try:
            run = drive(self.seed * 1_000_003 + self.batches)
        except EngineFailure as error:
            self.difference = f"{error} (frames from {first})"
            return None
        self.cycles += run.cycles
        self.beats += run.beats_in + run.beats_out
        return run

    def agree(self, run: ModelRun, wanted: Sequence[Wanted]) -> bool:
        """Return whether every frame came out as expected; ``difference`` describes the first that did not."""
        for want, got, error in zip(wanted, run.frames, run.errors, strict=True):
            self.difference = want.difference(got, error)
            if self.difference:
                return False
        return True

    def result(self, what: str, cases: int) -> Verified:
        """Return the result for a subject with its number of cases."""
        seconds = time.monotonic() - self.started
        return Verified(what, cases, self.cycles, self.beats, seconds, not self.difference, self.difference)


def first_difference(got: bytes, want: bytes) -> str:
    """Describe the first difference of two frames."""
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    found, expected = got[at : at + 4].hex() or "missing", want[at : at + 4].hex() or "none"
    return f"byte {at} is {found}, expected {expected} ({len(got)} and {len(want)} bytes)"
