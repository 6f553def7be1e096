"""A lab whose switch adds: the switch is there for the time of a run, and leaves nothing."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from distributed import free_port
from paceline import lab
from paceline.errors import UserError
from paceline.lab.adding_switch import VARIABLE, adding_switch

PRINT = f"import os; print(os.environ.get('{VARIABLE}', 'none'))"


def processes_of(name: str) -> list[str]:
    """Command lines of the processes that the lab has marked."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"PACELINE_LAB={name}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except (OSError, ValueError):
            continue
    return found


def test_every_rank_is_told_where_the_switch_is_and_a_plain_lab_has_none() -> None:
    results = lab.loopback(2, switch_adds=True).run([sys.executable, "-c", PRINT])
    places = {result.stdout.strip() for result in results}
    assert len(places) == 1 and places.pop().startswith("127.0.0.1:")
    assert {r.stdout.strip() for r in lab.loopback(2).run([sys.executable, "-c", PRINT])} == {"none"}


def test_the_switch_ends_with_the_block_also_when_it_fails() -> None:
    with pytest.raises(KeyError), adding_switch((), "127.0.0.1", free_port(), "switchtest", {}):
        until = time.monotonic() + 100  # a process that has just begun has no command line yet
        while not any("switch_server" in words for words in processes_of("switchtest")):
            assert time.monotonic() < until
            time.sleep(0.01)
        raise KeyError
    assert processes_of("switchtest") == []


KILL = f"""
import os, pathlib, signal, time
port = os.environ["{VARIABLE}"].rpartition(":")[2]
while True:  # it may have just begun
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_text().split("\\0")
        except OSError:
            continue
        if "paceline.training.exchanges.wires.switch_server" in words and port in words:
            os.kill(int(entry.parent.name), signal.SIGKILL)
            time.sleep(1000)
    time.sleep(0.05)
"""


def test_a_switch_that_dies_is_named() -> None:
    with pytest.raises(lab.HostFailed, match="the switch that adds has died"):
        lab.loopback(2, switch_adds=True).run([sys.executable, "-c", KILL], timeout=200)


@pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}")
def test_a_lab_with_such_a_switch_is_another_lab() -> None:
    name = f"adds{os.getpid()}"
    with lab.up(2, "1Gb/s", name, switch_adds=True) as cluster:
        assert cluster.topology.adds and lab.find(name).status().to_json()["switch_adds"]
        with pytest.raises(UserError, match="a switch that adds, not a plain switch"):
            lab.up(2, "1Gb/s", name)
        results = cluster.run([sys.executable, "-c", PRINT])
        assert {r.stdout.strip().partition(":")[0] for r in results} == {cluster.topology.head}
