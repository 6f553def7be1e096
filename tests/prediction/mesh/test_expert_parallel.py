"""Devices that share experts, against closed forms, one device, and the network without such groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_toys import A100, DENSE, EXPERTS, MIXED, SHAPE, TOKENS, TWO_NODES, parts, step, strategy
from paceline import Cluster, Parallelism, Workload
from paceline.calibration.constants import efficiency
from paceline.errors import UserError
from paceline.prediction import Predictor
from paceline.prediction.mesh.expert_parallel import expert_count, expert_share, has_experts
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.mesh.tensor_parallel import Collective, share
from paceline.prediction.passes.compute import layer_seconds
from prediction_toys import FAST_HOST


@settings(max_examples=25)
@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4]), st.sampled_from([1.0, 1.5]))
def test_a_share_has_its_experts_and_loses_no_work(experts: int, width: int, imbalance: float) -> None:
    if experts == 1:
        imbalance = 1.0
    mesh = Parallelism(data=64, expert=experts, expert_tensor=width, expert_imbalance=imbalance)
    own = expert_share(MIXED, mesh).workload
    for before, after in zip(MIXED.layers, own.layers, strict=True):
        for o, p in zip(before.operations, after.operations, strict=True):
            if ".experts." not in before.name:
                assert o == p or before.name.endswith(("dispatch", "combine"))
                continue
            assert p.flops == pytest.approx(o.flops * imbalance)
            if o.kind == "matmul":
                assert 2 * p.m * p.n * p.k * p.batch == pytest.approx(p.flops)
                assert p.batch == o.batch / experts
                assert p.fixed_bytes == pytest.approx(o.fixed_bytes / experts / width)
    inside = [p for p in MIXED.parameters if ".experts." in p.name]
    held = sum(p.size for p in own.parameters) - (MIXED.num_parameters - sum(p.size for p in inside))
    assert held == sum(p.size for p in inside) // (experts * width)


def test_the_collectives_are_four_all_to_alls_a_block() -> None:
    own = expert_share(MIXED, Parallelism(data=8, expert=8))
    size = 4.0 * TOKENS * EXPERTS.active * SHAPE.hidden
    assert len(own.collectives) == 4 * SHAPE.layers
    for c in own.collectives:
        assert c == Collective(c.layer, c.backward, "alltoall", size, group="expert", copies=2.0)
    wide = expert_share(MIXED, Parallelism(data=8, expert=4, expert_tensor=2)).collectives
    kinds = [(c.kind, c.backward, c.bytes) for c in wide[:8] if c.group == "expert_tensor"]
    gathered = [("gather", False), ("scatter", True), ("scatter", False), ("gather", True)]
    assert kinds == [(kind, backward, 2 * size) for kind, backward in gathered]


def test_without_a_group_the_step_is_that_of_data_parallelism() -> None:
    alone, divided = step(), step(expert=1)
    assert alone.step_time_s == divided.step_time_s and alone.memory == divided.memory


def test_a_group_whose_exchange_is_free_computes_as_larger_products_do() -> None:
    """The device's layers are those of the share, by the same kernels."""
    whole = parts(expert=8)
    own = expert_share(MIXED, Parallelism(data=8, expert=8)).workload
    passes = layer_seconds(own, 4, "bf16", A100.device, efficiency("ordinary"))
    for mine, its in zip(whole.steps[0].kernels, passes, strict=True):
        assert mine.kernels.sum() == pytest.approx(its.kernels.sum())


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(["ddp", "zero1", "zero2", "zero3"]),
    st.sampled_from([1.0, 1.3]),
    st.booleans(),
)
def test_what_is_waited_for_sums_to_the_step(
    expert: int, tensor: int, pipeline: int, sharding: str, imbalance: float, recompute: bool
) -> None:
    if 16 // pipeline % expert:
        expert = 8
    p = step(
        TWO_NODES,
        expert=expert,
        tensor=tensor,
        sequence=tensor > 1,
        pipeline=pipeline,
        sharding=sharding,
        recompute=recompute,
        expert_imbalance=imbalance if expert > 1 else 1.0,
        grad_accum_steps=4,
        global_batch_size=64,
    )
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s, rel=1e-6)
    assert p.low_s <= p.step_time_s <= p.high_s
    assert max(event.end_s for event in p.timeline) == pytest.approx(p.step_time_s, rel=1e-6)
    assert p.memory_bytes == pytest.approx(sum(p.memory.values())) and p.explain()
    assert (p.exposed["expert imbalance"] > 0) == (expert > 1 and imbalance > 1)


def test_dispatched_copies_are_kept_in_memory() -> None:
    few, many = (
        step(workload=Workload.from_shape(replace(SHAPE, experts=replace(EXPERTS, active=k)), TOKENS), expert=8) for k in (1, 4)
    )
    # A copy of each token, and of its rows inside an expert: the input, two factors and their product
    each = 2 * 4 * TOKENS * SHAPE.layers * (SHAPE.hidden + 3 * EXPERTS.ffn)
    assert many.memory["activations"] - few.memory["activations"] == pytest.approx(3 * each, rel=0.05)


