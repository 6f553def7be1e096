"""Jobs on Slurm: what is asked and how the answers are read, on a Slurm that is played; and on a real one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import script, stand_in, training, until
from paceline import lab
from paceline.errors import UserError
from paceline.lab import journal, slurm
from paceline.scheduling.executors.executor import Unavailable
from paceline.scheduling.executors.slurm import SlurmExecutor, gives_nodes_back, gpus_of

PLAYED = """base=$1; shift
echo "$*" >> "$base/asked"
[ -f "$base/refuses.$1" ] && { cat "$base/refuses.$1" >&2; exit 1; }
[ ! -f "$base/answer.$1" ] || cat "$base/answer.$1"
"""
"""In front of a command of Slurm's: writes down what is asked, and answers as it was told to."""
NODES = "h0|2|(null)|10.0.0.1|idle\nh1|2|(null)|10.0.0.2|mixed\nh2|2|(null)|10.0.0.3|down*\nh3|2|(null)|10.0.0.4|drained"


class Played:
    """A Slurm that answers what it is told to."""

    def __init__(self, base: Path) -> None:
        self.base = base
        (base / "played.sh").write_text(PLAYED)
        self.answer(sinfo=NODES, sbatch="7")
        self.executor = SlurmExecutor(base / "jobs", enter=("sh", str(base / "played.sh"), str(base)))

    def answer(self, **answers: str) -> None:
        for word, text in answers.items():
            (self.base / f"refuses.{word}").unlink(missing_ok=True)
            (self.base / f"answer.{word}").write_text(text + "\n" * bool(text))

    def refuse(self, **answers: str) -> None:
        for word, text in answers.items():
            (self.base / f"refuses.{word}").write_text(text)

    def asked(self, word: str) -> list[str]:
        path = self.base / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if line.startswith(word)]

    def has(self, state: str, number: int = 7, reason: str = "None", start: str = "N/A") -> None:
        self.answer(squeue=f"{number}|paceline-job|{state}|{start}|{reason}\n9|another|RUNNING|N/A|None\n12_3|x|RUNNING||")

    def ends(self, text: str) -> None:
        (self.base / "jobs" / "job.end").write_text(text)


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path)


def test_nodes_that_do_not_answer_or_are_drained_are_none(played: Played) -> None:
    assert played.executor.nodes() == (("h0", 2), ("h1", 2))


@pytest.mark.parametrize(
    ("draining", "state", "placement", "held"),
    [
        ("draining", "RUNNING", {"h0": 2}, 2),
        ("draining", "COMPLETING", {"h0": 2}, 2),
        ("draining", "RUNNING", {"h0": 1}, 1),  # the rest must not be given out
        ("draining", "RUNNING", {"h1": 2}, 0),
        ("draining", "PENDING", {"h0": 2}, 0),  # it would never start there
        ("draining", "FAILED", {"h0": 2}, 0),
        ("draining*", "RUNNING", {"h0": 2}, 0),
        ("drained", "RUNNING", {"h0": 2}, 0),
    ],
)
def test_a_draining_node_counts_with_what_our_jobs_hold(
    draining: str, state: str, placement: dict[str, int], held: int, played: Played, tmp_path: Path
) -> None:
    played.executor.submit(training(tmp_path), placement)
    played.has(state)
    played.answer(sinfo=NODES.replace("idle", draining))
    assert played.executor.nodes() == ((("h0", held), ("h1", 2)) if held else (("h1", 2),))


def test_slurm_names_the_gpus_of_a_node_that_has_one_type(played: Played) -> None:
    played.answer(sinfo="g0|gpu:a100:4(S:0-1)\ng1|gpu:4\ng2|gpu:a100:2,gpu:t4:2\ng3|(null)\ng4|shard:8,gpu:h100:8")
    assert played.executor.device_types() == {"g0": "a100", "g4": "h100"}


def test_what_is_asked_is_in_a_form_for_machines(played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h1": 1, "h0": 1})
    asked = played.asked("")
    assert asked[0] == "squeue --noheader --states=all --format=%i|%j|%T|%S|%r"
    assert asked[1] == "sinfo --noheader -N --format=%N|%c|%G|%o|%T"
    assert asked[2] == f"sbatch --parsable {tmp_path}/jobs/job.sh"
    text = (tmp_path / "jobs" / "job.sh").read_text()
    assert "--nodelist=h0,h1\n" in text and "MASTER_ADDR=10.0.0.1\n" in text


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", "waiting"),
        ("RUNNING", "running"),
        ("COMPLETING", "stopping"),
        ("SUSPENDED", "waiting"),
        ("TIMEOUT", "failed"),
    ],
)
def test_states_of_slurm_are_phases(state: str, phase: str, played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.has(state, reason="Resources", start="2026-01-02T03:04:05")
    seen = played.executor.poll()["job"]
    assert seen.phase == phase
    assert seen.reason == ("Slurm ended it: timeout" if phase == "failed" else "Resources")
    assert (seen.since == time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1))) == (state == "RUNNING")


