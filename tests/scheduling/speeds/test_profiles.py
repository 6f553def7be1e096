"""Measured profiles: what was measured is given back, and every damaged row is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.speeds.profiles import EPOCH_FILE, STEP_FILE, packed, read_profiles
from scheduling_toys import profile, write_profiles


def test_measured_placements_are_given_back_and_others_lie_between(tmp_path: Path) -> None:
    speed = profile(tmp_path).speed("T4")
    assert speed.measured((4, 4), 16) == pytest.approx((0.106, 0.07))
    assert speed.measured((4, 3), 16) == speed.measured((3, 4), 16)  # rotations are one placement
    assert speed.measured((4,), 24) == pytest.approx((0.05, 0.006))  # between two batches
    assert speed.measured((2, 5), 24) == pytest.approx((0.104, 0.06))  # a placement without a table
    assert np.isnan(speed.measured((4,), 65)[0]) and np.isnan(speed.measured((64, 64), 16)[0])
    assert speed.local_range == (8, 64)


def test_times_of_packed_placements(tmp_path: Path) -> None:
    step, accumulate = profile(tmp_path).speed("T4").step_s(np.array([1, 2]), np.array([4, 8]), np.array([16, 16]))
    assert step == pytest.approx([0.042, 0.106]) and accumulate == pytest.approx([0.036, 0.036])
    assert packed(10, 4) == (4, 4, 2) and packed(8, 4) == (4, 4) and packed(3, 4) == (3,)


def test_epochs_lie_between_measured_batches(tmp_path: Path) -> None:
    epochs = profile(tmp_path).epochs
    assert epochs.count == 3 and epochs.ends.tolist() == [100, 200, 300]
    assert epochs.noise(100, 1).variance == 30 and epochs.noise(100, 1).signal == 1
    assert epochs.steps(32, 2) == 300 and epochs.steps(512, 0) == 12.5 and 12.5 < epochs.steps(100, 0) < 100


def test_of_every_metric_more_is_better(tmp_path: Path) -> None:
    """Of Pollux's models an error rate and a loss are known; a file of one's own says so in a column."""
    rising = [0.5, 0.6, 0.7]
    assert profile(tmp_path).epochs.metric[0].tolist() == pytest.approx(rising)
    file = tmp_path / EPOCH_FILE
    lines = file.read_text().splitlines()
    for word, sign in (("less", -1), ("more", 1), ("", 1)):
        file.write_text("\n".join([f"{lines[0]},better", *(f"{line},{word}" for line in lines[1:])]))
        assert read_profiles(tmp_path)["toy"].epochs.metric[0].tolist() == pytest.approx([sign * value for value in rising])
    file.write_text("\n".join([f"{lines[0]},better", *(f"{line},down" for line in lines[1:])]))
    with pytest.raises(UserError, match=r"row 1 \(line 2\), column better: 'down' is not less or more"):
        read_profiles(tmp_path)
    write_profiles(tmp_path, "yolov3")
    assert read_profiles(tmp_path)["yolov3"].epochs.metric[0].tolist() == pytest.approx([-value for value in rising])


@pytest.mark.skipif("PACELINE_SHARED" not in os.environ, reason="needs the published profiles: PACELINE_SHARED names them")
def test_the_published_metrics_all_rise() -> None:
    for model, measured in read_profiles(Path(os.environ["PACELINE_SHARED"]) / "data" / "profiles").items():
        assert (measured.epochs.metric[:, -1] > measured.epochs.metric[:, 0]).all(), model


def test_a_device_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A100"):
        profile(tmp_path).speed("A100 SXM 40GB")


@pytest.mark.parametrize(
    ("file", "column", "value", "says"),
    [
        (STEP_FILE, "step_time", "fast", "column step_time: 'fast'"),
        (STEP_FILE, "step_time", "", "without its time"),
        (STEP_FILE, "num_nodes", "1.5", "column num_nodes: '1.5'"),
        (STEP_FILE, "local_bsz", "-8", "column local_bsz: '-8'"),
        (STEP_FILE, "sync_time", "nan", "column sync_time: 'nan'"),
        (STEP_FILE, "placement", "4-4", "column placement: '4-4'"),
        (EPOCH_FILE, "batch_size", "", "column batch_size"),
        (EPOCH_FILE, "grad_var", "much", "column grad_var: 'much'"),
        (EPOCH_FILE, "progress", "", "column progress"),
        (EPOCH_FILE, "epoch", "nan", "column epoch: 'nan'"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, file: str, column: str, value: str, says: str) -> None:
    path = write_profiles(tmp_path) / file
    lines = path.read_text().splitlines()
    cells = lines[2].split(",")
    cells[lines[0].split(",").index(column)] = value
    path.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]))
    with pytest.raises(UserError, match=says) as caught:
        read_profiles(tmp_path)
    assert f"{file}, row 2 (line 3)" in str(caught.value)


def test_a_missing_file_and_a_missing_column_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=STEP_FILE):
        read_profiles(tmp_path)
    path = write_profiles(tmp_path) / STEP_FILE
    path.write_text(path.read_text().replace("local_bsz", "batch"))
    with pytest.raises(UserError, match="local_bsz"):
        read_profiles(tmp_path)
