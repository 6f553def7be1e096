"""A short form of the benchmark of local steps: bytes as predicted, fewer with more of them, and a picture."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest

from test_benchmarks import RESULTS, rows, run


@pytest.mark.long
def test_local_steps_in_the_lab_short(tmp_path: Path) -> None:
    out, picture = tmp_path / "l.csv", tmp_path / "l.svg"
    few = ("--hosts", "2", "--links", "100Mb/s", "--every", "4", "--steps", "8", "--pace", "0.001", "--seeds", "0")
    text = run("local_sgd_lab.py", *few, "--out", str(out), "--picture", str(picture))
    found = {row["method"]: row for row in rows(out)}
    assert list(found) == [
        *("dense", "TernGrad", "DiLoCo 4", "DiLoCo 4 int8", "streaming 4", "streaming 4 int8", "Local SGD 4", "DiLoCo 4, 0.9"),
    ]
    for row in found.values():
        assert row["metered_bytes"] == row["predicted_bytes"] and row["samples"] == "256"
        # Beside what is metered: headers, and what ranks tell each other about being alive, which goes with the time.
        assert 0.9 * float(row["metered_bytes"]) < float(row["socket_bytes"]) < 1.3 * float(row["metered_bytes"]) + 65_536, row
        assert float(row["loss"]) < 2.4 and float(row["step_s"]) > 0 and float(row["predicted_s"]) > 0
    dense = float(found["dense"]["metered_bytes"])
    assert float(found["DiLoCo 4"]["metered_bytes"]) == float(found["Local SGD 4"]["metered_bytes"]) == dense / 4
    assert float(found["DiLoCo 4 int8"]["metered_bytes"]) < dense / 15
    assert "equal samples" in text and "<svg" in picture.read_text()
    redrawn = tmp_path / "again.svg"
    run("local_sgd_lab.py", "--out", str(out), "--draw", str(redrawn))
    assert "<svg" in redrawn.read_text()


def test_committed_local_steps_learn_what_dense_learns_with_the_bytes_predicted() -> None:
    found = rows(RESULTS / "local_sgd_lab.csv")
    assert {row["link"] for row in found} == {"10Mb/s", "100Mb/s"} and {row["hosts"] for row in found} == {"4"}
    assert len({row["samples"] for row in found}) == 1
    for link in ("10Mb/s", "100Mb/s"):
        mine = {row["method"]: row for row in found if row["link"] == link}
        assert len(mine) == 12
        dense = float(mine["dense"]["accuracy"])
        for method, row in mine.items():
            assert row["metered_bytes"] == row["predicted_bytes"], row
            assert float(row["predicted_low_s"]) <= float(row["step_s"]) <= float(row["predicted_high_s"]), row
            assert (float(row["accuracy"]) > dense - 0.01) == (not method.endswith("0.9")), row


def test_committed_language_models_send_the_bytes_predicted_and_the_page_says_their_loss() -> None:
    found = [row for row in rows(RESULTS / "slow_link_language.csv") if row["link"] == "loopback"]
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    by_method = {
        method: [row for row in found if row["method"] == method] for method in dict.fromkeys(r["method"] for r in found)
    }
    assert len(by_method) == 8 and all({row["seed"] for row in own} == {"0", "1", "2"} for own in by_method.values())
    assert len({row["tokens"] for row in found}) == 1
    for own in by_method.values():
        mean = sum(float(row["loss"]) for row in own) / 3
        assert f"{mean:.3f}, " in page
        for row in own:  # a step's predicted bytes are rounded up
            assert 0 <= int(row["predicted_bytes"]) - int(row["metered_bytes"]) < int(row["steps"])


def test_committed_late_learners_are_as_predicted_and_the_page_says_how_far_off() -> None:
    found = rows(RESULTS / "late_learners.csv")
    errors = [abs(float(row["error"])) for row in found]
    assert max(errors) <= 0.2 and len({(row["link"], row["case"]) for row in found}) == len(found)
    said = f"at most {max(errors):.0%} off, {median(errors):.1%} in the median"
    assert said in (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    for row in found:
        assert float(row["predicted_counted"]) == pytest.approx(float(row["counted"]), abs=0.1)


@pytest.mark.full
def test_language_models_over_slow_links_short(tmp_path: Path) -> None:
    books = Path(os.environ.get("PACELINE_SHARED", "")) / "data/datasets"
    if not (books / "war-and-peace").is_dir():
        pytest.skip("needs the books: set PACELINE_SHARED")
    out = tmp_path / "l.csv"
    few = ("--data", str(books), "--steps", "6", "--every", "3", "--methods", "dense DDP", "SparseLoCo", "MuLoCo")
    run("slow_link_language.py", *few, "--hosts", "2", "--out", str(out))
    assert [row["method"] for row in rows(out)] == ["dense DDP", "SparseLoCo", "MuLoCo"]
