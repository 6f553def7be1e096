"""JSON of trainers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.calibration.imports.json_runs import JSON_FORMATS, json_format, json_lines
from paceline.calibration.imports.quantities import QUANTITIES
from paceline.calibration.imports.run_files import read_run


def test_each_format_has_its_own_marks() -> None:
    for form in JSON_FORMATS:
        assert form.source and form.values.keys() <= QUANTITIES.keys()
        assert json_format(dict.fromkeys(form.marks, 1)) == form
    assert json_format({"loss": 1}) is None
    assert json_format({"train/train_runtime": 1, "train/train_steps_per_second": 2}) == JSON_FORMATS[-1]  # a summary of W&B


def test_broken_lines_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "a.jsonl"
    line = json.dumps({"current_steps": 1, "elapsed_time": "0:00:30"})
    place.write_text(f'{line}\n[1]\n{line[:-9]}\n{line}\n{{"current_')
    assert len(list(json_lines(place))) == 2


def test_a_cut_history_is_read_to_its_end(tmp_path: Path) -> None:
    place = tmp_path / "trainer_state.json"
    history = [{"step": 9, "train_runtime": 90.0, "train_steps_per_second": 0.1, "train_samples_per_second": 0.8}]
    text = json.dumps({"global_step": 9, "log_history": history, "max_steps": 9})
    place.write_text(text[:-12])
    run = read_run(place)
    assert run.step_s == pytest.approx(10.0) and run.global_batch == 8
