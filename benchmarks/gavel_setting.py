"""Setting of Gavel's simulator (OSDI 2020): table of throughputs, generator of continuous traces, and speed of a job."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from paceline.array_types import Array
from paceline.csv_rows import read
from paceline.errors import UserError, known_name
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.run import DurationRun

Throughputs = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Model -> device -> devices -> steps a second."""
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


class ThroughputRun(DurationRun):
    """One job whose progress counts in steps of known speed. Its placement makes no difference.

    Raises:
        UserError: no throughput of its model on the devices it asks for; no steps.
    """

    def __init__(self, job: Job, throughputs: Throughputs, fleet: Fleet) -> None:
        super().__init__(job, durations_known=True)
        table = throughputs.get(job.model, {})
        self._steps_per_s = {name: table.get(name, {}).get(job.devices, 0.0) for name in fleet.types}
        if not any(self._steps_per_s.values()):
            asked = f"{job.devices} device{'s' * (job.devices > 1)}"
            raise UserError(
                f"job {job.name!r}: no throughput of {job.model!r} on {asked} of {', '.join(fleet.types)}",
                "give a file that has it, or other devices",
            )
        if not job.steps:
            raise UserError(f"job {job.name!r}: no steps", "a job with throughputs states its steps")
        self.to_next = job.steps
        self._types = fleet.types
        self._tables: dict[tuple[int, int], Array] = {}

    def goodput(self, device_type: int, most: int) -> Array:
        """Steps a second; only the devices asked for are known."""
        key = device_type, most
        if key not in self._tables:
            self._tables[key] = super().goodput(device_type, most) * self._steps_per_s[self._types[device_type]]
        return self._tables[key]

    def seconds_left(self, device_type: int, most: int) -> Array:
        """Seconds to the end; infinite where it cannot run."""
        with np.errstate(divide="ignore"):
            return self.to_next / self.goodput(device_type, most)

    def place(self, device: str, shape: tuple[int, ...], crossed: int = 0) -> None:
        """It goes at the table's speed."""
        self.speed = self._steps_per_s[device] if shape else 0.0


__all__ = ["DEVICES", "SOURCE", "TEMPLATES", "ThroughputRun", "Throughputs", "continuous_jobs", "read_throughputs"]
