"""Every committed result can be traced: its row names a commit that HEAD descends from."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").glob("*/*.csv"))


def git(*words: str) -> str:
    """What git prints; nothing where this is no checkout."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


@pytest.fixture(scope="module")
def history() -> set[str]:
    """Every commit that HEAD descends from."""
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("needs the whole history: this clone is shallow, or no checkout (git fetch --unshallow)")
    return set(git("rev-list", "HEAD").split())


def untraceable(path: Path, history: set[str]) -> list[str]:
    """The commits that rows of the file name and that are none of the history: ``unknown``, too short, of another branch."""
    with path.open(newline="") as file:
        named = [row["commit"] for row in csv.DictReader(file)]
    lengths = {len(name) for name in named} & {*range(7, 41)}
    starts = {length: {commit[:length] for commit in history} for length in lengths}
    return [name for name in named if name not in starts.get(len(name), ())]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_names_a_commit_of_the_history(path: Path, history: set[str]) -> None:
    lost = untraceable(path, history)
    assert not lost, f"{len(lost)} rows of {path.name} name {sorted(set(lost))}: measure them again at a commit, or delete them"


def test_what_is_no_commit_of_the_history_is_refused(tmp_path: Path, history: set[str]) -> None:
    path, commit = tmp_path / "r.csv", min(history)
    other = "f" * 40 if "f" * 40 not in history else "e" * 40
    path.write_text(
        "\n".join(["commit,x", *(f"{name},1" for name in ("unknown", "", commit[:6], other[:9], commit[:7], commit))])
    )
    assert untraceable(path, history) == ["unknown", "", commit[:6], other[:9]]


def test_an_orphan_that_the_repository_still_holds_is_refused(tmp_path: Path, history: set[str]) -> None:
    """A commit object that exists and is no ancestor of HEAD, such as one of a branch that was rebased."""
    repository = tmp_path / "r"
    words = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", "init", "-q", str(repository)], check=True)

    def inside(*more: str) -> str:
        done = subprocess.run(["git", *words, *more], cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    inside("commit", "-q", "--allow-empty", "-m", "one")
    inside("commit", "-q", "--allow-empty", "-m", "two")
    orphan = inside("rev-parse", "--short", "HEAD")
    inside("reset", "-q", "--hard", "HEAD~1")
    assert inside("cat-file", "-t", orphan) == "commit"
    path = tmp_path / "r.csv"
    path.write_text(f"commit,x\n{orphan},1\n")
    assert untraceable(path, set(inside("rev-list", "HEAD").split())) == [orphan]
