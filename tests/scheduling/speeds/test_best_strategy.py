"""The best strategy of each number of devices: what is legal, and that nothing else is faster."""

from __future__ import annotations

import pytest

import paceline
from paceline.prediction import Predictor
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.speeds.best_strategy import BestStrategies
from paceline.workload import Workload

GROUP = NodeGroup.of("RTX 2080 Ti", 2, 4, "25Gb/s")
LARGE = Workload.named("gpt2-large")
"""Its state of fp16 training takes more than the 11 GB of a device."""
USUAL = {"precision": "fp16"}


def strategies(workload: Workload = LARGE, **also: object) -> BestStrategies:
    stated = also.pop("stated", None)
    group = NodeGroup.of(**{**GROUP.to_json(), **also})
    return BestStrategies(workload, group, 16, USUAL, Predictor(), stated)


FREE = strategies()


def test_the_memory_decides_what_is_legal() -> None:
    assert FREE.sizes == (1, 2, 4, 8)
    assert FREE.on(1) is None and FREE.relative_spread(1) == float("inf")
    best = FREE.on(4)
    assert best is not None and 0.01 < FREE.relative_spread(4) < 1
    assert strategies(stated={"sharding": "ddp"}).on(4) is None


def test_its_step_is_the_predictors_and_no_sharding_is_faster() -> None:
    best = FREE.on(4)
    assert best is not None
    again = paceline.predict(LARGE, "4 RTX 2080 Ti", **best.strategy.to_json())
    assert again.fits and again.step_time_s == pytest.approx(best.step_s)
    for sharding in ("zero1", "zero2", "zero3"):
        for recompute in ("none", "full"):
            other = strategies(stated={"sharding": sharding, "recompute": recompute}).on(4)
            assert other is None or best.step_s <= other.step_s * 1.05  # a plain choice may be a little slower


def test_what_is_stated_stays_and_micro_steps_follow() -> None:
    stated = strategies(stated={"sharding": "zero3", "recompute": "full"})
    for devices in (2, 4):
        best = stated.on(devices)
        assert best is not None and best.kept["sharding"] == "zero3" and best.strategy.global_batch_size == 16
    three = strategies(stated={"sharding": "zero3", "grad_accum_steps": 4}).on(4)
    assert three is not None and three.text == "zero3, 4 micro steps"
    assert stated.on(3) is None  # 16 samples do not divide


def test_more_nodes_are_slower_and_nodes_that_differ_count_as_more() -> None:
    stated = strategies(stated={"sharding": "zero3", "recompute": "full"}, nodes=4)
    packed, spread = stated.on(4), stated.on(4, 2)
    assert packed is not None and spread is not None and packed.step_s < spread.step_s
    assert spread.cluster.node_sizes == (2, 2)
    three = stated.on(4, 3)
    assert three is not None and three.cluster.node_sizes == (1, 1, 1, 1)


def test_racks_are_in_the_step() -> None:
    stated = {"sharding": "zero3", "recompute": "full"}
    one, several = strategies(stated=stated), strategies(stated=stated, leaf_nodes=1, oversubscription=4.0)
    assert one.on(4) == several.on(4)
    flat, blocked = one.on(8), several.on(8)
    assert flat is not None and blocked is not None and flat.step_s < blocked.step_s
    wide = strategies(stated=stated, nodes=4, leaf_nodes=2, oversubscription=4.0)
    assert wide.on(8) == one.on(8) and wide.on(8, 2, 2) == blocked


def test_a_size_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own = strategies(stated={"sharding": "zero3", "recompute": "full"})
    first = own.on(2)
    monkeypatch.setattr(Predictor, "many", None)
    assert own.on(2) is first
