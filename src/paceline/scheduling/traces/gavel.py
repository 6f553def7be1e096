"""Gavel's jobs (OSDI 2020): its physical traces, its table of throughputs, and its generator of continuous traces."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline.csv_rows import Row, read
from paceline.errors import UserError, known_name
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.throughput_run import Throughputs
from paceline.scheduling.traces.published import number, whole
from paceline.scheduling.traces.trace import Trace

JOB_COLUMNS = ("trace", "job_id", "submit_time_s", "duration_s", "num_gpus", "model", "total_steps")
THROUGHPUT_COLUMNS = ("source", "gpu_type", "model", "num_gpus", "steps_per_s")
DEVICES: Mapping[str, str] = {"v100": "V100 SXM2 16GB", "p100": "P100 PCIe 16GB", "k80": "K80"}
"""The catalogue's names of the table's types."""
_FIRST = DEVICES["v100"]
SOURCE = "gavel_simulation"
"""The rows that Gavel's simulator takes; its figures do not follow from those measured on its physical cluster."""
TEMPLATES: tuple[tuple[str, tuple[int, ...], bool], ...] = (
    ("ResNet-18", (16, 32, 64, 128, 256), True),
    ("ResNet-50", (16, 32, 64, 128), True),
    ("Transformer", (16, 32, 64, 128, 256), True),
    ("LM", (5, 10, 20, 40, 80), True),
    ("Recommendation", (512, 1024, 2048, 4096, 8192), False),
    ("A3C", (), False),
    ("CycleGAN", (), False),
)
"""Model, batches, and whether it runs on several devices (Gavel, table 2)."""


def read_gavel(rows: Sequence[Row]) -> Trace:
    """Rigid jobs of a model and a number of steps. Raises UserError naming row and column."""
    return Trace.of_rows(rows, _job)


def _job(row: Row) -> Job:
    return Job(
        name=row.text("job_id"),
        arrival_s=number(row, "submit_time_s"),
        duration_s=number(row, "duration_s"),
        model=row.text("model"),
        devices=whole(row, "num_gpus"),
        steps=number(row, "total_steps"),
    )


def read_throughputs(path: str | Path, source: str = SOURCE) -> Throughputs:
    """The table of ``gavel_throughputs.csv``, for devices packed on as few nodes as can be.

    Raises:
        UserError: the file is not of these columns; it has no such source; a cell is no number.
    """
    table: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    sources = set()
    for row in read(path, THROUGHPUT_COLUMNS):
        sources.add(row.text("source"))
        device = DEVICES.get(row.text("gpu_type"))
        if row.text("source") != source or device is None:
            continue
        devices = row.whole("num_gpus")
        if devices is None:
            raise row.wrong("num_gpus", "a whole number from 1 up")
        table[row.text("model")][device][devices] = row.number_of("steps_per_s") or 0.0
    known_name("source", source, sorted(sources))
    return {model: dict(devices) for model, devices in table.items()}


def continuous_jobs(throughputs: Throughputs, jobs_per_hour: float, seed: int = 0, several: bool = False) -> Iterator[Job]:
    """Gavel's continuous trace without end: Poisson arrivals, models drawn evenly, 80 % of the durations of 10^1.5 to 10^3
    minutes and 20 % of 10^3 to 10^4 on a V100 (section 7.1), with the draws of its generator.

    Args:
        jobs_per_hour: arrivals.
        several: whether 30 % of the jobs ask for 2, 4 or 8 devices; else all ask for one.

    Raises:
        UserError: a rate that is not above 0.
    """
    if not 0 < jobs_per_hour < math.inf:
        raise UserError(f"{jobs_per_hour} jobs an hour", "give a number above 0")
    templates = [
        (f"{model} (batch size {batch})" if batch else model, spreads)
        for model, batches, spreads in TEMPLATES
        for batch in (batches or (0,))
    ]
    what, when = random.Random(seed + 2), random.Random(seed + 3)
    arrival_s, number = 0.0, 0
    while True:
        draw = what.uniform(0, 1)
        devices = 1 if draw < 0.7 else 2 if draw <= 0.8 else 4 if draw < 0.95 else 8
        minutes = 10 ** (what.uniform(3, 4) if what.random() >= 0.8 else what.uniform(1.5, 3))
        devices = devices if several else 1
        model, spreads = what.choice(templates)
        while devices > 1 and not spreads:
            model, spreads = what.choice(templates)
        steps = 60 * minutes * throughputs[model][_FIRST][devices]
        yield Job(name=str(number), arrival_s=arrival_s, model=model, devices=devices, steps=steps, duration_s=60 * minutes)
        number += 1
        arrival_s -= math.log(1 - when.random()) * 3600 / jobs_per_hour


__all__ = ["DEVICES", "JOB_COLUMNS", "SOURCE", "TEMPLATES", "continuous_jobs", "read_gavel", "read_throughputs"]
