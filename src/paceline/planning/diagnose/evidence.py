"""Evidence for causes: lines of logs, states of devices, and the memory of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from paceline.calibration.imports.device_state import DeviceState
from paceline.calibration.imports.run_files import read_run
from paceline.calibration.imports.run_measurement import RunMeasurement
from paceline.calibration.imports.text_lines import text_lines
from paceline.errors import UserError
from paceline.planning.diagnose.causes import causes
from paceline.planning.diagnose.measured import Speed
from paceline.prediction import Prediction
from paceline.units import format_memory, format_seconds

PROOF, HINT, DENIAL = 30.0, 5.0, 1 / 30
"""Factors on the weight of a cause by a sign that proves it, one that hints at it, and one that denies it. Assumptions."""
LINES = 200_000
"""Most lines of a log that are searched."""
LINE_LENGTH = 100
"""Characters of a line that are shown."""
LOW_CLOCK, LOW_POWER = 0.85, 0.5
"""Shares of the highest clock and of the power limit below which a busy device is slowed, or waits."""
BUSY, WAITING, IDLE = 0.9, 0.6, 0.05
"""Shares of the time with a kernel of a device that is busy, that waits for its host or its input, and that has no work."""
MORE_MEMORY, LESS_MEMORY, FULL = 1.5, 0.65, 0.95
"""Shares of the predicted memory that another precision explains, or recomputation; share of the device's memory."""


SAID = "'GPU utilization 40 %', 'first epoch only', 'no NVLink', 'slower on two nodes' or 'one GPU is hot'"
"""Words that a user may add."""
_USE = re.compile(r"(gpu|device)\D{0,25}?(?P<percent>\d{1,3}) ?%", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact that makes a cause more or less probable, by a factor on its weight."""

    cause: str
    text: str
    factor: float


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Speed of a run and evidence from its files; ``speed`` is None if no file states one."""

    runs: tuple[RunMeasurement, ...]
    evidence: tuple[Evidence, ...]

    @property
    def speed(self) -> Speed | None:
        """The first speed that a file states."""
        return next(filter(None, map(_speed, self.runs)), None)


def read_files(paths: Sequence[str], batch: int | None = None, length: int | None = None, size: int | None = None) -> RunFiles:
    """Read logs, traces, exports and outputs of nvidia-smi. A log without steps may hold signs of causes.

    Raises:
        UserError: a file that states neither a speed nor a sign; sizes that contradict the stated ones.
    """
    runs: list[RunMeasurement] = []
    evidence: list[Evidence] = []
    for path in paths:
        signs = list(_signs(Path(path)))
        evidence += signs
        try:
            runs.append(read_run(path, global_batch=batch, seq_len=length, world_size=size))
        except UserError:
            if not signs:
                raise
    return RunFiles(tuple(runs), tuple(evidence))


def said_evidence(words: str) -> tuple[Evidence, ...]:
    """Return what a user's words hint at: ``GPU utilization 40 %``, ``first epoch only``. Raises UserError if it is nothing."""
    found = [
        Evidence(cause.name, f"you saw {words!r}", HINT)
        for cause in causes().values()
        if any(re.search(pattern, words, re.IGNORECASE) for pattern in cause.said)
    ]
    if use := _USE.search(words):
        state = DeviceState(index=0, name="you saw", utilization=float(use["percent"]) / 100)
        found += _of_devices([state])
    if not found and not use:
        raise UserError(f"--seen {words!r} hints at no cause", f"write what you saw like {SAID}")
    return tuple(found)


def _speed(run: RunMeasurement) -> Speed | None:
    if run.step_s:
        return Speed(f"{format_seconds(run.step_s)} by {run.file}", "seconds", run.step_s)
    if run.tokens_per_s:
        return Speed(f"{run.tokens_per_s:,.0f} tokens/s by {run.file}", "tokens", run.tokens_per_s)
    return (
        Speed(f"{run.samples_per_s:.4g} samples/s by {run.file}", "samples", run.samples_per_s) if run.samples_per_s else None
    )


def _signs(path: Path) -> Iterator[Evidence]:
    """Yield the signs that lines of a text file show, each once."""
    if not path.is_file() or path.name.endswith((".json", ".json.gz")) or "tfevents" in path.name:
        return
    left = {(mark, cause.name, factor) for cause in causes().values() for mark, factor in _marks(cause.log, cause.denied)}
    for line in islice(text_lines(path), LINES):
        for mark, cause, factor in [entry for entry in left if entry[0] in line]:
            left.discard((mark, cause, factor))
            yield Evidence(cause, f"{path.name}: {' '.join(line.split())[:LINE_LENGTH]}", factor)


def _marks(shown: Sequence[str], denied: Sequence[str]) -> Iterator[tuple[str, float]]:
    yield from ((mark, PROOF) for mark in shown)
    yield from ((mark, DENIAL) for mark in denied)


def state_evidence(run: RunMeasurement, step: Prediction, memory_bytes: float) -> Iterator[Evidence]:
    """Yield what the states of devices and the memory of a run show.

    Args:
        memory_bytes: of one device.
    """
    yield from _of_devices(run.devices)
    peak = run.peak_memory_bytes
    if peak is None:
        return
    text = f"memory {format_memory(peak)}, predicted {format_memory(step.memory_bytes)}"
    if peak > FULL * memory_bytes:
        yield Evidence("allocator", f"memory {format_memory(peak)} of {format_memory(memory_bytes)}", HINT)
    elif peak > MORE_MEMORY * step.memory_bytes:
        yield from (Evidence(cause, text, HINT) for cause in ("fp32", "eager-attention"))
    elif peak < LESS_MEMORY * step.memory_bytes:
        yield from (Evidence(cause, text, HINT) for cause in ("recompute", "offload", "sharded", "small-batch"))


def _of_devices(states: Sequence[DeviceState]) -> Iterator[Evidence]:
    used = [state for state in states if state.utilization is not None]
    idle = [state for state in used if (state.utilization or 0.0) < IDLE]
    if idle and len(idle) < len(used):
        yield Evidence("fewer-devices", f"{len(idle)} of {len(used)} devices are idle", PROOF)
    for state in used:
        share, text = state.utilization or 0.0, state.describe()
        slowed = state.clock_mhz and state.max_clock_mhz and state.clock_mhz < LOW_CLOCK * state.max_clock_mhz
        if share > WAITING and (state.slowed_by or slowed):
            yield Evidence("clocks", text, PROOF)
            return
    busy = [state for state in used if state not in idle]
    if not busy:
        return
    typical = sorted(busy, key=lambda state: state.utilization or 0.0)[len(busy) // 2]
    share, text = typical.utilization or 0.0, typical.describe()
    if share < WAITING:
        yield from (Evidence(cause, text, HINT) for cause in ("loader", "storage", "slow-host"))
        busy_causes = ("clocks", "padding", "old-libraries", "recompute", "eager-attention", "fp32")
        yield from (Evidence(cause, text, 1 / HINT) for cause in busy_causes)
    elif share > BUSY:
        yield from (Evidence(cause, text, 1 / HINT) for cause in ("loader", "storage", "slow-host"))
        if typical.power_w and typical.power_limit_w and typical.power_w < LOW_POWER * typical.power_limit_w:
            waits = ("network-tcp", "one-nic", "slow-network", "slow-link", "no-p2p", "sharded")
            yield from (Evidence(cause, text, HINT) for cause in waits)
