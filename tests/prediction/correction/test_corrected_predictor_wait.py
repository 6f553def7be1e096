"""A step that waits for its samples takes as long as they do."""

from __future__ import annotations

import pytest

from paceline import predict
from paceline.prediction.correction.corrected_predictor import fed


def test_a_step_waits_for_its_samples_alone_where_they_are_late() -> None:
    p = predict("resnet-50", "V100", global_batch_size=64)
    late, early = fed(p, 2 * p.step_time_s), fed(p, p.step_time_s / 2)
    assert late.step_time_s == pytest.approx(2 * p.step_time_s) and late.bottleneck == "input pipeline"
    assert late.samples_per_s == pytest.approx(p.samples_per_s / 2) and sum(late.exposed.values()) == pytest.approx(
        late.step_time_s
    )
    assert early.step_time_s == p.step_time_s and early.bottleneck == p.bottleneck
