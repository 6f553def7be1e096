"""Steps of networks that several devices hold together, against closed forms, one device, and the same step by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.prediction import Prediction, Predictor
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.mesh.tensor_parallel import share
from paceline.workload import TransformerShape
from prediction_toys import FAST_HOST

SHAPE = TransformerShape(layers=8, hidden=1024, heads=16, vocabulary=51200)
GPT = Workload.from_shape(SHAPE, 512, name="gpt-8x1024")
A100 = Cluster.named("8 A100")
TWO_NODES = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


def step(
    cluster: Cluster = A100, workload: Workload = GPT, predictor: Predictor | None = None, **choices: object
) -> Prediction:
    whole = {"world_size": cluster.world_size, "precision": "bf16", "optimizer": "adam", **choices}
    return (predictor or FAST_HOST).step(workload, cluster, Strategy.of(**whole))


meshes = st.sampled_from(
    [(t, p, v) for t, p, v in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2)) if t * p <= 8 and (v == 1 or 1 < p <= 4)]
)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    meshes,
    st.sampled_from([8, 16]),
    st.booleans(),
    st.sampled_from(["ddp", "zero1", "zero3"]),
    st.sampled_from([0, 16, 32]),
    st.sampled_from(["ordinary", "tuned"]),
)
def test_what_is_waited_for_sums_to_the_step(
    mesh: tuple[int, int, int], micro: int, sequence: bool, sharding: str, bits: int, software: str
) -> None:
    tensor, pipeline, virtual = mesh
    p = step(
        predictor=Predictor(framework=software),
        gradient_bits=bits if sharding != "ddp" else 0,
        gather_bits=min(bits, 16) if sharding != "ddp" else 0,  # the weights are bf16
        tensor=tensor,
        pipeline=pipeline,
        virtual_stages=virtual,
        sequence=sequence and tensor > 1,
        sharding=sharding,
        grad_accum_steps=micro,
        global_batch_size=8 * micro * 2,
    )
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s, rel=1e-6)
    assert p.low_s <= p.step_time_s <= p.high_s
    assert p.compute_s + p.exposed_comm_s == pytest.approx(p.step_time_s)
    assert max(event.end_s for event in p.timeline) == pytest.approx(p.step_time_s, rel=1e-6)
    assert p.memory_bytes == pytest.approx(sum(p.memory.values()))


def test_a_pipeline_of_even_stages_has_the_closed_forms_bubble() -> None:
    # Narayanan et al. 2021, section 2.2: (p - 1) / m of the ideal time; 1 / v of that when interleaved
    deep = Workload.from_shape(TransformerShape(layers=32, hidden=2048, heads=16, vocabulary=256), 512)
    for stages, micro, virtual in ((4, 8, 1), (4, 8, 2), (8, 16, 1), (2, 4, 4)):
        cluster = Cluster.named(f"{stages} A100")
        p = step(cluster, deep, pipeline=stages, virtual_stages=virtual, grad_accum_steps=micro, global_batch_size=micro * 4)
        worked = p.step_time_s - p.exposed["pipeline bubble"]
        assert p.exposed["pipeline bubble"] / worked == pytest.approx((stages - 1) / micro / virtual, rel=0.15)


def test_a_pipeline_without_its_bubble_is_what_the_bubble_costs_faster() -> None:
    choices = {"pipeline": 8, "grad_accum_steps": 8, "global_batch_size": 32}
    whole = step(**choices)
    free = step(predictor=FAST_HOST.without("pipeline bubble"), **choices)
    assert free.step_time_s == pytest.approx(whole.step_time_s - whole.exposed["pipeline bubble"], rel=0.02)


def test_more_micro_batches_shrink_the_share_of_the_bubble() -> None:
    shares = []
    for micro in (4, 8, 16, 32):
        p = step(pipeline=4, grad_accum_steps=micro, global_batch_size=2 * micro * 2)
        shares.append(p.exposed["pipeline bubble"] / p.step_time_s)
    assert shares == sorted(shares, reverse=True)


def test_tensor_parallelism_waits_for_the_link_inside_the_node_and_across_nodes_for_the_network() -> None:
    inside = step(TWO_NODES, tensor=8, global_batch_size=32)
    across = step(TWO_NODES, tensor=16, global_batch_size=32)
    assert inside.exposed["intra-node link"] > 0
    assert across.exposed["network"] > across.exposed["intra-node link"]
    assert across.step_time_s > inside.step_time_s
    fast = step(TWO_NODES, tensor=8, global_batch_size=32, predictor=FAST_HOST.without("intra-node link"))
    assert fast.exposed["intra-node link"] == 0 and fast.step_time_s < inside.step_time_s


def test_the_bytes_of_tensor_parallelism_are_its_all_reduces() -> None:
    # 4 all-reduces a block, 2 at the ends, 3 numbers a token in the loss; 2 (t - 1) / t of each is sent
    tensor, batch, tokens, hidden = 4, 3, 512, 1024
    p = step(Cluster.named("4 A100"), tensor=tensor, global_batch_size=batch)
    activations = (4 * SHAPE.layers + 2) * tokens * hidden * 2
    expected = 2 * (tensor - 1) / tensor * batch * (activations + 3 * 4 * tokens)
    assert p.wire_bytes_per_device == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("micro", [4, 16])
def test_activations_of_1f1b_are_those_of_as_many_micro_batches_as_stages(micro: int) -> None:
    whole = step(Cluster.named("4 A100"), pipeline=4, grad_accum_steps=micro, global_batch_size=2 * micro)
    alone = step(Cluster.named("1 A100"), grad_accum_steps=micro, global_batch_size=2 * micro)
    # The first stage has a quarter of the blocks, for four micro batches at once; logits and loss are the last stage's.
    head = 2 * 512 * (51200 * 4 + 1024 * 2)  # of two samples: the loss at fp32, what enters the logits in bf16
    # A divided network has weights of 16 bits; alone it is autocast, whose normalisations keep fp32.
    narrow = 2 * GPT.kept_bytes("narrow")
    loss = 2 * 2 * 512 * (51200 * 4 + 8)  # gradients in the loss, which Megatron's computes in place
    assert whole.memory["activations"] < narrow < alone.memory["activations"] == 2 * GPT.kept_bytes("autocast") + loss
    assert whole.memory["activations"] == pytest.approx(narrow - head, rel=0.02)
    gpipe = step(Cluster.named("4 A100"), pipeline=4, grad_accum_steps=micro, global_batch_size=2 * micro, schedule="gpipe")
    last = micro * ((narrow - head) / 4 + head)  # all micro batches at the stage of the logits
    assert gpipe.memory["activations"] == pytest.approx(last, rel=0.02)


def test_sequence_parallelism_needs_less_memory_and_the_same_bytes() -> None:
    plain, sequence = (step(tensor=8, global_batch_size=16, sequence=on) for on in (False, True))
    assert sequence.memory["activations"] < 0.75 * plain.memory["activations"]


def test_weights_are_divided_by_tensor_and_pipeline() -> None:
    alone = step(Cluster.named("1 A100"), global_batch_size=8)
    divided = step(tensor=2, pipeline=4, grad_accum_steps=4, global_batch_size=8)
    table = 51200 * 1024 * 6 / 2  # the ends have the tokens' table as well
    assert divided.memory["weights"] == pytest.approx((alone.memory["weights"] - 2 * table) / 8 + table, rel=0.02)


def test_ends_of_a_pipeline_with_one_table_add_up_its_gradients() -> None:
    tied, own = (
        Workload.from_shape(TransformerShape(layers=8, hidden=1024, heads=16, vocabulary=51200, tied=value), 512)
        for value in (True, False)
    )
    choices = {"pipeline": 8, "grad_accum_steps": 8, "global_batch_size": 8}
    waits = [step(workload=w, **choices).exposed["intra-node link"] for w in (tied, own)]
    assert waits[0] > waits[1] + 4 * 51200 * 1024 / 300e9


def test_what_does_not_divide_is_refused_by_name() -> None:
    for choices, words in (
        ({"pipeline": 16, "world_size": 16, "grad_accum_steps": 16}, r"a pipeline of 16 parts: gpt-8x1024 has 8 blocks"),
        ({"tensor": 3, "world_size": 6}, r"the 16 heads of .* do not divide among 3 devices"),
        ({"tensor": 3, "world_size": 8}, r"8 devices are no whole replicas of 3; nearest legal: 6 or 9 devices"),
    ):
        with pytest.raises(UserError, match=words):
            step(Cluster.named(f"{choices['world_size'] // 2}x2 A100, 100Gb/s"), global_batch_size=96, **choices)


def test_data_parallel_replicas_of_a_divided_network_exchange_their_share() -> None:
    # Each device all-reduces its share among the replicas: 2 (d - 1) / d of its gradients in fp32
    p = step(TWO_NODES, tensor=8, global_batch_size=16, grad_accum_steps=1)
    alone = step(A100, tensor=8, global_batch_size=8)
    own = p.wire_bytes_per_device - alone.wire_bytes_per_device
    assert own == 4 * share(GPT, 8, sequence=False).workload.num_parameters


def test_the_virtual_stages_need_whole_rounds_of_micro_batches() -> None:
    with pytest.raises(UserError, match=r"2 virtual stages with 6 micro batches on 4 stages.*; give a multiple of 4"):
        step(pipeline=4, virtual_stages=2, grad_accum_steps=6, global_batch_size=96)


def test_only_boundaries_between_nodes_wait_for_the_network() -> None:
    deep = Workload.from_shape(TransformerShape(layers=8, hidden=1024, heads=16, vocabulary=51200, tied=True), 512)
    strategy = Strategy.of(
        world_size=16, pipeline=8, grad_accum_steps=8, global_batch_size=64, precision="bf16", optimizer="adam"
    )
    slow = Cluster.named("2x8 A100", network="10Gb/s")
    whole = mesh_step(Predictor().model(deep), slow, strategy)
    assert whole.send_far == (False, False, False, True, False, False, False)  # stages 0 to 3 lie in the first node
    assert whole.send_s[3] > 10 * max(whole.send_s[:3])
    pairs = 2 * 4.0 * 51200 * 1024 / 1.25e9  # two pairs share a network of 10 Gb/s; each sends the table once
    assert whole.tie_s == pytest.approx(pairs / 0.94, rel=0.3)


@pytest.mark.parametrize("choices", [{"tensor": 4, "pipeline": 2}, {"pipeline": 8}, {"tensor": 8}, {"context": 8}])
def test_one_replica_is_explained(choices: dict[str, int]) -> None:
    p = step(global_batch_size=16, grad_accum_steps=16, **choices)
    assert "stage with the most work computes" in p.critical_path and p.explain()
    waits = ("network", "intra-node link", "pipeline send", "codec")
    assert p.exposed_comm_s == pytest.approx(sum(p.exposed[name] for name in waits))
    assert p.exposed_comm_s <= p.comm_s * (1 + 1e-9)


@pytest.mark.parametrize("software", ["ordinary", "tuned"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_a_wait_for_sends_is_no_bubble(software: str, schedule: str) -> None:
    """Stages wait 0.35 s for a network of 1 Gb/s: no schedule shortens that, a faster network does."""
    choices = {"pipeline": 16, "grad_accum_steps": 16, "global_batch_size": 64, "schedule": schedule}
    deep = Workload.from_shape(TransformerShape(layers=16, hidden=1024, heads=16, vocabulary=256), 512)
    slow = Cluster.named("2x8 A100", network="1Gb/s")
    fast = Cluster.named("2x8 A100", network="100Tb/s")
    usual = Predictor(framework=software)
    before, after = (step(cluster, deep, usual, **choices) for cluster in (slow, fast))
    assert before.bottleneck == "pipeline send" and "sends between stages" in before.critical_path
    assert before.exposed["pipeline bubble"] == pytest.approx(after.exposed["pipeline bubble"], rel=0.02)
    gained = before.step_time_s - after.step_time_s
    waited, left = (p.exposed["pipeline send"] + p.exposed["network"] for p in (before, after))
    assert waited - left == pytest.approx(gained, rel=0.01)
    without = step(slow, deep, usual.without("network"), **choices)
    assert without.step_time_s == pytest.approx(after.step_time_s, rel=0.01)
    no_sends = step(slow, deep, usual.without("pipeline send"), **choices)
    assert no_sends.step_time_s == pytest.approx(before.step_time_s - before.exposed["pipeline send"], rel=0.01)
    assert step(slow, deep, usual.without("pipeline bubble"), **choices).step_time_s > 0.9 * gained


def test_stages_divide_the_bytes_of_their_groups() -> None:
    alone = step(Cluster.named("4 A100"), tensor=4, global_batch_size=16, grad_accum_steps=8).wire_bytes_per_device
    two = step(Cluster.named("8 A100"), tensor=4, pipeline=2, global_batch_size=16, grad_accum_steps=8).wire_bytes_per_device
    assert 0.45 * alone < two < 0.65 * alone


def test_bytes_take_the_time_that_the_link_needs() -> None:
    p = step(Cluster.named("4 A100"), tensor=4, global_batch_size=256, grad_accum_steps=1)
    assert p.comm_s > p.wire_bytes_per_device / 300e9 and p.comm_s > p.exposed_comm_s


def test_groups_that_nodes_cut_unevenly_are_refused() -> None:
    with pytest.raises(UserError, match=r"tensor: groups of 4 devices, 1 apart, do not lie evenly in nodes of 6"):
        step(Cluster.named("2x6 A100", network="1Gb/s"), tensor=4, global_batch_size=60)
    with pytest.raises(UserError, match=r"data x context: groups of 4 devices, 2 .* of 2\+6; give nodes of equally many"):
        step(Cluster.named("2+6 A100", network="1Gb/s"), tensor=2, global_batch_size=60)


def test_tuned_software_hides_the_collectives_of_sequence_parallelism_beside_their_products() -> None:
    shares = {}
    for software in ("ordinary", "tuned"):
        for sequence in (False, True):
            p = step(tensor=8, global_batch_size=32, sequence=sequence, predictor=Predictor(framework=software))
            shares[software, sequence] = p.exposed["intra-node link"] / p.comm_s
    assert shares["tuned", True] < 0.7 * shares["tuned", False]
    assert shares["ordinary", True] > 0.9 * shares["ordinary", False] > shares["tuned", True]


def test_a_payload_of_unknown_length_widens_the_range_of_a_divided_network_too() -> None:
    slow = Cluster.named("2x4 A100", network="1Gb/s")
    ends = []
    for ratio in (0, 8):
        options = {"ratio": ratio} if ratio else {}
        p = step(slow, tensor=4, global_batch_size=8, compression="inceptionn", options=options)
        ends.append(p.high_s / p.low_s)
    assert ends[0] > 1.05 * ends[1]


def test_uneven_stages_are_said_and_even_ones_save_no_more_than_that() -> None:
    llama, choices = Workload.named("llama-2-7b"), {"pipeline": 4, "tensor": 2, "grad_accum_steps": 16, "global_batch_size": 64}
    even, uneven = (step(workload=llama, **choices, first_stage_layers=count) for count in (0, 20))
    assert not any("times as long as the mean" in text for text in even.assumptions)
    (line,) = [text for text in uneven.assumptions if "times as long as the mean" in text]
    assert line.startswith("Stage 0 works 2.5 times") and line in uneven.explain().replace("\n  ", " ")
    share = float(line.partition("save up to ")[2].partition("%")[0]) / 100
    assert 0.4 < 1 - even.step_time_s / uneven.step_time_s <= share + 0.005


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("software", ["ordinary", "tuned"])
def test_one_stage_waits_for_no_other(sharding: str, times: int, software: str) -> None:
    cluster = Cluster.named("1+7 H100", network="100Gb/s")
    strategy = Strategy.of(
        world_size=8, global_batch_size=48, precision="bf16", expert=8, sharding=sharding, grad_accum_steps=times
    )
    p = Predictor(framework=software).step(Workload.named("mixtral-8x7b"), cluster, strategy)
    assert p.exposed["pipeline bubble"] == 0
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s)
