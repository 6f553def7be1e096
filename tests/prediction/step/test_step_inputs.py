"""Inputs of a step: refused types, a settled strategy, scores of attention that is not fused."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload, predict
from paceline.calibration.constants import efficiency
from paceline.errors import UserError
from paceline.prediction.step.step_inputs import StepInputs, check_inputs

GOOD = Workload.named("lenet5"), Cluster.named("2x8 A100", network="100Gb/s"), Strategy.of(world_size=16, global_batch_size=16)
CONSTANTS = efficiency("ordinary")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_value_of_another_type_is_refused(place: int) -> None:
    check_inputs(*GOOD)
    with pytest.raises(UserError, match="'bad'"):
        check_inputs(*("bad" if i == place else given for i, given in enumerate(GOOD)))


def test_open_choices_are_settled_and_settled_inputs_stay() -> None:
    inputs = StepInputs.of(*GOOD, CONSTANTS)
    assert (inputs.workload, inputs.cluster) == GOOD[:2] and inputs.strategy == GOOD[2].settled(*GOOD[:2]) != GOOD[2]
    assert StepInputs.of(inputs.workload, inputs.cluster, inputs.strategy, CONSTANTS) == inputs


@pytest.mark.parametrize(("workers", "kernel", "words"), [(8, "", "8"), (16, "flash-2", "lenet5 has no attention")])
def test_inputs_that_do_not_go_together_are_refused(workers: int, kernel: str, words: str) -> None:
    strategy = Strategy.of(world_size=workers, global_batch_size=16)
    with pytest.raises(UserError, match=words):
        StepInputs.of(*GOOD[:2], strategy, CONSTANTS, kernel)


def test_a_loss_needs_a_vocabulary() -> None:
    with pytest.raises(UserError, match="resnet-50 has no loss over a vocabulary; leave loss out"):
        predict("resnet-50", "A100", global_batch_size=8, loss="cut")
