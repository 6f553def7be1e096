"""Options of the two parts of a user's group."""

from __future__ import annotations

from typing import Any

import torch

from paceline.training.optimizers.muon.options import ADAMW, MUON, as_groups, options_of_part

USUAL: dict[str, Any] = {"lr": None, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}


def test_a_rest_takes_the_rate_that_it_is_given() -> None:
    """A group's own, else the optimizer's, else that of matrices."""
    assert options_of_part(ADAMW, {"adamw_lr": 0.5}, USUAL, 0.1)["lr"] == 0.5
    assert options_of_part(ADAMW, {"lr": 0.5}, {**USUAL, "lr": 0.2}, 0.1)["lr"] == 0.2
    assert options_of_part(ADAMW, {"lr": 0.5, "algorithm": ADAMW}, USUAL, 0.1)["lr"] == 0.5
    assert options_of_part(ADAMW, {"weight_decay": 0.0}, USUAL, 0.1) == {**USUAL, "lr": 0.1, "weight_decay": 0.0}


def test_groups_keep_names_or_get_numbers() -> None:
    tensor = torch.ones(2, 2)
    assert as_groups([{"params": tensor, "algorithm": MUON}], True)[0]["params"] == [("0.0", tensor)]
    assert as_groups([("w", tensor)], True)[0]["params"] == [("w", tensor)]
