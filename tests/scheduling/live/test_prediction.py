"""Live jobs are predicted before they ran, and what one reports corrects the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from live_jobs import script, training
from paceline.cli.live_forecast import training_run_of
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.scheduling.launch import Launch
from paceline.scheduling.live.journal import LiveRow, Report
from paceline.scheduling.live.nodes import LiveNodes
from paceline.scheduling.live.prediction import LivePredictions
from paceline.scheduling.live.runner import Snapshot
from paceline.scheduling.state import Outlook
from paceline.strategy import Strategy
from paceline.workload import Workload

BASE = Path("/data")
NODES = (("h0", 2), ("h1", 2))
T4 = LiveNodes.named(["T4"], "1Gb/s")


def row(name: str, job: object = None, **more: object) -> LiveRow:
    return LiveRow(launch=job or training(BASE, name), arrival_s=100.0, **more)  # type: ignore[arg-type]


def believed(
    rows: Sequence[LiveRow], past: Sequence[LiveRow] = (), nodes: LiveNodes = T4, there: tuple[tuple[str, int], ...] = NODES
) -> list[Outlook]:
    live = Snapshot(now_s=200.0, rows=rows, placed={}, nodes=there, past=past)
    return LivePredictions(nodes, training_run_of)(live, nodes.fleet(dict(there))[0])


def test_a_run_of_train_is_predicted_as_predict_does() -> None:
    command = (*training(BASE, "a").command, "--compression", "terngrad", "--global-batch", "128")
    (outlook,) = believed([row("a", replace(training(BASE, "a"), command=command))])
    for size, text in ((1, "1x1 T4"), (2, "1x2 T4"), (4, "2x2 T4")):
        cluster = Cluster.named(text, "1Gb/s" if size > 2 else None)
        strategy = Strategy.of(
            world_size=size, global_batch_size=128, compression="terngrad", optimizer="momentum", precision="fp32"
        )
        step_s = Predictor().step(Workload.named("lenet5"), cluster, strategy).step_time_s
        assert math.isclose(outlook.goodput(0, size)[size], 128 / step_s, rel_tol=1e-6)
    samples = 6 * (1438 // 128) * 128  # six epochs of the digits
    assert math.isclose(outlook.seconds_left(0, 2)[2] * outlook.goodput(0, 2)[2], samples)
    assert 0 < outlook.relative_spread() < math.inf


def test_what_one_job_reports_corrects_another_of_its_network_and_still_counts_when_it_is_over() -> None:
    before = believed([row("a"), row("b")])[1]
    ratio = 0.1
    slow = row("a", reports=(Report({"h0": 1}, ratio * float(before.goodput(0, 1)[1])),))
    for rows, past in (([slow, row("b")], []), ([row("b")], [replace(slow, is_over=True)])):
        after = believed(rows, past)[-1]
        assert math.isclose(after.goodput(0, 1)[1] / before.goodput(0, 1)[1], ratio, rel_tol=1e-6)
        assert after.goodput(0, 4)[4] > 1.01 * ratio * before.goodput(0, 4)[4], "its computing is slow, its exchange is not"


def test_an_exchange_that_was_reported_is_told_from_computing() -> None:
    """Two slots: 64 samples in a second, half of it exchange. On four the exchange stays."""
    reports = (Report({"h0": 1}, 64.0 / 1.0), Report({"h0": 1, "h1": 1}, 64.0 / 1.0, 0.5))
    shown = believed([row("a", reports=reports)])[0].goodput(0, 4)
    hidden = believed([row("a", reports=(reports[0], replace(reports[1], exchange_s=0.05)))])[0].goodput(0, 4)
    assert shown[4] < hidden[4]


def test_a_job_of_unknown_length_is_as_long_as_such_jobs_were() -> None:
    command = ("paceline", "train", "--model", "lenet5", "--data", "mine:load")
    fresh = row("a", replace(training(BASE, "a"), command=command))
    assert np.isnan(believed([fresh])[0].seconds_left(0, 1)[1])
    done = row("z", replace(training(BASE, "z"), command=command), is_over=True, phase="done", progress={"step": 10.0})
    outlook = believed([fresh], [done])[0]
    assert math.isclose(outlook.seconds_left(0, 1)[1] * outlook.goodput(0, 1)[1], 640.0)


def test_a_table_may_state_the_network_of_any_command() -> None:
    job = script(BASE, "./train.sh", model="resnet-50", batch=64, samples=6400.0, min_devices=2, max_devices=2)
    (outlook,) = believed([row("a", job)])
    step_s = (
        Predictor()
        .step(
            Workload.named("resnet-50"),
            Cluster.named("2 T4"),
            Strategy.of(world_size=2, global_batch_size=64, precision="fp32"),
        )
        .step_time_s
    )
    assert math.isclose(outlook.seconds_left(0, 2)[2], 100 * step_s, rel_tol=0.1)


def test_two_types_have_their_own_speeds_and_a_job_may_be_bound_to_one() -> None:
    nodes, there = LiveNodes.named(["a*=A100", "t*=T4"]), (("a0", 2), ("t0", 2))
    job = script(BASE, "./train.sh", model="resnet-50", batch=64, samples=6400.0)
    only_t4 = replace(job, job=replace(job.job, name="b", device_types=("T4",)))
    free, bound = believed([row("a", job), row("b", only_t4)], nodes=nodes, there=there)
    assert free.goodput(0, 1)[1] > 3 * free.goodput(1, 1)[1] > 0
    assert bound.goodput(0, 1)[1] == 0 and bound.goodput(1, 1)[1] == free.goodput(1, 1)[1]


@pytest.mark.parametrize(
    ("command", "more", "nodes", "why"),
    [
        ("./train.sh", {}, T4, "its network is unknown"),
        ("./train.sh", {"model": "resnet-50", "batch": 64}, LiveNodes(), "the device of its nodes is unknown"),
        ("./train.sh", {"model": "resnet-50", "batch": 64, "device_types": ("A100 SXM 80GB",)}, T4, "no node has such"),
        ("./train.sh", {"model": "llama-2-70b", "batch": 64}, T4, "does not fit a T4"),
        ("./train.sh", {"model": "resnet-50", "batch": 64}, LiveNodes.named(["T4"]), "the network is unknown"),
    ],
)
def test_what_is_not_predicted_says_why(command: str, more: dict[str, object], nodes: LiveNodes, why: str) -> None:
    rows = [row("a", script(BASE, command, "a", **more))]
    predictions = LivePredictions(nodes, training_run_of)
    fleet, _ = nodes.fleet(dict(NODES))
    assert why in predictions.unpredicted(rows, fleet)["a"]
    assert math.isinf(believed(rows, nodes=nodes)[0].relative_spread()), "only reports are believed"


def test_code_of_the_users_own_is_not_read_and_its_command_is_checked() -> None:
    own = row("a", replace(training(BASE, "a"), command=("paceline", "train", "--model", "mine:net", "--data", "digits")))
    predictions = LivePredictions(T4, training_run_of)
    assert predictions.unpredicted([own], T4.fleet(dict(NODES))[0]) == {"a": "its network is unknown"}
    named = row("b", Launch.from_json({**own.launch.to_json(), "name": "b", "model": "lenet5"}))
    assert not predictions.unpredicted([named], T4.fleet(dict(NODES))[0])
    wrong = row("c", training(BASE, "c", command=(*training(BASE, "c").command, "--compresion", "terngrad")))
    with pytest.raises(UserError, match=r"job c: .*--compresion"):
        believed([wrong])
    with pytest.raises(UserError, match=r"job d: .*resnet-51"):
        believed([row("d", script(BASE, "true", "d", model="resnet-51", batch=8))])
