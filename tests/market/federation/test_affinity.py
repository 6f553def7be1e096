"""Predicted speeds of jobs on other device types."""

import pytest

import paceline
from market.sites import job
from paceline.market.federation.affinity import predicted_speed


def test_a_known_network_is_predicted() -> None:
    speed = predicted_speed()
    known = job("a", 0, 1, 8, model="resnet-50", batch=1024)
    expected = (
        paceline.predict("resnet-50", "1x8 A100 SXM 40GB", global_batch_size=1024).samples_per_s
        / paceline.predict("resnet-50", "1x8 V100 SXM2 16GB", global_batch_size=1024).samples_per_s
    )
    assert speed(known, "V100 SXM2 16GB", "A100 SXM 40GB") == pytest.approx(expected)
    assert expected > 1


def test_a_large_job_is_compared_at_its_batch_of_a_device() -> None:
    speed = predicted_speed()
    small, large = job("a", 0, 1, 8, model="resnet-50", batch=512), job("a", 0, 1, 32, model="resnet-50", batch=2048)
    assert speed(small, "T4", "A100 SXM 40GB") == speed(large, "T4", "A100 SXM 40GB")


def test_what_nobody_knows_stays_at_home() -> None:
    speed = predicted_speed()
    assert speed(job("a", 0, 1, model="my-net"), "T4", "A100 SXM 40GB") == 0
    assert speed(job("a", 0, 1), "T4", "A100 SXM 40GB") == 0
