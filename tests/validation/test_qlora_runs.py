"""Published QLoRA runs: no verdict is dangerous, and memory and speed are met as the README says."""

from __future__ import annotations

import csv
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parents[2] / "validation/qlora"


def compare() -> ModuleType:
    spec = spec_from_file_location("qlora_compare", HERE / "compare.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_published_runs_fit_where_they_ran() -> None:
    script = compare()
    with (HERE / "runs.csv").open(newline="") as file:
        runs = [script.scored(row) for row in csv.DictReader(file)]
    assert not [run.id for run in runs if run.is_dangerous or run.is_refused]
    plain = [abs(run.memory_error) for run in runs if run.memory_error is not None and not run.id.startswith("ax")]
    assert sorted(plain)[len(plain) // 2] < 0.15 and max(plain) < 0.43
    speeds = [abs(run.speed_error) for run in runs if run.speed_error is not None]
    assert len(speeds) == 9 and sorted(speeds)[4] < 0.1 and all(run.inside is not False for run in runs)
