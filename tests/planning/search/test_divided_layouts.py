"""A plan divides the network where it must or where it is asked to, and says how it weighed the layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from facts import facts
from paceline import Cluster, Workload
from paceline.errors import UserError
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.search.candidates import candidates
from paceline.planning.search.tally import Exclusions
from paceline.prediction import Predictor
from paceline.prediction.learning.convergence import Point, fit
from paceline.workload import Experts, TransformerShape

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
    assert answer.considered == len(candidates(space(optimizer="adam"), TrainingTarget(), Exclusions()))


@pytest.mark.long
def test_a_network_that_no_device_holds_is_divided() -> None:
    # 7.4 GB of weights, gradients and optimizer state: DDP does not fit, ZeRO-3 and layouts do
    answer = plan(GPT, space(small_device(7)), Goal("fastest"))
    assert "layouts that divide the network" in answer.layouts and "were predicted whole" in answer.layouts
    divided = [choice for choice in answer.ranking if choice.strategy.parallelism.model_devices > 1]
    assert divided and answer.considered > 1000 and all(choice.prediction.fits for choice in answer.ranking)
    assert {"does not fit the device's memory with a headroom of 15% for fragments"} < {x.reason for x in answer.excluded}
    assert all(choice.prediction.fit == "fits" for choice in answer.ranking) and "15% beyond" in answer.headroom
    assert answer.to_json()["layouts"] == answer.layouts
    for choice in answer.ranking:  # what is shown is the exact prediction
        exact = Predictor().step(GPT, choice.cluster, choice.strategy)
        assert choice.prediction.step_time_s == exact.step_time_s


def test_weights_of_a_divided_network_are_rounded_where_they_can_be() -> None:
    answer = plan(GPT, space(shardings=("zero1", "zero3"), tensors=(2,), gather_bits=8), Goal("fastest"))
    for choice in answer.ranking:
        mesh = choice.strategy.parallelism
        assert (mesh.sharding.name, mesh.tensor, mesh.gather_bits) == ("zero3", 2, 8)
        assert choice.prediction.step_time_s == Predictor().step(GPT, choice.cluster, choice.strategy).step_time_s


def test_weights_of_a_divided_network_travel_in_no_more_bits_than_they_have() -> None:
    answer = plan(GPT, space(shardings=("ddp", "zero1"), tensors=(2,), precisions=("bf16",), gather_bits=32), Goal("fastest"))
    assert {choice.strategy.parallelism.sharding.name for choice in answer.ranking} == {"ddp"}


def test_sizes_that_are_named_are_tried_alone() -> None:
    named = space(tensors=(2, 4), pipelines=(2,), micro_batches=(4, 8))
    answer = plan(GPT, named, Goal("fastest"))
    meshes = [choice.strategy.parallelism for choice in answer.ranking]
    assert {mesh.tensor for mesh in meshes} == {2, 4} and {mesh.pipeline for mesh in meshes} == {2}
    assert {mesh.micro_batches for mesh in meshes} <= {4, 8} and {mesh.context for mesh in meshes} == {1}
    both = plan(GPT, space(tensors=(1, 2)), Goal("fastest"))
    assert {choice.strategy.parallelism.tensor for choice in both.ranking} == {1, 2}
    assert both.best.time_s == min(choice.time_s for choice in both.front)


@pytest.mark.long
def test_without_a_batch_or_with_a_curve_layouts_have_batches_of_their_own() -> None:
    free = plan(GPT, space(small_device(4), batches=()), Goal("fastest"))
    divided = [choice.strategy for choice in free.ranking if choice.strategy.parallelism.model_devices > 1]
    assert {strategy.global_batch_size for strategy in divided} <= {2, 4, 8, 16} and free.notice
    curve = fit([Point(b, 1e6 * (1 + b / 1000)) for b in (32, 64, 128)], "99 %", "made up")
    known = plan(GPT, space(small_device(4), batches=()), Goal("fastest"), TrainingTarget(curve=curve))
    assert max(choice.strategy.global_batch_size for choice in known.ranking) <= 128


@pytest.mark.long
def test_what_fits_in_no_layout_says_how_much_is_missing() -> None:
    with pytest.raises(UserError, match=facts("fits on no device", "missing", "each device")) as it:
        plan(GPT, space(small_device(1.7)), Goal("fastest"))
    assert "more memory" in str(it.value)


def test_optimizer_state_lies_with_the_host_only_where_nothing_else_fits() -> None:
    tight = space(small_device(3.85), pipelines=(1, 2), tensors=(1, 8), virtual_stages=(1,), shardings=("zero1",))
    answer = plan(GPT, tight, Goal("fastest"))
    assert {choice.strategy.parallelism.offload.name for choice in answer.ranking} == {"optimizer"}
    assert "optimizer in host memory" in answer.best.title and answer.best.prediction.fit == "fits"
    roomy = plan(GPT, replace(tight, clusters=(small_device(7),)), Goal("fastest"))
    assert {choice.strategy.parallelism.offload.name for choice in roomy.ranking} == {"none"}


def test_compressed_gradients_are_not_searched_for_a_divided_network() -> None:
    with pytest.raises(UserError):
        plan(GPT, space(tensors=(2,), compressions=("bf16",)), Goal("fastest"))


MIXTURE = Workload.from_shape(
    TransformerShape(layers=8, hidden=2048, heads=16, vocabulary=32000, experts=Experts(count=12, active=2, ffn=8192)),
    512,
    name="mixture-8x2048",
)


@pytest.mark.long
def test_groups_of_experts_are_searched_without_being_named() -> None:
    """12 experts go in groups of 1, 2 and 4; without groups nothing fits."""
    alone = small_device(10.54)
    small = space(replace(alone, device=replace(alone.device, host_link="")), shardings=("zero1",))  # nothing is offloaded
    answer = plan(MIXTURE, small, Goal("fastest"))
    groups = {choice.strategy.parallelism.expert for choice in answer.ranking}
    assert groups <= {2, 4} and answer.best.prediction.fits
    with pytest.raises(UserError, match="fits on no device here") as without:
        plan(MIXTURE, replace(small, experts=(1,)), Goal("fastest"))
    assert "groups that share the experts (`expert`)" in str(without.value)
    with pytest.raises(UserError, match="fits on no device here") as tried:
        plan(MIXTURE, space(small_device(1.6)), Goal("fastest"))
    assert "`expert`" not in str(tried.value)


@pytest.mark.long
def test_a_size_that_is_asked_about_is_compared_with_its_best_layout() -> None:
    """Tensor 8 is in no row of the ranking; with the other choices of the best it would be another strategy."""
    answer = plan(GPT, space(small_device(7)), Goal("fastest"), why_not={"tensor": 8})
    assert answer.asked is not None and answer.asked.strategy.parallelism.tensor == 8
    mesh = answer.asked.strategy.parallelism
    assert mesh.sequence and answer.asked.prediction.fits and "slower" in answer.why_not
    named = plan(GPT, space(small_device(7), tensors=(8,), pipelines=(1, 2, 4, 8), contexts=(1, 2)), Goal("fastest"))
    fastest = min(choice.time_s for choice in named.ranking)  # a simpler layout that ties may be first
    assert answer.asked.time_s == pytest.approx(fastest, rel=0.02)


def test_a_size_that_is_asked_about_and_does_not_fit_says_how_much_its_best_layout_lacks() -> None:
    small = space(small_device(3.65))
    answer = plan(GPT, small, Goal("fastest"), why_not={"tensor": 1, "pipeline": 2, "sharding": "ddp"})
    assert answer.asked is None and "does not fit" in answer.why_not and "pipeline 2" in answer.why_not
