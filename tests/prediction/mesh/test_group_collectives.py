"""Collectives within the passes: their bytes and seconds."""

from __future__ import annotations

import numpy as np
import pytest

from expert_toys import A100, SHAPE, TWO_NODES, parts, strategy
from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import efficiency
from paceline.prediction import Predictor
from paceline.prediction.exchange.collective_time import alltoall_seconds
from paceline.prediction.mesh.group_collectives import group_seconds, group_work
from paceline.prediction.mesh.tensor_parallel import Collective
from paceline.workload import TransformerShape


def test_bytes_of_the_all_to_alls_are_their_closed_form() -> None:
    own = parts(expert=8, grad_accum_steps=2)
    # 4 in a block, 7/8 of 2 copies of each of 512 tokens of 4 samples, in bf16
    assert own.group_bytes[0] == pytest.approx(4 * SHAPE.layers * 7 / 8 * 2 * 512 * 4 * 1024 * 2)


def test_a_token_that_is_sent_once_to_a_node_waits_less_for_the_network() -> None:
    slow = Cluster.named("4x2 A100", network="25Gb/s")
    asked = [Collective(0, False, "alltoall", 4e8, group="expert", copies=8.0)]
    flat, once = (
        group_seconds(asked, slow, strategy(expert=8, expert_exchange=how), efficiency("ordinary"))[0][0]
        for how in ("all_to_all", "once_per_node")
    )
    # Eight copies at random reach 3.6 of 4 nodes, of which each copy would have crossed for itself
    assert once == pytest.approx(4 * (1 - 0.75**8) / 8 * flat, rel=0.01)


def test_exchanges_beside_another_micro_batch_are_hidden_as_far_as_it_computes() -> None:
    choices = {"expert": 8, "grad_accum_steps": 8, "global_batch_size": 64}
    bare, hidden = (parts(expert_overlap=on, **choices) for on in (False, True))
    # 30 % of what both take together is lost, and one of eight micro batches has no other beside it
    waited, left = (sum(float(np.sum(part.near)) for part in p.steps[0].kernels) for p in (bare, hidden))
    assert waited == pytest.approx(bare.group_s[0] / 8) and hidden.group_s == bare.group_s
    assert left == pytest.approx(waited * (1 - 0.7 * 7 / 8)) and hidden.seconds < bare.seconds
    slow = Cluster.named("8x1 A100", network="1Gb/s")
    bare, hidden = (parts(slow, expert_overlap=on, **choices) for on in (False, True))
    worked = sum(float(part.kernels.sum()) for part in bare.steps[0].kernels) * 8
    assert 0 < bare.seconds - hidden.seconds < 0.7 * worked


def test_slower_links_make_a_longer_step() -> None:
    own = parts(TWO_NODES, expert=16, global_batch_size=64)
    times = [own.seconds_with_links(between, 1.0) for between in (0.5, 1.0, 2.0)]
    assert times == sorted(times) and times[1] == pytest.approx(own.seconds)


def test_collectives_of_a_group_that_nothing_is_asked_of_take_no_time() -> None:
    seconds, far = group_seconds([], A100, strategy(), efficiency("ordinary"))
    assert len(seconds) == len(far) == 0 and group_work([], seconds, strategy()) == {}


def test_work_of_a_layer_is_that_of_all_its_micro_batches() -> None:
    asked = [Collective(3, back, "alltoall", 4e6, group="expert", copies=2.0) for back in (False, True)]
    chosen = strategy(expert=8, grad_accum_steps=2)
    seconds, far = group_seconds(asked, A100, chosen, efficiency("ordinary"))
    assert seconds[0] == seconds[1] and not far.any()
    assert seconds[0] == pytest.approx(alltoall_seconds(np.array([2 * 2e6]), A100, efficiency("ordinary"))[0][0])
    assert group_work(asked, seconds, chosen) == {3: (pytest.approx(4 * seconds[0]), pytest.approx(2 * 2 * 2 * 7 / 8 * 2e6))}


GPT = Workload.from_shape(TransformerShape(layers=8, hidden=2048, heads=16, vocabulary=1024), 1024)
ON = Cluster.named("8 A100")


def test_a_zero_bubble_pipeline_hides_no_collective_beside_the_gradients_of_weights() -> None:
    waits = []
    for schedule in ("1f1b", "zero_bubble"):
        strategy = Strategy.of(
            world_size=8,
            tensor=2,
            pipeline=4,
            grad_accum_steps=8,
            global_batch_size=16,
            precision="bf16",
            schedule=schedule,
        )
        waits.append(Predictor().step(GPT, ON, strategy).exposed["intra-node link"])
    assert waits[1] > waits[0] > 0


def test_software_before_user_buffers_waits_for_each_exchange_of_a_tensor_group() -> None:
    strategy = Strategy.of(world_size=8, tensor=8, sequence=True, global_batch_size=8, precision="bf16")
    tuned = efficiency("tuned")
    waits = [
        Predictor(constants=tuned.of_year(year)).step(GPT, ON, strategy).exposed["intra-node link"]
        for year in (2022.5, 2023.2, 2023.3, 2025.0)
    ]
    assert waits[0] == pytest.approx(waits[1], rel=0.05) and waits[2] == pytest.approx(waits[3], rel=0.05)
    assert waits[1] > 1.2 * waits[2]
