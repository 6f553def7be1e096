"""A runtime directory of the test's own, a name that nobody has, and the machine's network as it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import lab
from paceline.lab import journal


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(journal.DIRECTORY, str(tmp_path / "runtime"))
    return tmp_path / "runtime"


def network() -> tuple[set[str], list[str]]:
    """Named namespaces, and interfaces of the namespace that the test runs in."""

    def words(*command: str) -> list[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]

    return set(words("ip", "netns", "list")), words("ip", "-o", "-br", "link")


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a lab, with what it takes to make it; afterwards nothing of it is left and nothing else has changed."""
    if lacking := lab.missing():
        pytest.skip(f"needs {', '.join(lacking)}")
    chosen = f"t{os.getpid()}"
    before = network()
    yield chosen
    for one in lab.labs():
        if one == chosen or one.startswith(f"{chosen}-"):  # in whatever directory: others' labs are not a test's to remove
            lab.down(one)
    after = network()
    ours = {entry for entry in after[0] if entry.startswith(f"paceline-{chosen}")}
    assert ours == set()
    assert after[1] == before[1]
