"""Strategies as owners of jobs write them."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.speeds.stated_strategy import NAMES, parse_strategy


def test_choices_and_shardings_by_name() -> None:
    assert parse_strategy("zero3") == parse_strategy("FSDP") == {"sharding": "zero3"}
    assert parse_strategy("tensor=4 + pipeline=2") == {"tensor": 4, "pipeline": 2}
    assert parse_strategy("zero1+grad-accum=8+sequence=yes+tensor=2") == {
        "sharding": "zero1",
        "grad_accum_steps": 8,
        "sequence": True,
        "tensor": 2,
    }
    assert "global-batch" not in NAMES and "workers" not in NAMES


@pytest.mark.parametrize("text", ["zero9", "tensor=0", "tensor=", "workers=8", "zero3+sharding=ddp", "+", "size=4"])
def test_what_is_no_strategy_is_refused_with_the_job(text: str) -> None:
    with pytest.raises(UserError):
        parse_strategy(text)
    with pytest.raises(UserError, match="job 'a'"):
        Job(name="a", duration_s=1, strategy=text)
