"""What the workers share out: the bytes of the ZeRO paper, and FSDP's units of whole blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware.precision import BYTES_PER_ELEMENT, PRECISIONS
from paceline.strategy import Strategy
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.mesh_rules import GATHER_BITS
from paceline.strategy.sharding import SHARDINGS, TORCH_SHARDINGS, block, scatter, units
from paceline.workload import Parameter, Workload


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_wire_bytes_of_shares_are_those_of_the_zero_paper(precision):
    """Rajbhandari et al. 2020, section 7: in units of (N-1)/N of the weights, two for gradients and one for every gather."""
    net, n = Workload.named("resnet-50"), 8

    def sent(sharding: str, times: int = 1) -> float:
        plan = Strategy.of(world_size=n, global_batch_size=64, precision=precision, sharding=sharding, grad_accum_steps=times)
        wide = 2 if precision == "bf16" and sharding in ("zero2", "zero3") else 4
        unit = (n - 1) / n * wide * net.num_parameters
        return plan.wire_bytes_per_device(net.parameters, net.ready_order) / unit

    assert [sent(s) for s in ("ddp", "zero1", "zero2", "zero3")] == pytest.approx([2, 3, 2, 3], rel=1e-5)
    assert [sent(s, 4) for s in ("ddp", "zero1", "zero2", "zero3")] == pytest.approx([2, 3, 8, 12], rel=1e-5)


@pytest.mark.parametrize("name", ["resnet-50", "bert-base"])
def test_fsdp_gathers_whole_blocks(name):
    net = Workload.named(name)
    for least in (1, 1 << 20, 1 << 40):
        together = units(net.parameters, least)
        assert [t for unit in together for t in unit] == list(net.parameters)
        assert all(4 * sum(t.size for t in unit) >= least for unit in together[:-1])
        blocks = [{block(t.name) for t in unit} - {""} for unit in together]
        assert all(not (a & b) for i, a in enumerate(blocks) for b in blocks[i + 1 :])
    plan = Strategy.of(world_size=2, global_batch_size=2, sharding="zero3")
    groups = plan.groups(net.parameters, net.ready_order)
    assert [t for group in reversed(groups) for t in group.tensors] == list(net.parameters)
    assert [p.name for p in groups[0].gathers] == ["gather_forward", "gather_backward"]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("layers.3.fc.weight", "layers.3"),
        ("fc.weight", ""),
        ("a.b.12.c.4.d", "a.b.12"),
        ("0.weight", "0"),
        ("layer3.fc", ""),
        ("", ""),
    ],
)
def test_a_block_ends_at_the_first_number(name, owner):
    assert block(name) == owner


@given(st.lists(st.sampled_from(("stem", "b.0.x", "b.0.y", "b.1.x", "head")), max_size=12), st.integers(1, 100))
def test_units_keep_every_tensor_in_order(names, least):
    parameters = [Parameter(name=f"{name}.weight", shape=(3,), layer=0, ready=0) for name in names]
    groups = units(parameters, least)
    assert [t for group in groups for t in group] == parameters and all(groups)


@given(st.sampled_from(tuple(SHARDINGS)), st.sampled_from(tuple(BYTES_PER_ELEMENT)), st.integers(0, 10**6), st.integers(1, 64))
def test_what_is_scattered_and_gathered_is_one_share_short_of_the_buffer(sharding, precision, elements, workers):
    wide = BYTES_PER_ELEMENT[precision]
    (phase,) = scatter(elements, precision, workers).phases
    share = -(-(workers - 1) * wide * elements // workers)
    assert phase.sent_by_rank().tolist() == phase.received_by_rank().tolist() == [share] * workers
    for gather in SHARDINGS[sharding].gathers(BucketPlan(elements, 1, 0), precision, workers):
        in_rows = SHARDINGS[sharding].weights or sharding == "zero1"  # equal ones for all owners
        padded = workers * -(-elements // workers) if in_rows else elements
        size = (wide if SHARDINGS[sharding].scatters else 4) * padded
        assert (gather.pattern, gather.sizes, gather.world_size) == ("gather", (size,), workers)


@pytest.mark.parametrize(
    ("precision", "bits", "width"),
    [
        ("bf16", 16, 2.0),
        ("bf16", 8, 2.0),
        ("fp32", 16, 4.0),
        ("fp8", 8, 1.0),
        ("fp8", 16, 2.0),
        ("fp8-block", 8, 2.0),
        ("mxfp8", 8, 2.0),
        ("nvfp4", 8, 2.0),
    ],
)
@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_weights_travel_in_as_many_bits_as_their_recipe_lets_them(
    sharding: str, precision: str, bits: int, width: float
) -> None:
    rounded = {("bf16", 8): 4 * (32 + 4 + 1024), ("fp32", 16): 2 * 1000} if sharding == "zero3" else {}  # qwZ: int8 in messages
    for gather in SHARDINGS[sharding].gathers(BucketPlan(1000, 1, 0), precision, 4, bits=bits):
        assert gather.sizes == (rounded.get((precision, bits), width * 1000),)


def test_gradients_of_zero1_are_scattered_where_bits_say_so() -> None:
    whole, shared = (
        Strategy.of(world_size=4, global_batch_size=4, sharding="zero1", precision="bf16", gradient_bits=bits)
        for bits in (0, 16)
    )
    patterns = [[p.pattern for p in s.traffic(BucketPlan(1000, 1, 0)).phases] for s in (whole, shared)]
    assert patterns == [["allreduce"], ["scatter"]]
    assert shared.traffic(BucketPlan(1000, 1, 0)).phases[0].sizes == (2000,)
    with pytest.raises(UserError, match="gradient_bits=16 with sharding ddp; give zero1"):
        Strategy.of(world_size=4, global_batch_size=4, gradient_bits=16)
    with pytest.raises(UserError, match="gather_bits=16 with sharding ddp; give zero1"):
        Strategy.of(world_size=4, global_batch_size=4, gather_bits=16)
    with pytest.raises(UserError, match="gather_bits=12; give one of 0, 8, 16, 32"):
        Strategy.of(world_size=4, global_batch_size=4, sharding="zero1", gather_bits=12)


@pytest.mark.parametrize(("precision", "least"), [("fp32", 32), ("bf16", 16), ("mxfp8", 16), ("fp8", 8)])
def test_weights_travel_in_no_fewer_bits_than_the_precision_can(precision: str, least: int) -> None:
    for bits in (8, 16, 32):
        choices = {"world_size": 4, "global_batch_size": 4, "sharding": "zero1", "precision": precision, "gather_bits": bits}
        if bits >= least:
            assert Strategy.of(**choices).parallelism.gather_bits == bits
            continue
        words = f"gather_bits={bits} with {precision} and zero1, .*; give {least} bits, or precision fp8"
        with pytest.raises(UserError, match=words):
            Strategy.of(**choices)


def test_weights_of_a_divided_network_travel_in_no_more_bits_than_they_have() -> None:
    choices = {"world_size": 4, "global_batch_size": 4, "sharding": "zero1", "precision": "bf16", "gather_bits": 32}
    assert Strategy.of(**choices).parallelism.real_sharding.name == "zero1"  # fp32 master weights
    with pytest.raises(UserError, match=facts("gather_bits=32", "16", "bf16", "leave gather_bits out")):
        Strategy.of(**choices, tensor=2)


@each_row("sharding", tuple(SHARDINGS))
@each_row("precision", PRECISIONS)
@each_row("bits", GATHER_BITS)
def test_what_a_strategy_can_gather_is_what_is_said(sharding: str, precision: str, bits: int) -> None:
    """fp8 by tensor has weights of 8 bits; the other recipes have 16; zero2 and zero3 round those that no recipe quantises.
    What is not zero1 gathers weights that have 16 bits at most, but for fp32."""
    narrow = {"fp8": 8, "fp8-current": 8, "fp32": 32, "tf32": 32}.get(precision, 16)
    rounded = sharding in ("zero2", "zero3") and precision in ("fp32", "tf32", "bf16", "fp16")
    wider = sharding != "zero1" and bits == 32 and precision not in ("fp32", "tf32")
    legal = not bits or (sharding != "ddp" and not wider and (rounded or bits >= narrow))
    assert SHARDINGS[sharding].can_gather(precision, bits) == legal
    made = {"world_size": 4, "global_batch_size": 4, "sharding": sharding, "precision": precision, "gather_bits": bits}
    if legal:
        Strategy.of(**made)
        return
    with pytest.raises(UserError, match=f"gather_bits={bits}"):
        Strategy.of(**made)


def test_each_level_shares_out_what_the_one_before_does():
    levels = [SHARDINGS[name] for name in TORCH_SHARDINGS]
    kept = [(level.optimizer, level.gradients, level.weights) for level in levels]
    assert kept == sorted(kept) and kept[0] == (False, False, False)
    assert [len(level.gather_names) for level in levels] == [0, 1, 1, 2]


def test_the_distributed_optimizer_scatters_fp32_gradients_and_gathers_16_bit_weights() -> None:
    net = Workload.named("resnet-50")

    def sent(sharding: str) -> int:
        strategy = Strategy.of(world_size=8, global_batch_size=64, precision="bf16", sharding=sharding, grad_accum_steps=4)
        return strategy.wire_bytes_per_device(net.parameters, net.ready_order)

    assert sent("distributed_optimizer") == pytest.approx(0.75 * sent("ddp"), rel=1e-5)


@given(st.sampled_from(("zero2", "zero3")), st.sampled_from((2, 4, 8, 16)), st.integers(1, 10**6))
def test_groups_share_inside_and_add_up_between(sharding: str, members: int, elements: int) -> None:
    """HSDP (Zhao et al. 2023, section 3.2.2): reduce-scatter in the group, an all-reduce of the shares between groups."""
    world = 16
    scattered, *summed = scatter(elements, "bf16", world, members).phases
    assert (scattered.members, scattered.stride) == (members, 1)
    share = -(-2 * elements // members)
    padded = 2 * members * -(-elements // members)
    assert [(p.sizes, p.members, p.stride, p.pattern) for p in summed] == (
        [] if members == world else [((share,), world // members, members, "allreduce")]
    )
    for gather in SHARDINGS[sharding].gathers(BucketPlan(elements, 1, 0), "bf16", world, members=members):
        assert (gather.members, gather.stride, gather.sizes) == (members, 1, (padded,))