def test_a_job_that_slurm_has_already_is_not_submitted_again(played: Played, tmp_path: Path) -> None:
    """As after a crash between sbatch and the file that has its number."""
    played.has("PENDING")
    played.executor.submit(training(tmp_path), {"h0": 1})
    assert played.asked("sbatch") == []
    played.has("CANCELLED")
    played.executor.submit(training(tmp_path), {"h0": 1})
    assert len(played.asked("sbatch")) == 1


def test_of_two_under_one_name_the_later_is_cancelled(played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.answer(squeue="8|paceline-job|PENDING|N/A|None\n7|paceline-job|RUNNING|N/A|None\n6|paceline-job|FAILED|N/A|None")
    assert played.executor.poll()["job"].phase == "running"
    assert played.asked("scancel") == ["scancel 8"]


def test_to_grow_is_to_end_and_to_be_queued_anew(played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.has("RUNNING")
    played.executor.resize("job", {"h0": 2, "h1": 2})
    assert played.asked("scancel") == ["scancel --batch --signal=TERM 7"]
    played.executor.resize("job", {"h1": 2})  # another mind, while it still ends: told once
    assert played.asked("scancel") == []
    assert played.executor.poll()["job"].target == {"h1": 2}
    played.has("COMPLETED")
    played.ends("1 143")
    seen = played.executor.poll()["job"]
    assert (seen.phase, seen.placement) == ("waiting", {"h1": 2}) and len(played.asked("sbatch")) == 1
    assert not (tmp_path / "jobs" / "job.end").exists()


def test_to_give_whole_nodes_back_is_to_shrink(played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h0": 2, "h1": 2})
    played.has("RUNNING")
    played.executor.resize("job", {"h0": 2})
    assert (tmp_path / "jobs" / "job.shrink").read_text() == "h0\nh0\n"
    assert played.executor.poll()["job"].placement == {"h0": 2}
    asked = played.asked("sc")
    assert asked == ["scontrol update JobId=7 Requeue=0", "scancel --batch --signal=TERM 7"]


def test_what_still_waits_leaves_the_queue_at_once(played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.has("PENDING")
    played.executor.stop("job", 30.0)
    assert played.asked("scancel") == ["scancel 7"]
    played.has("CANCELLED")
    assert played.executor.poll()["job"].phase == "stopped"


def test_a_grace_that_is_over_ends_it(played: Played, tmp_path: Path) -> None:
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.has("RUNNING")
    played.executor.stop("job", 0.0)
    assert played.asked("scancel") == ["scancel --batch --signal=TERM 7"]
    time.sleep(0.01)
    assert played.executor.poll()["job"].phase == "stopping" and played.asked("scancel") == ["scancel 7"]
    played.refuse(scancel="scancel: error: Kill job error on job id 7: Job/step already completing or completed")
    assert played.executor.poll()["job"].phase == "stopping"


@pytest.mark.parametrize(
    ("end", "accounts", "phase", "reason"),
    [
        ("0 0", "", "done", ""),
        ("0 7", "", "failed", "it ended with code 7"),
        ("", "COMPLETED|0:0", "done", ""),
        ("", "CANCELLED by 0|0:15", "failed", "Slurm ended it: cancelled"),
        ("", "NODE_FAIL|1:0", "failed", "Slurm ended it: node_fail"),
        ("", "", "failed", "Slurm does not know it any more"),
    ],
)
def test_a_job_that_the_controller_has_forgotten(
    end: str, accounts: str, phase: str, reason: str, played: Played, tmp_path: Path
) -> None:
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.answer(squeue="", sacct=accounts)
    if end:
        played.ends(end)
    seen = played.executor.poll()["job"]
    assert (seen.phase, seen.reason) == (phase, reason)


def test_a_report_of_another_run_ends_no_job(played: Played, tmp_path: Path) -> None:
    report = tmp_path / "job" / "progress.json"
    report.parent.mkdir()
    report.write_text('{"epoch": 6, "step": 60}')
    played.executor.submit(training(tmp_path), {"h0": 1})
    played.has("RUNNING")
    assert played.executor.poll()["job"].progress == {}
    played.has("TIMEOUT")
    assert played.executor.poll()["job"].phase == "failed"
    played.executor.submit(training(tmp_path), {"h1": 1})
    assert played.executor.poll()["job"].phase == "failed"
    report.unlink()
    report.write_text('{"epoch": 6, "step": 60}')
    assert played.executor.poll()["job"].phase == "done"


def test_a_controller_that_does_not_answer_is_asked_again(played: Played, tmp_path: Path) -> None:
    played.refuse(squeue="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    for ask in (played.executor.poll, lambda: played.executor.submit(training(tmp_path), {"h0": 1})):
        with pytest.raises(Unavailable, match=r"squeue: .*Unable to contact"):
            ask()
    played.answer(squeue="")
    played.refuse(sbatch="sbatch: error: Batch job submission failed: Unable to contact slurm controller")
    with pytest.raises(Unavailable, match="sbatch"):
        played.executor.submit(training(tmp_path), {"h0": 1})
    played.has("PENDING")  # it had been taken after all
    played.executor.submit(training(tmp_path), {"h0": 1})
    assert played.executor.poll()["job"].phase == "waiting"
    played.answer(squeue="")
    played.refuse(sbatch="sbatch: error: invalid account")
    with pytest.raises(UserError, match=r"Slurm refuses .*job.sh: sbatch: error: invalid account"):
        played.executor.submit(training(tmp_path), {"h0": 1})


def test_words_of_slurm() -> None:
    for gres, count in (
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("shard:8,gpu:v100:2,gpu:t4:1", 3),
        ("(null)", 0),
        ("mps:100", 0),
    ):
        assert gpus_of(gres) == count
    before = {"h2": 2, "h10": 2}
    assert gives_nodes_back(before, {"h2": 2}) and not gives_nodes_back(before, {"h10": 2})
    assert not gives_nodes_back(before, {"h2": 1}) and not gives_nodes_back(before, before)
    with pytest.raises(UserError, match="no program"):
        SlurmExecutor(tempfile.gettempdir(), enter=("no-such-program",)).nodes()


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SlurmExecutor]:
    """Slurm on three hosts of two slots each."""
    if lacking := lab.missing() + slurm.missing():
        pytest.skip(f"needs {', '.join(lacking)}")
    directory = tempfile.mkdtemp(prefix="pl-")
    monkeypatch.setenv(journal.DIRECTORY, directory)
    with lab.up(3, "1Gb/s", f"pl-{uuid.uuid4().hex[:8]}", slurm_slots=2) as cluster:
        yield SlurmExecutor(tmp_path / "jobs", enter=cluster.slurm())
    shutil.rmtree(directory)


@pytest.mark.full
def test_a_paceline_job_grows_and_gives_nodes_back_on_a_real_slurm(real: SlurmExecutor, tmp_path: Path) -> None:
    executor = SlurmExecutor(tmp_path / "jobs", enter=real._enter, python=stand_in(tmp_path))
    executor.submit(training(tmp_path, epochs=200), {"h0": 1})
    until(executor, "job", lambda seen: seen.progress.get("epoch", 0) >= 2)
    executor.resize("job", {"h0": 1, "h1": 2, "h2": 1})
    until(executor, "job", lambda seen: seen.progress["workers"] == 4)
    number = executor._queue()["job"].number
    executor.resize("job", {"h0": 1, "h2": 1})
    until(executor, "job", lambda seen: seen.progress["workers"] == 2)
    assert executor._queue()["job"].number == number and executor.poll()["job"].placement == {"h0": 1, "h2": 1}
    words = [*real._enter, "squeue", "--noheader", "--format=%N %D"]
    assert subprocess.run(words, capture_output=True, text=True, timeout=200).stdout.split() == ["h[0,2]", "2"]
    executor.stop("job", 60.0)
    until(executor, "job", "stopped")
    epochs = [int(line.split()[0]) for line in (tmp_path / "job" / "epochs").read_text().splitlines()]
    assert sorted(set(epochs)) == list(range(1, max(epochs) + 1))


def test_a_job_of_any_kind_moves_on_a_real_slurm(real: SlurmExecutor, tmp_path: Path) -> None:
    text = (
        'echo $SLURM_JOB_NODELIST $(sort "$SLURM_HOSTFILE" | uniq -c) >> "$0"; trap "exit 0" USR1; while :; do sleep 0.05; done'
    )
    job = script(tmp_path, text, signal="USR1", min_devices=3, max_devices=3)
    job = replace(job, command=(*job.command, str(tmp_path / "runs")))
    real.submit(job, {"h0": 1, "h1": 2})
    until(real, "job", lambda seen: seen.phase == "running" and (tmp_path / "runs").exists())
    SlurmExecutor(real._records.directory, enter=real._enter).submit(job, {"h2": 1})  # after a crash: it is there already
    real.resize("job", {"h1": 1, "h2": 2})
    until(real, "job", lambda seen: seen.placement == {"h1": 1, "h2": 2} and seen.phase == "running")
    until(real, "job", lambda seen: len((tmp_path / "runs").read_text().splitlines()) == 2)
    real.stop("job", 60.0)
    assert until(real, "job", "stopped").code == 0
    assert (tmp_path / "runs").read_text().splitlines() == ["h[0-1] 1 h0 2 h1", "h[1-2] 1 h1 2 h2"]
