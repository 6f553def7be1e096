"""A plan divides the network where it must or where it is asked to, and says how it weighed the layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline import Cluster, Workload
from paceline.errors import UserError
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.space import Tally, candidates
from paceline.prediction import Predictor
from paceline.prediction.convergence import Point, fit
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=2048, heads=16, vocabulary=51200), 512, name="gpt-8x2048")
NODES = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


def small_device(gigabytes: float) -> Cluster:
    device = replace(NODES.device, memory=replace(NODES.device.memory, value=1e9 * gigabytes))
    return replace(NODES, device=device)


def space(cluster: Cluster = NODES, **choices: object) -> Space:
    usual: dict[str, object] = {"batches": (64,), "precisions": ("bf16",), "compressions": ("dense",)}
    return Space(clusters=(cluster,), **{**usual, **choices})  # type: ignore[arg-type]


def test_a_network_that_a_device_holds_is_not_divided() -> None:
    answer = plan(GPT, space(), Goal("fastest"))
    assert answer.layouts == "" and answer.best.strategy.parallelism.model_devices == 1
    assert answer.considered == len(candidates(space(optimizer="adam"), TrainingTarget(), Tally()))


def test_a_network_that_no_device_holds_is_divided() -> None:
    # 7.4 GB of weights, gradients and optimizer state: DDP does not fit, ZeRO-3 and layouts do
    answer = plan(GPT, space(small_device(7)), Goal("fastest"))
    assert "layouts that divide the network" in answer.layouts and "were predicted whole" in answer.layouts
    divided = [choice for choice in answer.ranking if choice.strategy.parallelism.model_devices > 1]
    assert divided and answer.considered > 1000 and all(choice.prediction.fits for choice in answer.ranking)
    assert {"does not fit the device's memory"} < {x.reason for x in answer.excluded}
    assert answer.to_json()["layouts"] == answer.layouts
    for choice in answer.ranking:  # what is shown is the exact prediction
        exact = Predictor().step(GPT, choice.cluster, choice.strategy)
        assert choice.prediction.step_time_s == exact.step_time_s


def test_sizes_that_are_named_are_tried_alone() -> None:
    named = space(tensors=(2, 4), pipelines=(2,), micro_batches=(4, 8))
    answer = plan(GPT, named, Goal("fastest"))
    meshes = [choice.strategy.parallelism for choice in answer.ranking]
    assert {mesh.tensor for mesh in meshes} == {2, 4} and {mesh.pipeline for mesh in meshes} == {2}
    assert {mesh.micro_batches for mesh in meshes} <= {4, 8} and {mesh.context for mesh in meshes} == {1}
    both = plan(GPT, space(tensors=(1, 2)), Goal("fastest"))
    assert {choice.strategy.parallelism.tensor for choice in both.ranking} == {1, 2}
    assert both.best.time_s == min(choice.time_s for choice in both.front)


def test_without_a_batch_or_with_a_curve_layouts_have_batches_of_their_own() -> None:
    free = plan(GPT, space(small_device(4), batches=()), Goal("fastest"))
    divided = [choice.strategy for choice in free.ranking if choice.strategy.parallelism.model_devices > 1]
    assert {strategy.global_batch_size for strategy in divided} <= {2, 4, 8, 16} and free.notice
    curve = fit([Point(b, 1e6 * (1 + b / 1000)) for b in (32, 64, 128)], "99 %", "made up")
    known = plan(GPT, space(small_device(4), batches=()), Goal("fastest"), TrainingTarget(curve=curve))
    assert max(choice.strategy.global_batch_size for choice in known.ranking) <= 128


def test_what_fits_in_no_layout_says_how_much_is_missing() -> None:
    with pytest.raises(UserError, match=r"fits nowhere here: at least .* are missing, with .*") as it:
        plan(GPT, space(small_device(1.7)), Goal("fastest"))
    assert "more memory" in str(it.value)


def test_compressed_gradients_are_not_searched_for_a_divided_network() -> None:
    with pytest.raises(UserError):
        plan(GPT, space(tensors=(2,), compressions=("bf16",)), Goal("fastest"))
