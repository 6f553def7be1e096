"""``paceline whatif``: before and after."""

from __future__ import annotations

import pytest

from command import answer, run
from planning_commands import JOB


def test_whatif(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, f"whatif {JOB} --change nodes+1 --change network=100Gb/s --change device=H100-SXM")[1].split())
    assert text.count("global batch 1032 instead of 1024") >= 4  # in two rows and in what it rests on
    assert "Each change keeps the rest of the strategy; ask and plan choose it again for each machine" in text
    data = answer(capsys, f"whatif {JOB} --change network=100Gb/s --change nodes+2 --upgrade-price $2/h")
    assert [one["title"] for one in data["changes"]] == ["network=100Gb/s", "nodes+2"]
    for one in (*data["changes"], data["together"]):
        assert one["speedup_low"] <= one["speedup"] <= one["speedup_high"]
        assert one["low_s"] <= one["step_time_s"] <= one["high_s"] and one["assumptions"]
        assert 0 < one["usd_low"] < one["usd"] < one["usd_high"]
    assert data["changes"][1]["scaling"] == "strong" and data["unit"] == "epoch"
    assert "strong scaling" in " ".join(run(capsys, f"whatif {JOB} --change nodes+2")[1].split())
    assert "weak scaling" in " ".join(run(capsys, f"whatif {JOB} --change nodes+2 --scaling weak")[1].split())
