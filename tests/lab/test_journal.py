"""The journal: whole or not at all, and never a licence to touch what a lab does not make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import lab
from paceline.errors import UserError
from paceline.lab import journal, kernel
from paceline.lab.journal import LabState
from paceline.lab.topology import topology


def made(name: str = "lab", **more: object) -> LabState:
    wanted = topology(2, "1Gb/s", name)
    return replace(LabState(wanted, "up", dict.fromkeys(wanted.namespaces)), **more)  # type: ignore[arg-type]


def test_what_is_written_is_read(runtime: Path) -> None:
    before = made().created("paceline-lab-h0", 7)
    before.save()
    assert journal.load("lab") == before and journal.names() == ["lab"]
    assert [path.name for path in runtime.iterdir()] == ["lab-lab.json"]
    before.delete()
    assert journal.load("lab") is None and list(runtime.iterdir()) == []


def test_a_lab_that_an_earlier_version_left_is_found(runtime: Path) -> None:
    made().save()
    path = runtime / "lab-lab.json"
    path.write_text(path.read_text().replace('"topology"', '"plan"'))
    found = journal.load("lab")
    assert found is not None and found.topology == made().topology


@pytest.mark.parametrize(
    "change",
    [
        {"namespaces": {"paceline-other-h0": 1}},
        {"namespaces": {"eth0": 1}},
        {"schema": 99},
        {"topology": {"name": "other", "hosts": 2, "link": 1.0, "latency": None}},
        {"topology": None},
    ],
    ids=str,
)
def test_a_file_that_lists_what_is_not_ours_is_refused(change: dict[str, object], runtime: Path) -> None:
    made().save()
    path = runtime / "lab-lab.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    for use in (lab.find, lab.down):
        with pytest.raises(UserError, match="cannot be read"):
            use("lab")
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        lab.down("lab")
    assert path.exists()


def test_after_a_restart_only_the_file_is_removed(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(boot="another").save()
    monkeypatch.setattr(kernel, "system", lambda command: pytest.fail(f"{command}"))
    assert lab.labs() == []
    with pytest.raises(UserError, match="no lab 'lab' is up"):
        lab.find("lab")
    assert lab.down("lab") == ["the machine was restarted since; only the file was left"]
    assert not list(runtime.glob("lab-*"))


def test_a_misspelt_name_brings_the_nearest() -> None:
    made("cluster").save()
    with pytest.raises(UserError, match="unknown lab 'clutser'; legal: cluster; did you mean cluster"):
        lab.find("clutser")
    made("cluster").delete()


def test_a_second_up_waits_and_a_dead_one_does_not_block(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from paceline.lab import journal; import time\nwith journal.locked(): print('held', flush=True); time.sleep(1000)"
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        monkeypatch.setattr(journal, "LOCK_TIMEOUT_S", 0.2)
        with pytest.raises(UserError, match="still at work"):
            lab.up(2, None)
    finally:
        holder.kill()
        holder.communicate(timeout=100)
    lab.up(2, None).down()


def test_a_runtime_directory_that_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv(journal.DIRECTORY, str(tmp_path / "link"))
    with pytest.raises(UserError, match="belongs to another user"):
        lab.up(2, None)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(journal.DIRECTORY, str(tmp_path / "file" / "under"))
    with pytest.raises(UserError, match="cannot make"):
        lab.up(2, None)


@pytest.mark.parametrize(
    ("lost", "tool", "parts", "said"),
    [
        (["CAP_NET_ADMIN", "CAP_SYS_ADMIN"], "ip", "", "root (CAP_NET_ADMIN and CAP_SYS_ADMIN), ip (iproute2)"),
        ([], "tc", "", "tc (iproute2)"),
        ([], "", "tbf", "tbf in the kernel"),
    ],
)
def test_without_the_privileges_what_is_missing_is_said_and_loopback_offered(
    lost: list[str], tool: str, parts: str, said: str, monkeypatch: pytest.MonkeyPatch, runtime: Path
) -> None:
    monkeypatch.setattr(kernel, "lost_capabilities", lambda: lost)
    monkeypatch.setattr(kernel, "which", lambda name: None if name == tool else f"/usr/bin/{name}")
    monkeypatch.setattr(kernel, "system", lambda command: parts)
    assert ", ".join(lab.missing()) == said and not lab.has_netem()
    with pytest.raises(UserError) as caught:
        lab.up(4, "1Gb/s")
    assert said in caught.value.message and "paceline lab up --hosts 4 --loopback" in caught.value.fix
    assert not runtime.exists()


def test_latency_only_where_netem_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "missing", lambda: [])
    monkeypatch.setattr(kernel, "lacking_parts", lambda *parts: list(parts))
    with pytest.raises(UserError, match=r"no netem.*leave out `latency`"):
        lab.up(2, "1Gb/s", latency="100us")
