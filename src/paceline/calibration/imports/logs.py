"""Step times in logs of Megatron-LM and DeepSpeed.

Megatron-LM, ``megatron/training/training.py`` (``training_log``) and ``arguments.py`` (the list of arguments at the start).
DeepSpeed 0.19.8, ``deepspeed/utils/timer.py`` (``ThroughputTimer``: from the start of the forward pass to the end of the
update, without loading data), ``runtime/pipe/engine.py``, and ``runtime/config.py`` (the list of settings at the start).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.errors import UserError

MEGATRON, DEEPSPEED = "Megatron-LM log", "DeepSpeed log"
_NUMBER = r"([0-9.]+(?:[eE][-+]?\d+)?)"
_ELAPSED = re.compile(rf"elapsed time per iteration \(ms\): *{_NUMBER}")
_BATCH = re.compile(r"global batch size: *(\d+)")
_RATE = re.compile(rf"CurrSamplesPerSec={_NUMBER}")
_PIPELINE = re.compile(rf"iter time \(s\): *{_NUMBER}")
_SETTING = re.compile(r"(?:^|[\s:])([a-z][a-z0-9_]*) \.{2,} (\S+)")
_MEGATRON_COLUMNS = {
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
    "virtual_pipeline_model_parallel_size": "virtual_stages",
    "seq_length": "seq_len",
    "optimizer": "optimizer",
}
"""Arguments of Megatron-LM, and the columns of a table of jobs for them."""
_STAGES = {
    **{"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"},
    **{"disabled": "ddp", "optimizer_states": "zero1", "gradients": "zero2", "weights": "zero3"},
}
"""DeepSpeed's stages by number and by name (``ZeroStageEnum``)."""
_LINE = 1 << 16
"""Most characters of a line that are parsed."""


def read_log(path: Path, global_batch: int | None = None) -> MeasuredSteps:
    """Read the steps of a log: one line each, or each a mean over the logged interval.

    Args:
        global_batch: samples of a step, for a log of DeepSpeed that does not contain it.

    Raises:
        UserError: the file cannot be read, has no such lines, or its lines are of steps of different batches.
    """
    elapsed: list[float] = []
    rates: list[float] = []
    pipeline: list[float] = []
    batches: dict[int, None] = {}
    settings: dict[str, str] = {}
    for line in _lines(path):
        if took := _ELAPSED.search(line):
            elapsed.append(float(took[1]) / 1e3)
            batches |= {int(batch[1]): None for batch in [_BATCH.search(line)] if batch}
        elif rate := _RATE.search(line):
            rates.append(float(rate[1]))
        elif took := _PIPELINE.search(line):
            pipeline.append(float(took[1]))
        elif setting := _SETTING.search(line):
            settings.setdefault(setting[1], setting[2])
    if elapsed:
        if len(batches) > 1:
            raise UserError(
                f"{path.name}: steps of {', '.join(map(str, batches))} samples", "give the lines of one batch alone"
            )
        return _megatron(elapsed, next(iter(batches), None), settings)
    return _deepspeed(path, rates, pipeline, settings, global_batch)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            while line := stream.readline(_LINE):
                yield line
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", "give a log") from error


def _megatron(elapsed: list[float], batch: int | None, settings: Mapping[str, str]) -> MeasuredSteps:
    job = {column: settings[name] for name, column in _MEGATRON_COLUMNS.items() if settings.get(name, "None") != "None"}
    job = {name: value for name, value in job.items() if value != "1"}
    if batch is not None:
        job["global_batch"] = str(batch)
    for precision in ("bf16", "fp16"):
        if settings.get(precision) == "True":
            job["precision"] = precision
    if settings.get("sequence_parallel") == "True":
        job["sequence"] = "yes"
    if settings.get("use_distributed_optimizer") == "True":
        job["sharding"] = "distributed_optimizer"
    if settings.get("recompute_granularity", "None") != "None":
        job["recompute"] = settings["recompute_granularity"]
    world, micro = _count(settings, "world_size"), _count(settings, "micro_batch_size")
    model = 1
    for name in ("tensor", "pipeline", "context"):
        model *= int(job.get(name, 1))
    if world and micro and batch and batch % (micro * max(1, world // model)) == 0:
        job["grad_accum"] = str(batch // (micro * max(1, world // model)))
    return MeasuredSteps(source=MEGATRON, step_s=elapsed, job=job, processes=world)


def _deepspeed(
    path: Path, rates: list[float], pipeline: list[float], settings: Mapping[str, str], global_batch: int | None
) -> MeasuredSteps:
    batch = _count(settings, "train_batch_size") or global_batch
    if pipeline:
        steps = pipeline
    elif not rates:
        raise UserError(
            f"{path.name} has no line of a step",
            "give a log with Megatron-LM's 'elapsed time per iteration (ms)' or DeepSpeed's 'CurrSamplesPerSec'",
        )
    elif not batch:
        raise UserError(f"{path.name} says samples a second and not how many a step has", "give --global-batch")
    else:
        steps = [batch / rate for rate in rates if rate > 0]
    job = {"global_batch": str(batch)} if batch else {}
    if (times := _count(settings, "gradient_accumulation_steps")) > 1:
        job["grad_accum"] = str(times)
    stage = settings.get("zero_optimization_stage", "").rpartition(".")[2]
    if stage in _STAGES:
        job["sharding"] = _STAGES[stage]
    return MeasuredSteps(source=DEEPSPEED, step_s=steps, job=job, processes=_count(settings, "world_size"))


def _count(settings: Mapping[str, str], name: str) -> int:
    """Return the whole number of a setting; 0 if missing."""
    value = settings.get(name, "")
    return int(value) if value.isdigit() else 0
