"""``paceline cluster``: clusters that are saved, listed, used and forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import answer, run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_add_list_use_remove(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cluster list")[1].startswith("no cluster is saved")
    assert answer(capsys, "cluster add lab '4x8 H100, 400Gb/s RoCE' --price 2.5")["usd_per_device_hour"] == 2.5
    assert "4x8 H100, 400Gb/s RoCE; $2.50 a device and hour" in run(capsys, "cluster list")[1]
    named = answer(capsys, "predict bert-large --cluster lab --global-batch 512")
    assert named == answer(capsys, "predict bert-large --cluster '4x8 H100' --network '400Gb/s RoCE' --global-batch 512")
    assert answer(capsys, "cluster remove lab")["removed"] == "lab"
    assert answer(capsys, "cluster list")["clusters"] == []


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("add A100 '8 A100'", "is a device or an instance"),
        ("add p5.48xlarge '8 A100'", "is a device or an instance"),
        ("add lab '2x8 A100'", "network"),
        ("add lab '8 A100' --price -1", "price"),
        ("remove lab", "unknown saved cluster"),
    ],
)
def test_mistakes_save_nothing(command: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"cluster {command}")
    assert (code, out) == (2, "") and what in err
    assert answer(capsys, "cluster list")["clusters"] == []
