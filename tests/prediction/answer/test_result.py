"""A prediction as text and as JSON: what a script needs, and shares that add up."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware import cluster as named_cluster
from paceline.prediction import Prediction, Predictor, predict
from paceline.prediction.answer.result import Assumption
from paceline.workload import Workload
from prediction_toys import IDEAL, make_cluster, make_workload, strategy


def test_json_has_what_a_script_needs_and_comes_back():
    p = predict(Workload.named("alexnet"), named_cluster("V100", 4, 2, "10Gb/s"), strategy(8, micro=64, compression="terngrad"))
    data = json.loads(json.dumps(p.to_json()))
    wanted = (
        "step_time_s samples_per_s compute_s comm_s exposed_comm_s wire_bytes_per_device memory_bytes bottleneck low_s high_s"
    )
    assert set(wanted.split()) <= set(data)
    assert isinstance(data["assumptions"], list)
    assert data["assumptions"]
    assert Prediction.from_json(data) == replace(p, timeline=())


@pytest.mark.parametrize("net", ["lenet5", "resnet-50", "bert-base"])
def test_explain_fits_80_columns_and_adds_up(net):
    text = predict(Workload.named(net), named_cluster("A100", 8, 2, "8x InfiniBand HDR"), strategy(16, micro=32)).explain()
    assert max(map(len, text.splitlines())) <= 80
    waits, _, _ = text.partition("Critical path:")
    shares = [float(line.rsplit(None, 1)[1].rstrip("%")) for line in waits.splitlines() if line.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    for part in ("Critical path:", "Range:", "Memory on one device:", "Assumptions:"):
        assert part in text


def test_explain_takes_as_many_columns_as_the_caller_has():
    p = predict(make_workload(), make_cluster(1, 1, memory=2**20), strategy(1))
    for width in (40, 120):
        lines = p.explain(width).splitlines()
        assert max(map(len, lines)) <= width
    assert len(p.explain(120).splitlines()) < len(p.explain().splitlines()) < len(p.explain(40).splitlines())
    with pytest.raises(UserError, match="39 columns"):
        p.explain(39)


def test_uneven_nodes_are_named_by_their_sizes() -> None:
    p = predict(make_workload(), named_cluster("A100", (1, 3), 2, "10Gb/s"), strategy(4))
    assert " on 1+3 A100" in repr(p)


def test_one_line_names_choices_that_are_not_the_default() -> None:
    usual = {"optimizer": "adam", "compression": "dense", "exchange": "allreduce", "sharding": "ddp", "recompute": "full"}
    p = predict(make_workload(), make_cluster(1, 2), strategy(2))
    assert ", fp32, " in repr(p)
    texts = [repr(replace(p, strategy={"precision": "bf16", **usual, **more})) for more in ({}, {"sharding": "zero3"})]
    assert ": bf16, adam, " in texts[0] and ": bf16, adam, zero3, " in texts[1]
    int8 = repr(replace(p, strategy={**usual, "compression": "int8", "exchange": "ring", "sharding": "zero3"}))
    assert ": adam, int8, ring, zero3, " in int8


def test_an_assumption_is_its_text_with_a_subject() -> None:
    assumption = Assumption("links", "A link.", "a datasheet")
    assert assumption == "A link." and (assumption.kind, assumption.source) == ("links", "a datasheet")
    again = pickle.loads(pickle.dumps(assumption))
    assert (again, again.kind, again.source) == (assumption, "links", "a datasheet")
    assert copy.deepcopy(assumption).kind == "links"


def test_what_is_read_back_keeps_the_text_alone() -> None:
    p = predict(make_workload(), make_cluster(1, 2), strategy(2))
    back = Prediction.from_json({**p.to_json(), "of_a_later_schema": 1})
    assert back.assumptions == p.assumptions and {a.kind for a in back.assumptions} == {"read back"}


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        (make_cluster(1, 1), "forward, backward, optimizer; nothing is exchanged."),
        (make_cluster(1, 2, network=1e12), "The bottleneck is compute."),
        (make_cluster(1, 2, network=1e6), "The bottleneck is network."),
    ],
)
def test_the_critical_path_is_that_of_the_exchange(machines: Cluster, words: str) -> None:
    p = Predictor(constants=(IDEAL,) * 3).step(make_workload(flops=1e12), machines, strategy(machines.world_size))
    assert p.critical_path.endswith(words)
    hidden = replace(p, exposed_comm_s=0.0).critical_path
    assert hidden.endswith("overlaps the backward pass completely.") == (machines.world_size > 1)


@pytest.mark.parametrize("memory", [1e6, 16e9])
def test_the_headline_says_how_much_is_missing(memory: float) -> None:
    p = predict(make_workload(), make_cluster(1, 1, memory=memory), strategy(1))
    assert p.fits == (p.headline == "") == (memory > 1e7) and sum(p.memory.values()) == pytest.approx(p.memory_bytes)
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s) and p.exposed[p.bottleneck] == max(p.exposed.values())
