"""Shares of a context-parallel group: tokens divided, weights whole, and what attention needs of the others."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.prediction import Prediction
from paceline.prediction.mesh.context_parallel import token_share
from paceline.strategy.context_exchange import CONTEXT_EXCHANGES
from paceline.workload import TransformerShape
from prediction_toys import FAST_HOST

S, H, KV, LAYERS = 4096, 1024, 256, 4
LLAMA = Workload.from_shape(
    TransformerShape(
        layers=LAYERS,
        hidden=H,
        heads=16,
        kv_heads=4,
        vocabulary=32000,
        norm="rms",
        bias=False,
        positions="rotary",
        dropout=False,
    ),
    S,
)


def step(cluster: Cluster, workload: Workload = LLAMA, **choices: object) -> Prediction:
    whole = {"world_size": cluster.world_size, "precision": "bf16", "optimizer": "adam", **choices}
    return FAST_HOST.step(workload, cluster, Strategy.of(**whole))


@pytest.mark.parametrize("context", [2, 4, 8])
def test_tokens_are_divided_and_weights_are_not(context: int) -> None:
    own = token_share(LLAMA, context, CONTEXT_EXCHANGES["ring"]).workload
    assert own.parameters == LLAMA.parameters
    assert own.flops_per_sample == pytest.approx(LLAMA.flops_per_sample / context)
    assert own.activation_bytes == pytest.approx(LLAMA.activation_bytes / context)
    for before, after in zip(LLAMA.layers, own.layers, strict=True):
        for o, p in zip(before.operations, after.operations, strict=True):
            assert p.fixed_bytes == o.fixed_bytes
            if o.kind == "matmul":
                assert 2 * p.m * p.n * p.k * p.batch * p.calls == pytest.approx(p.flops)


def test_the_ring_passes_keys_and_values_and_back_their_gradients_too() -> None:
    collectives = token_share(LLAMA, 4, CONTEXT_EXCHANGES["ring"]).collectives
    assert [c.backward for c in collectives] == [False, True] * LAYERS
    assert {c.bytes for c in collectives if not c.backward} == {4 * 2 * S * KV}
    assert {c.bytes for c in collectives if c.backward} == {2 * 4 * 2 * S * KV}
    p = step(Cluster.named("4 A100"), context=4, global_batch_size=1)
    gradients = 2 * 3 / 4 * 4 * LLAMA.num_parameters
    assert p.wire_bytes_per_device == pytest.approx(gradients + 3 / 4 * LAYERS * 3 * 2 * (2 * S * KV), rel=1e-6)


def test_all_to_all_swaps_queries_keys_values_and_the_result() -> None:
    collectives = token_share(LLAMA, 4, CONTEXT_EXCHANGES["all_to_all"]).collectives
    assert {c.bytes for c in collectives} == {4 * (2 * S * H + 2 * S * KV) / 4}
    assert all(c.beside == 0 for c in collectives)
    with pytest.raises(UserError, match=r"the 16 heads of .* do not divide among 3 devices"):
        token_share(LLAMA, 3, CONTEXT_EXCHANGES["all_to_all"])


def test_a_longer_sequence_hides_the_ring() -> None:
    shares = []
    for length in (4096, 16384, 65536):
        workload = Workload.from_shape(TransformerShape(layers=2, hidden=H, heads=16, vocabulary=256, dropout=False), length)
        p = step(Cluster.named("8 A100"), workload, context=8, global_batch_size=1)
        shares.append(p.exposed["intra-node link"] / p.step_time_s)
    assert shares[0] > shares[1] > shares[2]


def test_the_group_adds_up_its_gradients_as_replicas_do() -> None:
    context = step(Cluster.named("4 A100"), context=4, global_batch_size=2, precision="fp32")
    replicas = step(Cluster.named("4 A100"), global_batch_size=8, precision="fp32")
    assert context.memory["weights"] == replicas.memory["weights"]
    lost = 2 * 2 * (4 * 32000 + 8) * S  # the gradients in the loss of two samples, which Megatron's computes in place
    assert context.memory["activations"] == pytest.approx((replicas.memory["activations"] - lost) / 4)


def test_it_goes_with_tensor_and_pipeline() -> None:
    cluster = Cluster.named("2x8 H100", network="8x InfiniBand NDR")
    p = step(cluster, tensor=2, context=2, pipeline=2, sequence=True, grad_accum_steps=4, global_batch_size=8)
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s)
    whole = step(cluster, tensor=2, pipeline=2, sequence=True, grad_accum_steps=4, global_batch_size=16)
    assert p.memory["activations"] == pytest.approx(whole.memory["activations"] / 2)


def test_a_network_without_attention_is_refused() -> None:
    with pytest.raises(UserError, match="context parallelism of 2: resnet-50 has no attention"):
        step(Cluster.named("2 A100"), Workload.named("resnet-50"), context=2, global_batch_size=8)


@pytest.mark.parametrize(("tokens", "context"), [(8, 12), (10, 4), (1, 2)])
def test_tokens_that_do_not_divide_are_refused(tokens: int, context: int) -> None:
    short = Workload.named("gpt2", tokens)
    for exchange in ("ring", "all_to_all"):
        with pytest.raises(UserError, match=f"the {tokens} tokens of .* do not divide among {context} devices of context"):
            token_share(short, context, CONTEXT_EXCHANGES[exchange])
    assert token_share(Workload.named("gpt2", 2 * context), context, CONTEXT_EXCHANGES["ring"]).workload
