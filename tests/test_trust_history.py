"""Trust ratios as a value, as a file and on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline import LAMB
from paceline.cli import main
from paceline.errors import UserError
from paceline.rundir import RunDir
from paceline.trust_history import TrustHistory, from_csv


def history(steps: int = 5) -> TrustHistory:
    """A tensor that a rate of 2 moves by its length, one at 50, a bias, and an empty layer; one step was not finite."""
    names = ("a.weight", "b.weight", "a.bias", "c.weight")
    weight = np.tile([4.0, 100.0, 1e-3, 0.0], (steps, 1))
    update = np.tile([2.0, 2.0, 1.0, 1.0], (steps, 1))
    update[1] = np.nan
    ratio = np.where(np.array([True, True, False, False]), weight / update, 1.0)
    return TrustHistory(names, np.arange(1, steps + 1), ratio, weight, update)


def test_the_file_comes_back_beside_other_runs(tmp_path: Path) -> None:
    directory, trust = RunDir(tmp_path / "run"), history()
    directory.write_trust("mine", history(300))
    directory.write_trust("other", trust)
    directory.write_trust("mine", trust)
    runs = directory.read(partial=True).trust
    assert list(runs) == ["mine", "other"]
    for back in runs.values():
        assert back.names == trust.names and (back.steps == trust.steps).all()
        np.testing.assert_array_equal(back.trust_ratio, trust.trust_ratio)
    assert history(300).thinned(100).steps[[0, -1]].tolist() == [1, 300] and len(history(300).thinned(100).steps) == 100


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("r,1,a,x,1,1", "'x' is not a number"),
        ("r,,a,1,1,1", "whole number from 1"),
        ("r,1,a,1,1,1\nr,2,b,1,1,1", "different tensors"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "trust.csv").write_text(f"run,step,tensor,trust_ratio,weight_norm,update_norm\n{line}\n")
    with pytest.raises(UserError, match=words):
        from_csv(tmp_path / "trust.csv")


def test_the_layer_that_limits_the_rate_is_the_one_that_moves_first() -> None:
    assert history().rates() == {"a.weight": (2, 2, 2), "b.weight": (50, 50, 50)}


def test_a_loop_of_one_s_own_gets_its_page(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight.mul_(1e-3)
    optimizer = LAMB(model.named_parameters(), diagnostics_every=2)
    for _ in range(5):
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
    optimizer.diagnostics.write(tmp_path, "mine")
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "1.weight limits the learning rate" in page and "for 0.weight" in page and "<h3>mine</h3>" in page
    assert "Trust ratio of each tensor over the steps" in page
