"""The peak over time is the predicted memory, for every kind of network and strategy, and nothing ever exceeds it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline import Cluster, Predictor, Strategy, Workload, predict
from paceline.errors import UserError
from paceline.memory_timeline import CONTEXT, MARGIN
from paceline.prediction import Prediction
from paceline.workload import TransformerShape
from prediction_toys import make_cluster, make_workload

GPT = Workload.from_shape(TransformerShape(layers=4, hidden=256, heads=4, vocabulary=2048), 128, name="gpt-4x256")
TOY = make_workload(layers=6, blocks=2)
MOE = "deepseek-v2-lite"

SHARDINGS = st.sampled_from(["ddp", "zero1", "zero2", "zero3", "distributed_optimizer"])
RECOMPUTES = st.sampled_from(["none", "full", "selective", "selective:mlp", "selective:layernorm", "selective:mlp,layernorm"])


MORE: list[dict[str, Any]] = [
    {},
    {"compression": "terngrad"},
    *({"loss": loss} for loss in ("chunked", "cut", "in_place")),
    *({"update": update} for update in ("looped", "fused", "in_backward")),
    {"stored_weights": "bf16_kahan"},
    *({"offload": offload} for offload in ("optimizer", "activations", "checkpoints")),
    {"offload": "activations", "offload_layers": 2},
    {"task": "dpo"},
    {"ema": True},
]
"""Further choices that change what a step needs."""


def check(p: Prediction) -> None:
    """Each timeline's peak is the bytes of its ranks; those of the fullest are the prediction's."""
    for t in p.memory_timelines:
        predicted = sum(t.memory.values())
        assert t.peak_bytes == pytest.approx(predicted, rel=1e-9) and sum(t.at_peak.values()) == t.peak_bytes
        assert t.curve.totals.max() + t.margin + sum(t.beyond.values()) == pytest.approx(predicted, rel=1e-9)
        assert all(a.start_s <= a.end_s for a in t.allocations) and 0 <= t.peak_s <= t.step_s * (1 + 1e-9)
        kept = {name: size for name, size in t.memory.items() if size and name in ("weights", "gradients", "optimizer state")}
        assert kept.items() <= t.at_peak.items()
        end = dict(zip(t.curve.purposes, t.curve.sizes[-1].tolist(), strict=True))
        assert {name for name, size in end.items() if size > 1e-3} <= {a.purpose for a in t.allocations if a.held}
    assert p.memory_timeline().peak_bytes == pytest.approx(p.memory_bytes, rel=1e-9)
    ranks = [rank for t in p.memory_timelines for rank in t.ranks]
    assert ranks == [*range(int(p.strategy["world_size"]))]


@settings(max_examples=settings.default.max_examples)
@given(
    st.sampled_from([GPT, TOY]),
    SHARDINGS,
    RECOMPUTES,
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["fp32", "bf16"]),
    st.sampled_from(["adam", "momentum"]),
    st.sampled_from(["ordinary", "tuned", "hf-trainer", "deepspeed", "fsdp2"]),
    st.sampled_from(MORE),
)
def test_the_peak_of_whole_networks(
    net: Workload,
    sharding: str,
    recompute: str,
    micro: int,
    precision: str,
    optimizer: str,
    software: str,
    more: dict[str, Any],
) -> None:
    choices: dict[str, Any] = {"sharding": sharding, "recompute": recompute, "precision": precision, "optimizer": optimizer}
    cluster = Cluster.named("4 A100")
    try:
        strategy = Strategy.of(world_size=4, global_batch_size=16 * micro, grad_accum_steps=micro, **choices, **more)
        p = Predictor(framework=software).step(net, cluster, strategy)
    except UserError:
        assume(False)
    check(p)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.sampled_from([(1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2), (2, 1, 1)]),
    SHARDINGS,
    RECOMPUTES,
    st.sampled_from(["1f1b", "gpipe", "zero_bubble"]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(["ordinary", "tuned"]),
)
def test_the_peak_of_divided_networks(
    mesh: tuple[int, int, int], sharding: str, recompute: str, schedule: str, micro: int, software: str
) -> None:
    tensor, pipeline, virtual = mesh
    choices: dict[str, Any] = {"tensor": tensor, "pipeline": pipeline, "virtual_stages": virtual, "schedule": schedule}
    try:
        strategy = Strategy.of(
            world_size=8,
            global_batch_size=8 * micro,
            micro_batches=micro,
            sharding=sharding,
            recompute=recompute,
            precision="bf16",
            **choices,
        )
        p = Predictor(framework=software).step(GPT, Cluster.named("8 A100"), strategy)
    except UserError:
        assume(False)
    check(p)
    assert len(p.memory_timelines) == pipeline


@pytest.mark.long
@pytest.mark.parametrize("name", ["resnet-50", "bert-large", "llama-3-8b", MOE, "nemotron-h-8b", "vit-b16"])
@pytest.mark.parametrize("sharding", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_peak_of_known_networks(name: str, sharding: str, recompute: str) -> None:
    for micro in (1, 2):
        check(
            predict(
                name, "8 H100", sharding=sharding, recompute=recompute, global_batch_size=16 * micro, grad_accum_steps=micro
            )
        )


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_without_recomputation_a_replica_has_no_margin(micro: int, sharding: str) -> None:
    """At the end of the forward pass everything is there, so the sum of all purposes is reached."""
    strategy = Strategy.of(
        world_size=4, global_batch_size=16 * micro, grad_accum_steps=micro, sharding=sharding, bucket_bytes=1
    )
    t = Predictor().step(TOY, make_cluster(4, 1), strategy).memory_timeline()
    if sharding == "ddp":
        assert t.margin == 0 and MARGIN not in t.at_peak and t.peak_s == pytest.approx(first_forward_end(t))
    else:
        assert 0 <= t.margin <= 2 * max(a.bytes for a in t.allocations if a.purpose == "gathered")


def first_forward_end(t: Any) -> float:
    last = max((a for a in t.allocations if a.purpose == "activations"), key=lambda a: (-round(a.end_s, 12), a.start_s))
    return float(last.start_s)


def test_a_prediction_from_a_file_has_no_timeline() -> None:
    p = predict("gpt2", "1 A100", global_batch_size=1)
    assert p.memory_timeline(0).peak_bytes == p.memory_bytes and "memory_timelines" not in p.to_json()
    with pytest.raises(UserError, match="predict the step again"):
        Prediction.from_json(p.to_json()).memory_timeline()
    for rank in (1, -1, True):
        with pytest.raises(UserError, match="give a number from 0 to 0"):
            p.memory_timeline(rank)


def test_the_context_and_the_range_are_those_of_the_prediction() -> None:
    from paceline.prediction.step.memory import memory_range

    p = predict("gpt2", "4 A100", global_batch_size=32)
    t, device = p.memory_timeline(), Cluster.named("4 A100").device
    assert (t.at_peak[CONTEXT], t.span, t.available) == (
        p.memory["context"],
        memory_range(p.memory, device),
        device.memory.value,
    )
