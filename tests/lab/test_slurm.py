"""Slurm on a lab: the files that it is given, and a real one. Needs root, slurm-wlm and munge; nothing is left behind."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import lab
from paceline.errors import UserError
from paceline.lab import journal, kernel, slurm
from paceline.lab.topology import topology


def test_the_configuration_names_every_host_and_keeps_to_its_directory() -> None:
    wanted = topology(2, "1Gb/s", "mine", slots=3)
    texts = slurm.files(wanted, Path("/run/x"))
    lines = texts["slurm.conf"].splitlines()
    assert lines[1] == "SlurmctldHost=paceline-head(10.77.0.251)"
    assert [line for line in lines if line.startswith("NodeName")] == [
        "NodeName=h0 NodeAddr=10.77.0.1 CPUs=3 State=UNKNOWN",
        "NodeName=h1 NodeAddr=10.77.0.2 CPUs=3 State=UNKNOWN",
    ]
    paths = [word for line in lines for word in line.replace(",", "=").split("=") if word.startswith("/")]
    assert len(paths) == 8 and all(path.startswith("/run/x/") for path in paths)
    assert texts["prolog"] == "#!/bin/sh\necho export PACELINE_LAB=mine\n"
    assert set(texts) == {"slurm.conf", "prolog"}
    assert set(slurm.files(wanted, Path("/run/x"), (23, 11))) == {"slurm.conf", "prolog", "cgroup.conf"}


def test_only_a_lab_with_slurm_gives_its_switch_an_address() -> None:
    head = ("ip", "-n", "paceline-lab-switch", "addr", "add", "10.77.0.251/24", "dev", "br0")
    assert head in topology(2, "1Gb/s", slots=1).commands()
    assert head not in topology(2, "1Gb/s").commands()


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    with pytest.raises(UserError, match="loopback has none"):
        topology(2, None, slots=1)
    with pytest.raises(UserError, match="2000 CPUs a host"):
        topology(2, "1Gb/s", slots=2000)
    assert topology(2, "1Gb/s").difference(topology(2, "1Gb/s", slots=4)) == "no Slurm, not Slurm with 4 CPUs a host"
    monkeypatch.setattr(kernel, "which", lambda tool: None if tool in ("slurmd", "munged") else f"/usr/bin/{tool}")
    with pytest.raises(UserError, match=r"Slurm on a lab needs munged \(munge\), slurmd \(slurm-wlm\); apt-get install"):
        slurm.check(topology(2, "1Gb/s", slots=1), runtime)
    monkeypatch.setattr(kernel, "which", lambda tool: f"/usr/bin/{tool}")
    with pytest.raises(UserError, match="too long a path for a socket"):
        slurm.check(topology(2, "1Gb/s", slots=1), Path("/" + "x" * 100))


@pytest.fixture
def cluster(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[lab.Lab]:
    """Three hosts with Slurm, in a directory whose path is short enough for a socket."""
    if lacking := slurm.missing():
        pytest.skip(f"needs {', '.join(lacking)}")
    directory = tempfile.mkdtemp(prefix="pl-")
    monkeypatch.setenv(journal.DIRECTORY, directory)
    with lab.up(3, "1Gb/s", name, slurm_slots=2) as cluster:
        yield cluster
    assert list(Path(directory).iterdir()) == [] and marked(name) == []
    assert traces(name) == traces(directory) == []
    shutil.rmtree(directory)


def traces(of: str) -> list[str]:
    """Mounts and Slurm's cgroups that are of a lab; other tests may have labs at the same time."""
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob("*slurm*")]
    return [line for line in [*Path("/proc/self/mounts").read_text().splitlines(), *groups] if of in line]


def marked(name: str) -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if kernel.has_mark(int(entry.name), name)]


def run(cluster: lab.Lab, *words: str) -> str:
    return subprocess.run([*cluster.slurm(), *words], capture_output=True, text=True, timeout=200, check=True).stdout


def nodes(cluster: lab.Lab) -> tuple[str, ...]:
    return cluster.status().slurm


def until(cluster: lab.Lab, *wanted: str, within_s: float = 100.0) -> None:
    deadline = time.monotonic() + within_s
    while nodes(cluster) != wanted:
        assert time.monotonic() < deadline, nodes(cluster)
        time.sleep(0.2)


