"""The verb on the example's files, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from paceline.errors import UserError
from queues import queue, runs, waits

FILES = Path(__file__).parents[3] / "examples" / "queue"


def test_files_of_slurm_give_starts_in_order_and_a_single_job_the_same_start() -> None:
    given = {"nodes": FILES / "sinfo.txt", "history": FILES / "sacct.txt", "futures": 16}
    whole = paceline.schedule_start(FILES / "squeue.txt", **given)
    assert [each.job.name for each in whole.jobs] == ["5020", "5021", "5022", "5023", "5024"]
    assert whole.moment(0.0) == "2026-11-02T09:00:00" and [job.name for job in whole.queue.held] == ["5025"]
    assert whole.jobs[3].start() == 0.0  # one device is free
    one = paceline.schedule_start(FILES / "squeue.txt", job="5021", **given)
    assert one.jobs[0].start() == whole.jobs[1].start()


def test_wrong_questions_are_refused() -> None:
    there = queue(runs("r", 8, 1.0), waits("w", 8))
    for wrong in ({"job": "w", "new": "8 for 3h"}, {"job": "z"}, {"futures": 2}):
        with pytest.raises(UserError):
            paceline.schedule_start(there, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="which nodes"):
        paceline.schedule_start(FILES / "squeue.txt")
    with pytest.raises(UserError, match="slurm"):
        paceline.schedule_start("slrum")
    with pytest.raises(UserError, match="together"):
        paceline.schedule_start(FILES / "squeue.txt", nodes=FILES / "sinfo.txt", cluster="1x8xA100")


@pytest.mark.parametrize(("text", "cluster"), [('{"jobs": []}', "1x8xA100"), ("items: []\nkind: List\n", ""), ("[]", "")])
def test_an_empty_queue_is_an_answer(text: str, cluster: str) -> None:
    answer = paceline.schedule_start("-", cluster=cluster, stdin=lambda: text)
    assert answer.jobs == () and answer.to_json()["waiting"] == 0 and 'state="waiting"} 0' in answer.metrics()


def test_a_new_job_whose_work_tells_no_length_says_so() -> None:
    there = queue(runs("r", 8, 1.0), waits("w", 8))
    answer = paceline.schedule_start(there, new="8 A100 for llama-3-8b 1B tokens", futures=8, predict=lambda job: None)
    assert answer.queue.remarks == ("llama-3-8b --tokens 1B on 8 devices is not predicted: state a length, as in 'for 3h'.",)
    assert answer.jobs[0].source == "a guess: it has no history and no limit"
