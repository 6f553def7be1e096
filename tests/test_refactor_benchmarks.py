"""A short form of the benchmarks that compare two checkouts: this one with itself, and with a made-up one."""

from __future__ import annotations

import csv
import sys
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.mark.full
def test_speed_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    import refactor_speed

    out = tmp_path / "s.csv"
    few = ["--rounds", "1", "--pairs", "1", "--size", "4kB", "--only", "predict", "codec"]
    monkeypatch.setattr(sys, "argv", ["refactor_speed.py", "--before", str(ROOT), *few, "--out", str(out)])
    refactor_speed.main()
    with out.open() as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    assert {"predict resnet-50, a call", "predict llama-2-7b, a command line", "ternary, encode", "topk, decode"} <= rows.keys()
    assert all(float(row["before_ms"]) > 0 and row["commit_before"] == row["commit_after"] for row in rows.values())
    assert "ternary, encode" in capfd.readouterr().out


def test_neighbours_are_compared() -> None:
    import refactor_speed

    rounds = [{"x": {"before": [1.0, 2.0, 9.0], "after": [3.0, 3.0, 9.0]}}, {"x": {"before": [2.0], "after": [1.0]}}]
    (row,) = refactor_speed.compare(rounds)
    assert (row["before_ms"], row["after_ms"]) == ("2000", "3000")
    assert (row["ratio"], row["lowest_ratio"], row["highest_ratio"]) == ("1.250", "0.500", "1.500")


MADE_UP = '''
class A:
    @property
    def p(self, *, b, **k):
        """Two
        lines."""
        def inner(x, /, y, *z):
            pass

        return 1

if True:
    async def f(): ...
'''


def test_function_sizes(tmp_path: Path) -> None:
    from function_sizes import Function, functions, table

    package = tmp_path / "src" / "paceline"
    package.mkdir(parents=True)
    (package / "a.py").write_text(MADE_UP)
    made_up = [Function("a.py: A.p", 7, 2, 2), Function("a.py: A.p.inner", 2, 0, 3), Function("a.py: f", 1, 0, 0)]
    assert functions(tmp_path) == made_up
    lines = table([tmp_path, tmp_path], "most arguments", lambda f: (f.arguments,), 2).splitlines()
    assert lines[0] == "most arguments" and lines[2].count("   3  a.py: A.p.inner") == 2 and len(lines) == 4
    with pytest.raises(SystemExit, match="give a checkout"):
        functions(tmp_path / "nowhere")


def test_structure_figures() -> None:
    from structure import figures

    files = {
        PurePosixPath(
            "planning/a.py"
        ): "gather_bits = 8\nclass A: ...\ndef train(x, y, *, z): ...\nx == 'dense' or y in ('ring', 'z')\n",
        PurePosixPath("planning/b.py"): "class A: ...\nclass _B: ...\n",
        PurePosixPath("planning/c/d.py"): "class _B: ...\nx == 'other'\n",
    }
    found = {(what, unit): value for what, value, unit in figures(files)}
    assert found["source", "lines"] == 8 and found["source", "files"] == 3
    assert found["files that name gather_bits", "files"] == 1
    assert found["comparisons with the name of a choice", "comparisons"] == 2
    assert found["class names that stand for several classes", "names"] == 2
    assert found["public class names that stand for several classes", "names"] == 1
    assert found["parameters of train", "parameters"] == 3
    assert found["modules in the largest folder of planning", "modules"] == 2


def test_a_place_is_broken_in_both_checkouts(tmp_path: Path) -> None:
    import mutations

    body = "def share(x: int) -> bool:\n    if x > 2 and x:\n        return True\n    return x + 1 < 5  # half\n"
    for side, file in (("old", "a.py"), ("new", "rooms/b.py")):
        package, tests = tmp_path / side / "src/paceline" / file, tmp_path / side / "tests" / file
        for path in (package, tests):
            path.parent.mkdir(parents=True, exist_ok=True)
        package.write_text(body)
        tests.with_name(f"test_{package.name}").write_text("")
    old, new = (mutations.Tree(tmp_path / side).places() for side in ("old", "new"))
    assert old.keys() == new.keys() and {place.was for place in old} == {"x > 2 and x", "x > 2", "x + 1", "x + 1 < 5"}
    (sum_,) = (change for place, change in new.items() if place.was == "x + 1")
    assert (sum_.file.name, sum_.line) == ("b.py", 4)
    assert sum_.source == body.replace("x + 1", "(x - 1)")
