"""Measurements in text logs of training frameworks, by the formats of ``text_formats``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.calibration.imports.measuring import Stated, measured_run
from paceline.calibration.imports.quantities import StepRecords, elapsed_seconds, stamp_seconds
from paceline.calibration.imports.run_measurement import RunFact, RunMeasurement
from paceline.calibration.imports.step_times import LEAST
from paceline.calibration.imports.text_formats import FORMATS, RANK, SETTING, TextFormat
from paceline.calibration.imports.text_lines import text_lines
from paceline.errors import UserError, shorten

CERTAIN = 50
"""Records after which the lines of other formats are no longer looked for."""
_UNKNOWN = (
    "give a log of "
    + ", ".join(dict.fromkeys(item.name.removesuffix(" log") for item in FORMATS if item.name.endswith(" log")))
    + ", or a progress bar's output"
)


@dataclass
class _Reading:
    """Records and facts of one format."""

    format: TextFormat
    records: StepRecords = field(default_factory=StepRecords)
    facts: dict[str, RunFact] = field(default_factory=dict)
    unreadable: int = 0
    block: dict[str, float] | None = None
    signed: bool = False

    def take(self, line: str, number: int) -> None:
        """Read a line."""
        form = self.format
        if not self.signed:
            self.signed = not form.signs or any(sign in line for sign in form.signs)
        if form.block:
            self._take_block(line)
        elif form.mark in line:
            self._record(self._values(line))
        for fact in form.facts:
            if text := fact.read(line):
                if text.replace(",", "").isdigit():
                    text = text.replace(",", "")
                known = self.facts.get(fact.name)
                if known is None or (fact.name.startswith("memory") and float(text) > float(known.value)):
                    self.facts[fact.name] = RunFact(text, f"line {number:,}", shorten(line.strip(), 120))

    def _values(self, line: str) -> dict[str, float]:
        values = {name: value for name, item in self.format.values.items() if (value := item.read(line)) is not None}
        if values and self.format.stamped:
            values["clock_s"] = stamp_seconds(line)
        if self.format.clock and (found := self.format.clock.search(line)):
            values["clock_s"] = elapsed_seconds(found[1])
        if values and (rank := RANK.match(line)):
            values["rank"] = float(rank[1] or rank[2])
        return values

    def _take_block(self, line: str) -> None:
        if self.format.block in line:
            self.close()
            self.block = self._values(line)
        elif self.block is not None and line[:1].isspace():
            self.block |= self._values(line)

    def close(self) -> None:
        """Keep the record of the open block."""
        if self.block:
            self._record(self.block)
        self.block = None

    def _record(self, values: dict[str, float]) -> None:
        needed = self.format.needed
        if needed not in values if needed else not ({"clock_s", "smoothed_step_s", "smoothed_steps_per_s"} & values.keys()):
            return
        if needed and values[needed] != values[needed]:
            self.unreadable += 1
        else:
            self.records.add(values)


def read_log(path: Path, stated: Stated | None = None) -> RunMeasurement:
    """Read a text log. Each line of a step states that step, or a mean over the logged interval.

    Args:
        stated: sizes that the user states.

    Raises:
        UserError: the file cannot be read or has no line of a step; its lines are of steps of different batches; a stated size
            contradicts the file; a rate without the size of a step.
    """
    readings, settings = _scan(text_lines(path))
    usable = [reading for reading in readings if len(reading.records) and reading.signed]
    usable = [reading for reading in usable if len(reading.records) >= LEAST] or usable
    reading = usable[0] if usable else next((r for r in readings if "train_runtime" in r.facts), None)
    if reading is None:
        raise UserError(f"{path.name} has no line of a step", _UNKNOWN)
    facts = {**_settings_facts(reading.format, settings), **reading.facts}
    notes = []
    if reading.unreadable:
        one = reading.unreadable == 1
        lines = (
            "1 line of a step has no number: it does"
            if one
            else f"{reading.unreadable:,} lines of steps have no number: they do"
        )
        notes.append(f"{lines} not count.")
    return measured_run(path.name, reading.format, reading.records, facts, stated or Stated(), notes)


def _scan(lines: Iterable[str]) -> tuple[list[_Reading], dict[str, tuple[str, int]]]:
    """Return the records of each format, and the settings by name with the numbers of their lines."""
    readings = [_Reading(form) for form in FORMATS]
    active = readings
    settings: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines, 1):
        for reading in active:
            reading.take(line, number)
        if " .." in line and (setting := SETTING.search(line)):
            settings.setdefault(setting[1], (setting[2], number))
        if not number % 1024 and len(active) == len(readings) and any(len(r.records) >= CERTAIN for r in readings):
            active = [reading for reading in readings if len(reading.records)]
    for reading in readings:
        reading.close()
    return readings, settings


def _settings_facts(form: TextFormat, settings: dict[str, tuple[str, int]]) -> dict[str, RunFact]:
    facts: dict[str, RunFact] = {}
    for name, (column, cells) in form.settings.items():
        value, number = settings.get(name, ("None", 0))
        cell = cells.get(value.rpartition(".")[2], "") if cells else "" if value in ("None", "1") else value
        if column in ("world_size", "micro_batch") and value.isdigit():
            cell = value
        if cell:
            facts[column] = RunFact(cell, f"line {number:,}", f"{name} {value}")
    return facts
