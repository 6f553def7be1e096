"""Modules in the place of others."""

from __future__ import annotations

import pytest
from torch import nn

from paceline.errors import UserError
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.replacements import replaced
from paceline.slimming.structures.shrink import load
from slimming_networks import Residual


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="unknown replacement 'low_rnk'"):
        replaced(nn.Sequential(nn.Linear(2, 2)), {"0": {"kind": "low_rnk"}})


def test_a_plan_for_modules_that_are_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="this one has no third"):
        load(SlimPlan({}, {}, {}, {"third": {"kind": "low_rank"}}), Residual())
