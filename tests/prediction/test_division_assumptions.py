"""What is assumed of how several devices hold a network."""

from __future__ import annotations

import pytest

from paceline.prediction.division_assumptions import division_assumptions
from paceline.strategy import Strategy


def texts(**choices: object) -> str:
    strategy = Strategy.of(**{"world_size": 16, "global_batch_size": 64, **choices})
    return " ".join(division_assumptions(strategy))


def test_a_whole_network_needs_none() -> None:
    assert texts() == ""


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"tensor": 2}, "Tensor parallelism of 2"),
        ({"context": 2}, "Context parallelism of 2"),
        ({"pipeline": 2, "grad_accum_steps": 8}, "A pipeline of 2 stages"),
        ({"expert": 8}, "Expert parallelism of 8: neighbours in a stage share the experts. Nothing hides"),
        ({"expert": 4, "expert_tensor": 2}, "share the experts, and 2 devices divide each by its width"),
        ({"expert": 8}, "among the 2 devices that have the same ones"),
        ({"expert": 8}, "A token crosses the network once for each expert"),
        ({"expert": 8, "expert_exchange": "once_per_node"}, "A token crosses the network once to each node"),
        (
            {"expert": 8, "grad_accum_steps": 2, "expert_overlap": True},
            "Another micro batch's kernels hide the two all-to-alls",
        ),
        ({"expert": 8}, "All devices get equally many tokens"),
        ({"expert": 8, "expert_imbalance": 1.25}, "fullest device get 1.25 times as many tokens as the mean"),
    ],
)
def test_each_dimension_says_what_it_assumes(choices: dict[str, object], words: str) -> None:
    assert words in texts(**choices)


def test_experts_that_no_other_device_has_are_not_exchanged() -> None:
    assert "have the same ones" in texts(expert=8) and "have the same ones" not in texts(expert=16)
