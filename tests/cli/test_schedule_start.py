"""``paceline schedule start``."""

from __future__ import annotations

import json

import pytest

from paceline.cli import main
from paceline.cli.schedule_start import CommandLengths
from queues import waits

FILES = ["examples/queue/squeue.txt", "--nodes", "examples/queue/sinfo.txt", "--history", "examples/queue/sacct.txt"]


def test_the_whole_queue_and_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "start", *FILES, "--futures", "16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["jobs"]
    assert main(["schedule", "start", *FILES, "--futures", "16", "--job", "5021"]) == 0
    text = capsys.readouterr().out
    assert "Why it waits" in text and len(rows) == 5
    assert main(["schedule", "start", FILES[0]]) == 2
    assert "--cluster" in capsys.readouterr().err
    assert main(["schedule", "start", *FILES, "--futures", "0"]) == 2
    assert "at least 8" in capsys.readouterr().err


@pytest.mark.long
def test_a_command_line_is_predicted_as_ask_does() -> None:
    command = (
        "torchrun --nproc_per_node=8 t.py --model_name_or_path gpt2 --per_device_train_batch_size 8 --bf16 --max_steps 2000"
    )
    lengths = CommandLengths()
    found = lengths(waits("x", 8, command=command, device_types=("A100",)))
    assert found is not None and 60 < float(found.quantile(0.5)) < 7200
    assert lengths(waits("x", 8, command="sleep 3", device_types=("A100",))) is None
    assert lengths(waits("x", 8, command=command)) is None  # the device is unknown
