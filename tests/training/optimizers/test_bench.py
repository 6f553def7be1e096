"""The measurement of the optimizers: what it prints, and that its plain foreach contenders are LARS and LAMB."""

from __future__ import annotations

import json

import pytest
import torch

from command import run
from paceline.training.optimizers import bench, other_libraries


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One peer, and one that is not there."""
    for kind, others in other_libraries.PEERS.items():
        name, (_, *rest) = "torch_optimizer", others["torch_optimizer"]
        monkeypatch.setitem(other_libraries.PEERS, kind, {name: others[name], "nobody": ("nobody_s", *rest)})  # type: ignore[index]
    monkeypatch.setattr(bench, "REPETITIONS", 3)


def test_one_object_an_optimizer(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    given = "bench optimizer --network lenet5 --threads 1"
    code, out, err = run(capsys, f"{given} --json")
    assert (code, err) == (0, "")
    lars, lamb = (json.loads(line) for line in out.splitlines())
    assert (lars["optimizer"], lamb["optimizer"]) == ("lars", "lamb") and lars["variant"] == "paper"
    for speed, words in ((lars, 7), (lamb, 10)):
        assert speed["parameters"] == 431_080 and speed["tensors"] == 8 and speed["threads"] == 1
        assert speed["floor_words"] == words and speed["repetitions"] == 3
        assert speed["floor_ms"] == pytest.approx(4e-6 * words * 431_080 / speed["memcpy_gb_per_s"])
        assert speed["times_floor"] == pytest.approx(speed["ms_per_step"] / speed["floor_ms"])
        assert speed["peers"].keys() >= {"plain foreach", "torch_optimizer"}
        assert speed["times_fastest_peer"] == pytest.approx(min(speed["peers"].values()) / speed["ms_per_step"])
        assert speed["absent"] == {"nobody": "nobody_s is not installed"}
        low, high = speed["spread"]["paceline"]
        assert low <= speed["ms_per_step"] <= high and speed["fused_adamw_ms"] > 0
    code, out, _ = run(capsys, f"{given} --optimizer lamb --variant nvlamb")
    assert code == 0 and "LAMB 'nvlamb'" in out and "11 words" in out and "nobody_s is not installed" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    code, out, err = run(capsys, f"{given} --variant mlperf")
    assert (code, err) == (0, "") and "LARS 'mlperf'" in out and "LAMB" not in out
    code, out, err = run(capsys, f"{given} --optimizer lars --variant nvlamb")
    assert code == 2 and "unknown LARS variant 'nvlamb'" in err and "'nvlamb' is one of LAMB" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench optimizer --device cuda")
    assert (code, out) == (2, "") and err.startswith("paceline: no CUDA device here; ") and err.count("\n") == 1
