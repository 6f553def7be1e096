"""Queues from the schedulers' own programs, which are played."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kueue_queues import kueue_text, workload
from paceline.errors import UserError
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.live_source import read_waiting_queue, run_program

FILES = Path(__file__).parents[3] / "examples" / "queue"


def test_slurm_is_asked_for_queue_history_and_nodes() -> None:
    def run(words: Sequence[str]) -> str:
        text = (FILES / f"{words[0]}.txt").read_text()
        return text.split("\n", 1)[1].replace("\n", "|8|(null)\n") if words[0] == "squeue" else text

    found = read_waiting_queue("slurm", run=run)
    assert (len(found.running), len(found.waiting), len(found.history), found.nodes.total) == (8, 5, 60, 32)
    assert all(dict(job.resources)["cpu"] == 8 for job in found.running)
    again = read_waiting_queue("-", nodes=FILES / "sinfo.txt", stdin=(FILES / "squeue.txt").read_text)
    assert len(again.waiting) == 5 and not again.history


def test_a_cluster_without_gpus_is_counted_in_nodes() -> None:
    plain = (FILES / "squeue.txt").read_text().replace("gres/gpu:a100:8", "N/A")
    for count in (1, 4):
        plain = plain.replace(f"gres/gpu:a100:{count}", "N/A")
    found = read_waiting_queue("-", nodes=FILES / "sinfo.txt", stdin=lambda: plain)
    other = read_waiting_queue("-", cluster="4x8xA100", stdin=lambda: plain)
    assert other.nodes.total == found.nodes.total == 4 and {job.name: job.devices for job in found.waiting}["5021"] == 2


def test_missing_programs_are_said() -> None:
    with pytest.raises(UserError, match="is not here"):
        run_program(["no-such-program"])
    with pytest.raises(UserError, match="false"):
        run_program(["false"])


def test_a_history_without_ended_jobs_and_missing_nodes_are_told_apart() -> None:
    queue, nodes = FILES / "squeue.txt", FILES / "sinfo.txt"
    notes = " ".join(read_waiting_queue(queue, nodes=nodes, history=queue).notes)
    assert "squeue.txt holds no job that ended; print sacct" in notes and "No history" not in notes
    said = Forecaster(read_waiting_queue(queue, nodes=nodes, history=queue), ForecastOptions(futures=8)).notes()
    assert not any("too short" in note for note in said), "one fact is said once"
    assert "No history of ended jobs was given" in " ".join(read_waiting_queue(queue, nodes=nodes).notes)
    with pytest.raises(UserError) as missing:
        read_waiting_queue("-", stdin=lambda: kueue_text(workload("w", "l", 1, "08:00")))
    assert "ClusterQueues" in missing.value.fix and "kubectl get nodes" in missing.value.fix
