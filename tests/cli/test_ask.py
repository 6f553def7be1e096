"""``paceline ask``: options to one answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import answer, run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_epochs_of_ones_own_data_within_a_date_and_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "ask resnet-50 --on '8 A100' --data 1.2M --epochs 90 --by 2d --budget '$500'")
    assert data["choice"]["samples"] == 90 * 1.2e6
    assert (data["by_s"], data["budget_usd"]) == (2 * 86400, 500.0)
    assert 0 <= data["in_time"] <= 1 and 0 <= data["in_budget"] <= 1
    assert data["amount"].startswith("90 epochs of 1,200,000 samples")


def test_a_saved_cluster_brings_its_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cluster add lab '2x8 A100, 100Gb/s RoCE' --price 1")[0] == 0
    data = answer(capsys, "ask bert-large --on lab --samples 1M")
    choice = data["choice"]
    assert choice["usd"] == pytest.approx(16 * choice["time_s"] / 3600)
    other = answer(capsys, "ask bert-large --on lab --samples 1M --price 2")
    assert other["choice"]["usd"] == pytest.approx(2 * choice["usd"])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--on '2x8 A100'", "network"),
        ("--on '8 A100' --by yesterday", "write it as 3d"),
        ("--on '8 A100' --budget much", "not an amount of dollars"),
        ("--on '8 A100' --data 1.2M", "no epochs are given"),
        ("--on '8 A100' --epochs 3 --samples 5", "both say how much"),
        ("--on '8 B100x'", "unknown device"),
    ],
)
def test_mistakes_are_one_line(options: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"ask resnet-50 {options}")
    assert (code, out) == (2, "") and what in err and err.count("\n") == 1
