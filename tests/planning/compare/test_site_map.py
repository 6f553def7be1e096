"""The fastest method by sites and bandwidth: against single predictions, and orders that hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.site_map import BANDWIDTHS, SiteMap, link_between, site_map
from paceline.prediction import ORDINARY
from paceline.strategy import Strategy
from paceline.workload import Workload

GPT2 = Workload.named("gpt2", 128)
SITE = Cluster.named("2 A100")
ALONE = Strategy.of(world_size=2, global_batch_size=16, precision="bf16")
GB = 1e9 / 8


@pytest.fixture(scope="module")
def answer() -> SiteMap:
    return site_map(GPT2, SITE, ALONE, bandwidths=[0.1 * GB, GB, 10 * GB, 100 * GB], sites=[2, 8])


def test_a_map_holds_what_a_single_prediction_says(answer: SiteMap) -> None:
    method = next(m for m in answer.methods if m.name == "sparseloco")
    cluster = SITE.changed(num_nodes=8, network=link_between(GB))
    alone = ORDINARY.step(GPT2, cluster, method.on_sites(ALONE, 8, 30))
    at = answer.methods.index(method), 1, 1
    assert answer.step_s[at] == pytest.approx(alone.step_time_s)
    share = answer.computing_of(np.full((2, 4), at[0]))[1, 1]
    assert share == pytest.approx(ORDINARY.step(GPT2, SITE, ALONE).step_time_s / alone.step_time_s)
    row = next(row for row in answer.rows() if (row["sites"], row["bandwidth"]) == (8, "1.00 Gb/s"))
    assert row["sparseloco"] == pytest.approx(8 * 16 / alone.step_time_s)


def test_faster_links_never_slow_a_method_and_more_sites_never_speed_its_step(answer: SiteMap) -> None:
    assert (np.diff(answer.step_s, axis=2) <= 1e-12).all()
    assert (np.diff(answer.step_s, axis=1) >= -1e-12).all()
    assert (answer.step_s >= answer.alone_s).all()
    assert answer.impossible == {} and all(answer.fits.values())


def test_local_steps_win_below_the_bandwidth_where_both_are_equally_fast(answer: SiteMap) -> None:
    assert math.isinf(answer.local_below(2)) or answer.local_below(2) > GB
    most = [answer.local_below(2, {"diloco": samples}) for samples in (1.0, 1.5, 3.0, 1e9)]
    assert answer.local_below(2) >= most[0], "all methods, of which the fastest counts"
    assert most == sorted(most, reverse=True) and most[-1] == 0  # the more samples they need, the slower the links must be
    names = [answer.methods[k].name for k in answer.best[:, 0]]
    assert not {"dense", "int8"} & set(names)


def test_a_map_is_of_single_nodes_and_names_no_method() -> None:
    with pytest.raises(UserError, match="a site of 2 nodes"):
        site_map(GPT2, Cluster.named("2x2 A100, 1Gb/s"), ALONE.changed(world_size=4))
    with pytest.raises(UserError, match="the map tries them"):
        site_map(GPT2, SITE, ALONE.changed(compression="int8"))
    with pytest.raises(UserError, match="without 2 sites"):
        site_map(GPT2, SITE, ALONE, sites=[1])


def test_links_of_a_map_have_the_bandwidth_and_the_latency_that_are_asked_for() -> None:
    assert link_between(GB, 0.03).latency.value == 0.03
    assert link_between(GB).bandwidth.value == GB
    assert BANDWIDTHS[0] * 8 == pytest.approx(1e8) and BANDWIDTHS[-1] * 8 == pytest.approx(1e11)
