"""Assumptions: each says what the prediction did with it, and only that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

import paceline
from paceline.hardware import Cluster, cluster
from paceline.hardware import cluster as named_cluster
from paceline.prediction import Predictor, predict
from paceline.strategy import Strategy
from paceline.workload import Coverage, Workload
from prediction_toys import make_calibration, make_cluster, make_workload, strategy


def test_a_dense_pull_is_slower_and_said():
    plan = strategy(4, compression="int8", exchange="parameter_server")
    both, push_only = (predict(make_workload(), make_cluster(1, 4), plan.changed(compress_pull=x)) for x in (True, False))
    assert both.comm_s < push_only.comm_s
    assert any("Only the push is compressed" in a for a in push_only.assumptions)


def test_unknown_operations_are_named():
    toy = replace(make_workload(), coverage=Coverage(ops=10, known=8, unknown={"aten.fft": 2}))
    p = predict(toy, make_cluster(1, 1), strategy(1))
    assert any("aten.fft (x2)" in a and "not counted" in a for a in p.assumptions)


def test_an_assumption_names_only_numbers_that_are_used():
    p = predict(Workload.named("lenet5"), named_cluster("Xeon", 4, 2, "1Gb/s"), strategy(8, compression="int8"))
    cores = [text for text in p.assumptions if "cores a rank" in text]
    assert len(cores) == 1 and "4 cores a rank" in cores[0]
    assert "range" not in cores[0] and "16" not in cores[0]


@pytest.mark.parametrize(
    ("device", "changed", "said"),
    [
        ("Xeon", {"compression": "int8"}, "Tensors that stay dense are copied"),
        ("Xeon", {"compression": "int8", "exchange": "parameter_server", "compress_pull": False}, "Gradients are copied"),
        ("Xeon", {"compression": "topk"}, "Gradients are copied"),
        ("Xeon", {"compression": "dense"}, ""),
        ("V100", {"compression": "topk"}, ""),
    ],
)
def test_on_cpus_it_is_said_what_is_copied(device: str, changed: dict[str, Any], said: str) -> None:
    found = predict(Workload.named("lenet5"), named_cluster(device, 1, 4, "1Gb/s"), strategy(4, **changed))
    copied = [text for text in found.assumptions if "copied into one buffer" in text]
    assert [text.startswith(said) for text in copied] == ([True] if said else [])


@pytest.mark.parametrize(("device", "through"), [("RTX 4090", True), ("RTX A6000", False)])
def test_boards_without_peer_to_peer_are_said_to_pass_through_the_host(device: str, through: bool) -> None:
    said = predict(Workload.named("lenet5"), Cluster.named(f"4 {device}"), strategy(4)).assumptions
    assert any("no peer-to-peer: messages pass through the host's memory" in text for text in said) == through


def kinds(machines: Cluster, plan: Strategy, **knowledge: Any) -> list[str]:
    return [a.kind for a in Predictor(**knowledge).step(make_workload(), machines, plan).assumptions]


@pytest.mark.parametrize(
    ("machines", "plan", "there", "absent"),
    [
        (make_cluster(1, 1), strategy(1), {"uncalibrated", "unused", "optimizer"}, {"links", "overlap", "stragglers"}),
        (make_cluster(1, 4), strategy(4), {"links", "overlap"}, {"unused", "codec", "recomputation"}),
        (make_cluster(1, 4), strategy(4, compression="terngrad"), {"codec", "accuracy"}, {"payload"}),
        (make_cluster(1, 4), strategy(4, compression="inceptionn"), {"codec", "payload"}, {"calibrated"}),
        (make_cluster(1, 4), strategy(4, sharding="zero3", recompute=True), {"parallelism", "recomputation"}, {"codec"}),
        (make_cluster(1, 1, memory=1e6), strategy(1), {"fit"}, {"calibrated"}),
    ],
)
def test_each_subject_comes_where_it_matters(machines: Cluster, plan: Strategy, there: set[str], absent: set[str]) -> None:
    seen = set(kinds(machines, plan))
    assert there <= seen and not absent & seen


def test_a_calibration_takes_the_place_of_the_catalogue() -> None:
    measured = kinds(make_cluster(2, 2), strategy(4, compression="terngrad"), calibration=make_calibration())
    assert "calibrated" in measured and not {"uncalibrated", "device", "links", "stragglers"} & set(measured)


def test_two_links_are_named_where_both_are_used() -> None:
    sentences = predict(make_workload(), make_cluster(2, 2), strategy(4)).assumptions
    places = [a.partition(": ")[0] for a in sentences if a.kind == "links"]
    assert len(places) == 2 and places[0].endswith("inside a node") and places[1].endswith("between nodes, per node")
    assert all(a.source == "made up" for a in sentences if a.kind == "links")


@pytest.mark.parametrize("net", ["lenet5", "gpt2"])
def test_every_assumption_is_whole_sentences(net: str) -> None:
    for plan in (strategy(8), strategy(8, compression="topk"), strategy(8, sharding="zero2", grad_accum_steps=2)):
        for sentence in predict(Workload.named(net), cluster("A100", 4, 2, "100Gb/s"), plan).assumptions:
            assert sentence.endswith(".") and "nan" not in sentence and "  " not in sentence


def test_experts_that_the_host_launches_are_said() -> None:
    workload, machines = Workload.named("qwen-3-30b-a3b"), Cluster.named("8 B200")

    def said(software: Literal["ordinary", "tuned"], precision: str) -> bool:
        plan = Strategy.of(
            data=8, global_batch_size=64, micro_batches=8, precision=precision, expert=8, sharding="distributed_optimizer"
        )
        answer = Predictor(framework=software).step(workload, machines, plan)
        return any("the host launches their blocks" in str(assumption) for assumption in answer.assumptions)

    assert said("tuned", "bf16") and not said("tuned", "mxfp8") and not said("ordinary", "bf16")


@pytest.mark.parametrize(("device", "unmeasured"), [("V100", True), ("RTX 4090", True), ("MI300X", True), ("H200", False)])
def test_products_that_were_not_measured_are_said(device: str, unmeasured: bool) -> None:
    texts = [str(each) for each in paceline.predict("gpt2", device, global_batch_size=8).assumptions]
    assert any("No matrix products" in text for text in texts) == unmeasured
    assert any("Products follow those measured" in text for text in texts) != unmeasured
