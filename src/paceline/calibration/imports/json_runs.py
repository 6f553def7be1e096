"""Measurements in JSON files of training frameworks, by format: an object, an object with a list, or an object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.calibration.imports.json_stream import members
from paceline.calibration.imports.measuring import Stated, measured_run
from paceline.calibration.imports.quantities import NAN, StepRecords, elapsed_seconds, parse_number
from paceline.calibration.imports.run_measurement import RunFact, RunMeasurement
from paceline.calibration.imports.text_lines import open_text, text_lines, unreadable
from paceline.errors import UserError, shorten

GIB = 2.0**30
_SUMMARY = ("train_runtime", "train_steps_per_second", "train_samples_per_second")


@dataclass(frozen=True)
class JsonValue:
    """A quantity of an object: the first of its keys that it has.

    Attributes:
        keys: names, without a leading ``train/``.
        scale: factor to the unit of the quantity.
        elapsed: True for a time as text, ``0:01:03``.
    """

    keys: tuple[str, ...]
    scale: float = 1.0
    elapsed: bool = False

    def read(self, record: Mapping[str, Any]) -> float:
        """Return the quantity; NaN if missing."""
        value = next((record[key] for key in self.keys if record.get(key) is not None), None)
        if value is None or isinstance(value, bool | dict | list):
            return NAN
        return elapsed_seconds(str(value)) if self.elapsed else parse_number(str(value)) * self.scale


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """Format of a JSON file.

    Attributes:
        name, framework, counts_all_tokens, untimed, source: as of ``TextFormat``.
        marks: keys that an object of the format has, all of them.
        values: quantities of a record.
        facts: facts of the object by name, and their keys.
    """

    name: str
    framework: str = ""
    marks: tuple[str, ...]
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    counts_all_tokens: bool = False
    untimed: str = "give a log of more steps"
    source: str


JSON_FORMATS = (
    JsonFormat(
        name="Hugging Face trainer_state.json",
        framework="transformers",
        marks=("log_history", "global_step"),
        values={"step": JsonValue(("step",)), "tokens_total": JsonValue(("num_tokens", "num_input_tokens_seen"))},
        facts={"micro_batch": "train_batch_size", "last_step": "global_step"},
        untimed="it has times at the end of the run alone: give the console's output, or the event file under runs/",
        source="transformers 5.24, trainer_callback.py (TrainerState); TRL 0.24, sft_trainer.py (num_tokens)",
    ),
    JsonFormat(
        name="LLaMA-Factory trainer_log.jsonl",
        framework="llama-factory",
        marks=("current_steps", "elapsed_time"),
        values={
            "step": JsonValue(("current_steps",)),
            "clock_s": JsonValue(("elapsed_time",), elapsed=True),
            "tokens_total": JsonValue(("total_tokens",)),
            "memory_bytes": JsonValue(("vram_allocated",), GIB),
        },
        source="LLaMA-Factory 0.9.4, src/llamafactory/train/callbacks.py (LogCallback)",
    ),
    JsonFormat(
        name="MaxText metrics",
        framework="maxtext",
        marks=("perf/step_time_seconds",),
        values={
            "step": JsonValue(("step",)),
            "step_s": JsonValue(("perf/step_time_seconds",)),
            "device_tokens_per_s": JsonValue(("perf/per_device_tokens_per_sec",)),
            "device_tflops": JsonValue(("perf/per_device_tflops_per_sec",)),
        },
        counts_all_tokens=True,
        source="MaxText, MaxText/metric_logger.py (write_metrics_locally)",
    ),
    JsonFormat(
        name="Hugging Face results",
        framework="transformers",
        marks=("train_runtime", "train_steps_per_second"),
        source="transformers 5.24, trainer_pt_utils.py (save_metrics), trainer_utils.py (speed_metrics)",
    ),
)


def json_format(record: Mapping[str, Any]) -> JsonFormat | None:
    """Return the format of an object; None if unknown."""
    keys = set(_plain(record))
    return next((item for item in JSON_FORMATS if keys.issuperset(item.marks)), None)


def read_json_run(path: Path, stated: Stated | None = None) -> RunMeasurement:
    """Read a JSON file of a run: one object.

    Raises:
        UserError: it cannot be read, is no JSON, is of an unknown format; or as ``measured_run``.
    """
    top: dict[str, Any] = {}
    history: list[Mapping[str, Any]] = []
    try:
        with open_text(path) as stream:
            for name, value in members(stream, "log_history"):
                if name == "log_history" and isinstance(value, dict):
                    history.append(value)
                else:
                    top[name] = value
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        if not history:
            raise UserError(f"{path.name} is no complete JSON: {error}", "copy it again") from None
    if history:
        top["log_history"] = True
    return _measured(path, top, history or [top], stated)


def read_json_lines(path: Path, stated: Stated | None = None) -> RunMeasurement:
    """Read a file with one JSON object a line. Raises UserError as ``read_json_run``."""
    first: dict[str, Any] = {}
    records = []
    for record in json_lines(path):
        first = first or record
        records.append(record)
    return _measured(path, first, records, stated)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one a line. A broken line, such as the last of a live run, is left out."""
    for line in text_lines(path):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("train/") if name.startswith("train/train_") else name: value for name, value in record.items()}


def _measured(
    path: Path, top: Mapping[str, Any], history: Sequence[Mapping[str, Any]], stated: Stated | None
) -> RunMeasurement:
    form = json_format(top)
    if form is None:
        keys = ", ".join(list(top)[:8]) or "none"
        raise UserError(f"{path.name} is JSON of no known kind, with the keys {shorten(keys)}", f"give {_known()}")
    records, evaluations, facts = StepRecords(), [], {}
    for name, key in form.facts.items():
        if top.get(key) is not None:
            facts[name] = RunFact(str(top[key]), "", f"{key} {top[key]}")
    for record in map(_plain, history):
        values = {name: item.read(record) for name, item in form.values.items()}
        if any(value == value for name, value in values.items() if name != "step"):
            records.add(values)
        if (seconds := record.get("eval_runtime")) is not None and (took := parse_number(str(seconds))) == took:
            evaluations.append(took)
        if record.get("train_runtime") is not None:
            facts |= {name: RunFact(str(record[name]), "", f"{name} {record[name]}") for name in _SUMMARY if name in record}
    return measured_run(path.name, form, records, facts, stated or Stated(), eval_s=evaluations)


def _known() -> str:
    return "a trace of the PyTorch profiler, " + ", ".join(item.name for item in JSON_FORMATS)
