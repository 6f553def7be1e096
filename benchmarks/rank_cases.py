"""What every rank of a lab does around its cases: join the others, run each of the specification, print what rank 0 found."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.training.runs.data import load

Run = Callable[[dict[str, Any], dict[str, Any], Any], dict[str, Any]]
"""Runs one case with what all cases share: the specification, and what was prepared of it."""


def named_data(spec: dict[str, Any]) -> Any:
    """The data set that a specification names."""
    return load(spec["data"])


def run_cases(run: Run, prepare: Callable[[dict[str, Any]], Any] = named_data) -> None:
    """Join the others over gloo, prepare what all cases need, and run every case of the specification file, the only argument
    of the command line. Rank 0 prints one JSON line a case."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    prepared = prepare(spec)
    for case in spec["cases"]:
        result = run(case, spec, prepared)
        gc.collect()  # what a case leaves in cycles would hold the next one's buffers
        if dist.get_rank() == 0:
            print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
