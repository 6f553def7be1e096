"""Measurement of a run from its files: the kind of a file is recognized by its content."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.calibration.imports.device_state import MARKS, device_states
from paceline.calibration.imports.event_file import is_event_file
from paceline.calibration.imports.exports import read_events, read_export, read_json_table
from paceline.calibration.imports.json_runs import json_format, read_json_lines, read_json_run
from paceline.calibration.imports.kineto import read_traces
from paceline.calibration.imports.logs import read_log
from paceline.calibration.imports.measuring import Stated
from paceline.calibration.imports.run_measurement import RunFact, RunMeasurement
from paceline.calibration.imports.text_lines import head, text_lines
from paceline.errors import UserError


@dataclass(frozen=True)
class OtherFile:
    """A kind of file that measures no run.

    Attributes:
        name: what it is.
        marks: texts of its start; each tuple is one way to recognize it, all of whose texts are there.
        fix: next step.
    """

    name: str
    marks: tuple[tuple[str, ...], ...]
    fix: str


_SETTINGS = "it states settings and no times: give a log of the run"
IN_FOLDERS = (
    "trainer_log.jsonl",
    "trainer_state.json",
    "checkpoint-*/trainer_state.json",
    "all_results.json",
    "*tfevents*",
    "runs/*/*tfevents*",
    "lightning_logs/*/*tfevents*",
    "lightning_logs/*/metrics.csv",
)
"""Files of a run in its output folder, the best first; of several of one kind the last by name and number."""
OTHER_FILES = (
    OtherFile("a table of Slurm's jobs", (("JobID|",), ("JobIDRaw|",)), "paceline schedule compare reads it"),
    OtherFile("a Slurm script", (("#SBATCH ",),), _SETTINGS),
    OtherFile("a DeepSpeed configuration", (('"zero_optimization"',), ('"train_micro_batch_size_per_gpu"',)), _SETTINGS),
    OtherFile("an Accelerate configuration", (("compute_environment:",), ("distributed_type:", "num_processes:")), _SETTINGS),
    OtherFile("an axolotl configuration", (("base_model:", "micro_batch_size:"),), _SETTINGS),
    OtherFile("a LLaMA-Factory configuration", (("model_name_or_path:", "finetuning_type:"),), _SETTINGS),
    OtherFile("a torchtitan configuration", (("[training]", "seq_len"),), _SETTINGS),
)


def read_run(
    paths: Path | str | Sequence[Path | str],
    *,
    global_batch: int | None = None,
    seq_len: int | None = None,
    world_size: int | None = None,
    columns: Mapping[str, str] | None = None,
    unit: str = "",
    warmup: int | None = None,
) -> RunMeasurement:
    """Read a run from a log, an export, an event file, JSON of a trainer, profiler traces, or the output of nvidia-smi.

    Args:
        paths: one file or the output folder of a trainer (``IN_FOLDERS``), or traces of the ranks of one job or their folder.
        global_batch: samples of a step over all devices, for rates without it.
        seq_len: tokens of a sequence, for rates of tokens.
        world_size: number of devices, for rates of one device.
        columns: columns of a table by role, as for ``exports.read_export``.
        unit: unit of that column.
        warmup: steps to leave out at the start; None: by their length.

    Raises:
        UserError: no such file; several that are no traces; a file of unknown kind, or without steps and rates; a stated
            size that contradicts the file; options of another kind of file.
    """
    several = [paths] if isinstance(paths, Path | str) else list(paths)
    stated = Stated(global_batch=global_batch, seq_len=seq_len, world_size=world_size)
    files = [file for path in map(Path, several) for file in (_files_in(path) if path.is_dir() else [path])]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is no file", "give a trace, a log or a CSV file")
    if len(files) > 1:
        if not all(_kind(file) == "trace" for file in files):
            traces = sum(file.name.endswith((".json", ".json.gz")) for file in files)
            what = "of different kinds" if traces else "that are no traces"
            raise UserError(f"{len(files)} files {what}", "give traces of the ranks of one job, or one other file")
        return replace(_of_traces(files), warmup=warmup)
    return replace(_read_one(files[0], columns, unit, stated), warmup=warmup)


def _files_in(path: Path) -> list[Path]:
    """Return the best file of a run in its output folder, or the traces in a folder."""
    for pattern in IN_FOLDERS:
        if found := sorted(path.glob(pattern), key=lambda file: [int(n) for n in re.findall(r"\d+", str(file))]):
            return [found[-1]]
    traces = sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))
    if not traces:
        raise UserError(f"{path} has no trace", "give a file of the run, or a directory of .json or .json.gz files")
    return traces


def _read_one(file: Path, columns: Mapping[str, str] | None, unit: str, stated: Stated) -> RunMeasurement:
    kind = _kind(file)
    if (columns or unit) and kind not in ("table", "events", "history"):
        raise UserError(f"{file.name} has no columns", "leave --column and --unit out: they are for CSV files")
    match kind:
        case "trace":
            return _of_traces([file])
        case "table":
            return read_export(file, columns, unit, stated)
        case "events":
            return read_events(file, columns, unit, stated)
        case "history":
            return read_json_table(file, columns, unit, stated)
        case "json lines":
            return read_json_lines(file, stated)
        case "json":
            return read_json_run(file, stated)
        case "devices":
            return _of_devices(file)
    return read_log(file, stated)


def _kind(file: Path) -> str:
    """Return the kind of a file by its content. Raises UserError for a file that measures no run."""
    first = head(file)
    if is_event_file(first):
        return "events"
    text = first.decode("utf-16" if first[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace").lstrip()
    for other in OTHER_FILES:
        if any(all(mark in text for mark in marks) for marks in other.marks):
            raise UserError(f"{file.name} is {other.name}", other.fix)
    if text[:1] in "{[" and (kind := _json_kind(text)):
        return kind
    lines = text.splitlines()
    if any(mark in text for mark in MARKS) and device_states(lines):
        return "devices"
    return "table" if file.name.removesuffix(".gz").endswith((".csv", ".tsv")) else "log"


def _json_kind(text: str) -> str:
    """Return the kind of a text that may be JSON; empty for a log whose lines start with a brace or a bracket."""
    first, _, rest = text.partition("\n")
    try:
        record = json.loads(first)
    except ValueError:
        record = None
    if isinstance(record, dict) and rest.lstrip().startswith("{"):
        return "json lines" if json_format(record) else "history"
    if '"traceEvents"' in text or '"ph"' in text:
        return "trace"
    if text.startswith("{") and not text.startswith("{'"):
        return "json"
    return "trace" if text[1:].lstrip().startswith("{") and text.startswith("[") else ""


def _of_traces(files: Sequence[Path]) -> RunMeasurement:
    steps = read_traces(files)
    facts = {name: RunFact(value, "", "deviceProperties") for name, value in steps.job.items()}
    if steps.processes:
        facts["world_size"] = RunFact(str(steps.processes), "", "distributedInfo")
    steps = replace(steps, places={name: str(fact) for name, fact in facts.items()})
    return RunMeasurement(file=files[0].name, kind=steps.source, framework="pytorch", steps=steps, facts=facts)


def _of_devices(file: Path) -> RunMeasurement:
    return RunMeasurement(file=file.name, kind="nvidia-smi", devices=device_states(text_lines(file)))
