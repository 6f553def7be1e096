"""Settings of Slurm are checked."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_settings import Account, SlurmSettings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"weight_age": -1.0}, "weight_age = -1"),
        ({"max_tested": 0}, "tested jobs of 0"),
        ({"preempt": "quality"}, "unknown preemption 'quality'"),
        ({"accounts": {"a": Account(parent="b"), "b": Account(parent="a")}}, "account 'a' is above itself"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        SlurmSettings(**given)


def test_accounts_above_one_are_named() -> None:
    settings = SlurmSettings(accounts={"a": Account(parent="b"), "b": Account(parent="c")})
    assert settings.ancestors("a") == ("a", "b", "c") and settings.ancestors("new") == ("new",)
