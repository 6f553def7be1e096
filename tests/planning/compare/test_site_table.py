"""All methods on one number of sites: bytes, goodput and further tokens."""

from __future__ import annotations

import math

import pytest

from paceline.hardware import Cluster
from paceline.planning.compare.site_table import further_by_method, site_table
from paceline.planning.failures.failures import Failures
from paceline.planning.failures.local_goodput import SiteFailures
from paceline.prediction.learning.local_loss import further_tokens
from paceline.strategy import Strategy
from paceline.workload import Workload

GPT2 = Workload.named("gpt2", 128)
SITE, ALONE = Cluster.named("1 A100"), Strategy.of(world_size=1, global_batch_size=8, precision="bf16")


def test_the_fastest_is_first_with_its_bytes_and_its_goodput() -> None:
    failures = Failures(between_s=3600.0 * 200, restart_s=600.0, write_s=30.0)
    table = site_table(GPT2, SITE, ALONE, sites=4, bandwidth=1e9 / 8, failures=failures)
    assert table.impossible == {}
    steps = [o.prediction.step_time_s for o in table.outcomes]
    assert steps == sorted(steps)
    by_name = {o.method.name: o for o in table.outcomes}
    assert by_name["dense"].site_bytes == pytest.approx(30 * by_name["diloco"].site_bytes, rel=1e-3)
    assert by_name["sparseloco"].site_bytes < by_name["muloco"].site_bytes < by_name["diloco"].site_bytes
    seconds = by_name["diloco"].prediction.step_time_s
    case = SiteFailures(sites=4, mean_s=7.2e5, round_s=30 * seconds, rejoin_s=600.0)
    assert by_name["diloco"].goodput == case.peers() > by_name["dense"].goodput
    without = site_table(GPT2, SITE, ALONE, sites=4, bandwidth=1e9 / 8)
    assert all(math.isnan(o.goodput) for o in without.outcomes)
    first = without.to_json()["methods"][0]
    assert first["goodput"] is None and first["method"] == "sparseloco"
    assert first["further_tokens"] is None and "SparseLoCo report" in first["published"]
    assert [o.method.name for o in without.outcomes if o.further] == ["diloco"]
    assert by_name["dense"].finding is None


def test_laws_of_language_models_hold_for_no_other_network() -> None:
    assert further_by_method(GPT2, ALONE, 2, 30) == {"diloco": further_tokens(GPT2.num_parameters, 2, 30)}
    assert further_by_method(Workload.named("resnet-50"), ALONE, 2, 30) == {}
