"""Changes as text, and what they make of a cluster and a strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, cluster
from paceline.planning import Change, parse_change, whatif
from paceline.planning.compare.changes import OF_STRATEGY, BatchScaling, apply
from paceline.planning.compare.strategy_text import parse_wanted
from paceline.strategy import GradientExchange, Strategy
from paceline.workload import Workload

TWO = cluster("V100", 8, 2, "10Gb/s")
PLAIN = Strategy.of(world_size=16, global_batch_size=1024, precision="fp16")
DIVIDED = Strategy.of(
    world_size=64, global_batch_size=256, grad_accum_steps=32, tensor=4, sequence=True, pipeline=8, precision="bf16"
)
EIGHT = Cluster.named("8x8 H100", network="8x InfiniBand NDR")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("nodes+1", Change("nodes", "+", "1")),
        ("nodesx2", Change("nodes", "x", "2")),
        ("devices-per-node=4", Change("devices-per-node", "=", "4")),
        ("network=8x InfiniBand HDR", Change("network", "=", "8x InfiniBand HDR")),
        ("device=H100-SXM", Change("device", "=", "H100-SXM")),
        ("global-batch=2048", Change("global-batch", "=", "2048")),
        ("grad-accum=2", Change("accumulation", "=", "2")),
        ("optimizer=adam", Change("optimizer", "=", "adam")),
    ],
)
def test_changes(text: str, change: Change) -> None:
    assert parse_change(text) == change and parse_change(str(change)) == change


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notes+1", "unknown change 'notes'; nearest: nodes"),
        ("network", "network has no value; write network=100Gb/s"),
        ("seq-len=4", "changes the network"),
        ("network+1", "not a number"),
        ("nodes=", r"nodes has no value; write nodes\+1"),
        ("nodes", r"nodes has no value; write nodes\+1"),
    ],
)
def test_a_change_that_is_none(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_change(text)


@given(batch=st.integers(1, 200), nodes=st.integers(1, 40), times=st.integers(1, 4))
def test_no_legal_batch_is_nearer(batch: int, nodes: int, times: int) -> None:
    before = Strategy.of(world_size=2, global_batch_size=2 * times * batch, grad_accum_steps=times)
    _, after, _ = apply([Change("nodes", "=", str(nodes))], cluster("V100", 2, 1, "10Gb/s"), before, "strong")
    legal = range(2 * nodes * times, 4 * (before.global_batch_size + nodes * times), 2 * nodes * times)
    off = abs(after.global_batch_size - before.global_batch_size)
    assert after.global_batch_size in legal and off == min(abs(b - before.global_batch_size) for b in legal)


def test_the_optimizer_is_a_choice_and_yes_is_true() -> None:
    _, strategy, _ = apply([parse_change("optimizer=adam"), parse_change("recompute=true")], TWO, PLAIN, "strong")
    assert strategy.optimizer == "adam" and strategy.parallelism.recompute.name == "full"


def test_another_compression_comes_with_its_own_exchange() -> None:
    _, strategy, _ = apply([parse_change("compression=terngrad")], TWO, PLAIN, "strong")
    assert (strategy.gradient_exchange.compression.name, strategy.gradient_exchange.exchange.name) == ("terngrad", "sharded")


def test_bits_and_place_of_residuals_change_and_do_not_outlive_their_compression() -> None:
    words = ("compression=topk", "residual-bits=16", "residuals-at=host", "dense-bits=16")
    _, strategy, _ = apply([parse_change(word) for word in words], TWO, PLAIN, "strong")
    x = strategy.gradient_exchange
    assert (x.residual_bits, x.residuals_at.name, x.dense_bits) == (16, "host", 16)
    _, usual, _ = apply([parse_change("residual-bits=32")], TWO, strategy, "strong")
    assert usual.gradient_exchange == replace(x, residual_bits=32)
    _, other, _ = apply([parse_change("compression=int8")], TWO, strategy, "strong")
    assert other.gradient_exchange == GradientExchange("int8")


def test_groups_of_experts_change_with_all_that_is_said_of_them() -> None:
    before = Strategy.of(world_size=16, global_batch_size=64, grad_accum_steps=2)
    words = (
        "expert=8",
        "expertx2",
        "expert-tensor=2",
        "expert-imbalance=1.5",
        "expert-exchange=once_per_node",
        "expert-overlap=yes",
    )
    changes = [parse_change(words[0]), *map(parse_change, words[2:])]
    mesh = apply(changes, TWO, before, "strong")[1].parallelism
    assert (mesh.expert, mesh.expert_tensor, mesh.expert_imbalance) == (8, 2, 1.5)
    assert mesh.expert_exchange.name == "once_per_node" and mesh.expert_overlap
    assert apply([parse_change(words[1])], TWO, before, "strong")[1].parallelism.expert == 2
    with pytest.raises(UserError, match=facts("'much'", "number", "expert-imbalance=1.2")):
        apply([parse_change("expert-imbalance=much")], TWO, before, "strong")
    with pytest.raises(UserError, match="expert-imbalance is not a number"):
        parse_change("expert-imbalance+1")


@pytest.mark.parametrize(
    ("words", "scaling", "batch"),
    [
        (["nodes=16"], "strong", 256),  # 4 replicas of 32 devices, in 32 micro steps
        (["nodes=16"], "weak", 512),
        (["nodes=10", "pipeline=4"], "strong", 320),
        (["pipeline=4"], "strong", 256),
        (["pipeline=1", "tensor=2"], "strong", 1024),  # 32 replicas in 32 micro steps
        (["pipeline=1", "tensor=2"], "weak", 1024),
        (["pipeline=1", "tensor=2", "accumulation=8"], "strong", 256),
        (["nodes=16", "global-batch=512"], "strong", 512),
    ],
)
def test_the_batch_divides_among_replicas_not_devices(words: list[str], scaling: BatchScaling, batch: int) -> None:
    _, after, _ = apply([parse_change(word) for word in words], EIGHT, DIVIDED, scaling)
    assert after.global_batch_size == batch


def test_an_instance_brings_its_devices_and_its_network() -> None:
    rented = cluster("p4d.24xlarge", None, 2)
    strategy = Strategy.of(world_size=16, global_batch_size=64)
    machines, changed, _ = apply([parse_change("device=p5.48xlarge")], rented, strategy, "strong")
    assert machines == cluster("p5.48xlarge", None, 2)
    assert changed.world_size == 16
    machines, changed, _ = apply([parse_change("device=g5.12xlarge")], rented, strategy, "strong")
    assert (machines.world_size, changed.world_size) == (8, 8)
    blocked = cluster("A100", 8, 4, "100Gb/s", leaf_nodes=2, oversubscription=2)
    strategy = Strategy.of(world_size=32, global_batch_size=64)
    machines, _, _ = apply([parse_change("device=p5.48xlarge")], blocked, strategy, "strong")
    assert machines == cluster("p5.48xlarge", None, 4, leaf_nodes=2, oversubscription=2)


@pytest.mark.parametrize("name", [word for word, item in OF_STRATEGY.items() if item.values.counted and not item.values.least])
def test_a_number_whose_default_is_0_may_go_back_to_it(name: str) -> None:
    choices = {"sharding": "zero1", "pipeline": 2, "precision": "fp16", "recompute": "full"}
    choices = {"sync_every": 4} if name in ("sync-delay", "worker-devices") else choices
    choices = {"sync_every": 4, "round_deadline_s": 5.0} if name == "max-age" else choices
    choices |= {"offload": "activations"} if name == "offload-layers" else {}
    given = 16 if name.endswith("bits") else 2
    before = Strategy.of(world_size=16, global_batch_size=64, **choices, **{OF_STRATEGY[name].name: given})
    _, after, _ = apply([parse_change(f"{name}=0")], cluster("V100", 8, 2, "10Gb/s"), before, "strong")
    assert after.choice(OF_STRATEGY[name].name) == 0


def test_a_node_may_get_another_host_and_a_faster_link_to_it() -> None:
    before, strategy = cluster("A100", 8, 2, "100Gb/s"), Strategy.of(world_size=16, global_batch_size=64)
    machines, *_ = apply([parse_change("host-link=PCIe 5"), parse_change("host=dgx h100")], before, strategy, "strong")
    assert (machines.device.host_link, machines.device.host) == ("PCIe 5.0 x16", "DGX H100")
    assert (machines.network, machines.intra_link) == (before.network, before.intra_link)
    with pytest.raises(UserError, match="unknown host 'DGX'; nearest: DGX-2, DGX"):
        apply([parse_change("host=DGX")], before, strategy, "strong")


def test_attention_software_and_leaf_switches_change_as_predict_takes_them() -> None:
    machines = cluster("H100", 8, 4, "400Gb/s", 2, 2.0)
    base = Strategy.of(world_size=32, global_batch_size=64, precision="bf16", sharding="zero3")
    texts = ("attention=eager", "software=tuned", "leaf-nodes=1", "oversubscription=4:1", "attention=fa2")
    answer = whatif(Workload.named("gpt2"), machines, base, [parse_change(text) for text in texts])
    eager, tuned, leaves, narrower, _ = answer.changes
    assert (eager.prediction.attention, tuned.prediction.software) == ("eager", "tuned")
    assert (leaves.cluster.leaf_nodes, leaves.cluster.oversubscription) == (1, 2.0)
    assert (narrower.cluster.leaf_nodes, narrower.cluster.oversubscription) == (2, 4.0)
    assert tuned.speedup_high == pytest.approx(tuned.speedup**2 / tuned.speedup_low)  # a range to both sides
    assert eager.speedup < 1 < tuned.speedup and narrower.speedup <= 1
    assert answer.together and answer.together.cluster.leaf_nodes == 1 and answer.together.cluster.oversubscription == 4
    for outcome in answer.outcomes:
        assert outcome.speedup_low <= outcome.speedup <= outcome.speedup_high


def test_underscores_are_read_as_hyphens() -> None:
    assert parse_change("grad_accum=4") == Change("accumulation", "=", "4")
    assert parse_wanted("grad_accum=4,sequence=true") == {"accumulation": 4, "sequence": True}