def until_queued(cluster: lab.Lab, columns: str, *wanted: str) -> None:
    """Slurm may still be setting the job up, or ending it."""
    deadline = time.monotonic() + 100
    while (queue := tuple(run(cluster, "squeue", "-h", "-o", columns).split())) != wanted:
        assert time.monotonic() < deadline, queue
        time.sleep(0.2)


def test_a_job_runs_on_every_host_and_down_leaves_nothing(cluster: lab.Lab) -> None:
    name = cluster.topology.name
    assert nodes(cluster) == ("idle",) * 3 and cluster.status().complete
    script = "hostname; ip -br -4 addr show dev pl0 | awk '{print $3}'; echo $PACELINE_LAB"
    shown = run(cluster, "srun", "-N3", "sh", "-c", script)
    assert sorted(shown.split()) == sorted(["h0", "h1", "h2", *(f"10.77.0.{n}/24" for n in (1, 2, 3)), *[name] * 3])
    job = run(cluster, "sbatch", "--parsable", "-N1", "-wh1", "-n2", "-o/dev/null", "--wrap", "sleep 300 & sleep 301").strip()
    until(cluster, "idle", "allocated", "idle")
    until_queued(cluster, "%i %T %N", job, "RUNNING", "h1")
    deadline = time.monotonic() + 100
    while len(marked(name)) < 8:  # munged, slurmctld, three slurmd, the job and what it started
        assert time.monotonic() < deadline, marked(name)
        time.sleep(0.1)
    notes = cluster.down()
    assert any("-h1: ended processes" in note and "the lab's Slurm" in note for note in notes)
    assert marked(name) == [] and not any("left running" in note for note in notes)


def test_a_host_without_its_slurmd_is_said(cluster: lab.Lab) -> None:
    pid = int((journal.slurm_directory(cluster.topology.name) / "h2.pid").read_text())
    kernel.end((pid,), cluster.topology.name, at_once=True)
    status = cluster.status()
    assert status.lacking == ("slurmd of host 2",) and not status.complete
    with pytest.raises(UserError, match="is up with Slurm with 2 CPUs a host, not no Slurm"):
        lab.up(3, "1Gb/s", cluster.topology.name)


@pytest.mark.full
def test_a_job_runs_on_while_the_controller_is_started_anew(cluster: lab.Lab) -> None:
    job = run(cluster, "sbatch", "--parsable", "-N1", "-wh1", "-n2", "-o/dev/null", "--wrap", "sleep 300").strip()
    until(cluster, "idle", "allocated", "idle")
    cluster.restart_slurm_controller()
    until(cluster, "idle", "allocated", "idle")
    until_queued(cluster, "%i %T %N", job, "RUNNING", "h1")


@pytest.mark.full
def test_a_host_that_dies_is_down_and_its_job_goes_back_to_the_queue(cluster: lab.Lab) -> None:
    job = run(cluster, "sbatch", "--parsable", "-N1", "-wh1", "-o/dev/null", "--requeue", "--wrap", "sleep 300").strip()
    until(cluster, "idle", "mixed", "idle")
    assert cluster.power_off(1) and cluster.status().complete and cluster.status().links[1] == "cut"
    until(cluster, "idle", "down*", "idle")  # * : it does not answer
    until_queued(cluster, "%i %T", job, "PENDING")
    cluster.power_on(1)
    deadline = time.monotonic() + 100
    while nodes(cluster)[1] not in ("idle", "mixed"):
        assert time.monotonic() < deadline, nodes(cluster)
        time.sleep(0.2)


def test_the_command_line_refuses_slots_without_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    from paceline.cli import main

    for words, reason in (
        (["--link", "1Gb/s", "--slots", "2"], "--slots is of Slurm; give --slurm too"),
        (["--link", "1Gb/s", "--slurm", "--slots", "0"], "0 CPUs a host for Slurm"),
        (["--loopback", "--slurm"], "loopback has none"),
    ):
        assert main(["lab", "up", "--hosts", "2", *words]) == 2
        assert reason in capsys.readouterr().err