def test_tensor_parallel_devices_send_their_own_tokens() -> None:
    p = parts(tensor=4, sequence=True, expert=8)
    moved = [c for c in share(MIXED, 4, True).collectives if c.group == "tensor"]
    assert not any("expert" in MIXED.layers[c.layer].name for c in moved)
    (own,) = p.steps
    layer = next(x for x in own.workload.layers if x.name.endswith("experts.expand"))
    assert layer.operations[0].m == pytest.approx(TOKENS / 4 * 8 * 2 / 16) and layer.operations[0].batch == 2
    with pytest.raises(UserError, match=r"without sequence parallelism.*; give sequence \(--sequence\)"):
        step(tensor=4)


def test_an_imbalance_costs_time_that_explain_names() -> None:
    even, uneven = step(expert=8), step(expert=8, expert_imbalance=1.5)
    named = uneven.exposed["expert imbalance"]
    more = uneven.step_time_s - even.step_time_s  # named as if products took time in proportion to their tokens
    assert more > 0 and named == pytest.approx(more, rel=0.35)
    assert "expert imbalance" in uneven.explain() and "1.5 times as many tokens" in uneven.explain().replace("\n  ", " ")
    free = step(expert=8, expert_imbalance=1.5, predictor=FAST_HOST.without("expert imbalance"))
    assert free.step_time_s == pytest.approx(even.step_time_s)


@pytest.mark.parametrize("choices", [{"expert": 8}, {"expert": 8, "pipeline": 2, "grad_accum_steps": 4}])
def test_stages_pass_on_tokens_and_not_their_copies(choices: dict[str, int]) -> None:
    p = parts(TWO_NODES, global_batch_size=64, **choices)
    dense = mesh_step(
        Predictor().model(DENSE), TWO_NODES, strategy(TWO_NODES, global_batch_size=64, **{**choices, "expert": 1})
    )
    assert p.send_s == dense.send_s


@pytest.mark.parametrize(
    ("workload", "choices", "words"),
    [
        (DENSE, {"expert": 2}, "expert parallelism of 2: dense has no experts; give expert=1"),
        (MIXED, {"expert": 3, "world_size": 3}, r"the 16 experts of .* do not divide among 3 devices; give a divisor"),
        (MIXED, {"expert_tensor": 3, "world_size": 3}, r"the width of .* does not divide among 3 devices"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(workload: Workload, choices: dict[str, int], words: str) -> None:
    cluster = Cluster.named(f"{choices.get('world_size', 8)} A100")
    with pytest.raises(UserError, match=words):
        step(cluster, workload, global_batch_size=24, **choices)


def test_has_experts() -> None:
    assert has_experts(MIXED) and not has_experts(DENSE)


def test_several_experts_of_a_device_sort_what_arrives() -> None:
    def moved(**choices: object) -> float:
        own = expert_share(MIXED, Parallelism(data=16, **choices)).workload  # type: ignore[arg-type]
        return sum(o.bytes for x in own.layers if x.name.endswith(("dispatch", "combine")) for o in x.operations)

    copies = 4 * TOKENS * EXPERTS.active * SHAPE.hidden
    assert moved(expert=8) - moved(expert=16) == 2 * 4 * SHAPE.layers * copies
    assert moved(expert=8, expert_exchange="once_per_node") == moved(expert=16)


@settings(max_examples=15)
@given(st.sampled_from([2, 4, 8]), st.floats(1.0, 3.0), st.floats(1.0, 2.0), st.sampled_from(["ddp", "zero1", "zero3"]))
def test_a_fuller_device_never_makes_a_step_shorter(expert: int, imbalance: float, more: float, sharding: str) -> None:
    sizes = (min(size, expert) for size in (imbalance, imbalance * more))
    least, most = (step(expert=expert, expert_imbalance=size, sharding=sharding) for size in sizes)
    assert least.step_time_s <= most.step_time_s * (1 + 1e-9)
    assert least.memory["activations"] <= most.memory["activations"] * (1 + 1e-9)


@pytest.mark.parametrize("expert", [1, 2, 4, 8, 16])
def test_devices_compute_the_same_work_however_experts_are_shared(expert: int) -> None:
    """Up to an expert for each device: FLOPs stay, and so do the rows of all experts of a device together."""
    mesh = Parallelism(data=16, expert=expert)
    own = expert_share(MIXED, mesh).workload if expert > 1 else MIXED
    assert own.flops_per_sample == pytest.approx(MIXED.flops_per_sample)
    grouped = [o for x in own.layers for o in x.operations if ".experts." in x.name and o.grows == "m"]
    assert {round(o.m * o.batch, 6) for o in grouped} == {TOKENS * EXPERTS.active}
    assert {o.batch for o in grouped} == {EXPERTS.count / expert}


def test_experts_without_products_of_their_own_are_not_divided() -> None:
    net = Workload.named("gpt2")
    renamed = [replace(x, name=f"{x.name}.experts.act") if x.kind == "GELU" else x for x in net.layers]
    own = replace(net, layers=tuple(renamed))
    assert not has_experts(own) and expert_count(own) == 0
