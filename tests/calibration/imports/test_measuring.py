"""Facts that follow from others, and faults of real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.calibration.imports.run_files import read_run
from paceline.errors import UserError

NANOGPT = "iter {}: loss 5.4, time {}ms, mfu 0.96%\n"


def written(tmp_path: Path, text: str) -> Path:
    place = tmp_path / "a.log"
    place.write_text(text)
    return place


def test_pauses_and_the_start_are_left_out(tmp_path: Path) -> None:
    times = [41000, *[500, 510, 505, 495] * 5, 30000, *[500] * 5]
    run = read_run(written(tmp_path, "".join(NANOGPT.format(n, t) for n, t in enumerate(times))))
    assert (run.steady.warmup, run.steady.pauses, run.step_s) == (1, 1, 0.5)
    assert "(1 at the start and 1 as pauses left out), median 500 ms" in run.took()


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[default{}]:", "{}: ", " {}: "])
def test_of_several_processes_one_counts(tmp_path: Path, prefix: str) -> None:
    lines = (prefix.format(rank) + NANOGPT.format(n, 500 + rank) for n in range(4) for rank in (7, 2, 0))
    run = read_run(written(tmp_path, "".join(lines)))
    assert run.step_s == 0.5 and list(run.notes) == ["It has lines of 3 processes: those of process 0 count."]


def test_processes_without_names_are_joined(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, "".join(NANOGPT.format(n, ms) for n in range(4) for ms in (500, 510, 520))))
    assert run.step_s == 0.51 and "each step 3 times" in run.notes[0]


def test_lines_without_a_number_are_counted(tmp_path: Path) -> None:
    text = "".join(NANOGPT.format(n, t) for n, t in enumerate((500, "nan", 500, 500))) + "iter 4: loss 5.4, time 5"
    run = read_run(written(tmp_path, text))
    assert run.step_s == 0.5 and list(run.notes) == ["1 line of a step has no number: it does not count."]


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    assert read_run(written(tmp_path, "".join(NANOGPT.format(n, "512,25") for n in range(4)))).step_s == 0.51225
    table = tmp_path / "a.csv"
    table.write_text("step;step_time_s\n1;1.234,5\n2;0,5\n3;0,5\n4;0")
    assert read_run(table).step_s == 0.5


def test_summaries_of_a_resumed_run_are_doubted(tmp_path: Path) -> None:
    state = tmp_path / "trainer_state.json"
    state.write_text(
        '{"global_step": 2800, "log_history": [{"step": 200, "eval_runtime": 311.1},'
        ' {"step": 2800, "train_runtime": 976.5, "train_samples_per_second": 4.864, "train_steps_per_second": 0.304}]}'
    )
    run = read_run(state)
    assert run.step_s == pytest.approx(1 / 0.304) and run.global_batch == 16
    assert run.notes == ("Its summary is of 297 steps and the file of 2,800, as after a resumed run.",)


def test_batches_that_change_are_refused(tmp_path: Path) -> None:
    line = "iteration {}/ 9 | elapsed time per iteration (ms): 100.0 | global batch size: {} |\n"
    place = written(tmp_path, "".join(line.format(n, 16 * n) for n in range(1, 9)))
    with pytest.raises(UserError, match="steps of 16, 32, 48, 64, 80, 96 and more samples"):
        read_run(place)
