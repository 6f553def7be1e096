"""Compression ranks above dense where its gain is beyond the range and its accuracy was measured on such networks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from command import answer
from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, cluster
from paceline.planning import Goal, Plan, Space, TrainingTarget, plan
from paceline.planning.compare import compression_worth
from paceline.workload import Workload
from prediction_toys import PRICES, convolutional

LARGE = cluster("B200", 8, 16, "100Gb/s")
FEW = {"batches": (4096,), "precisions": ("bf16",), "shardings": ("ddp",), "recomputes": (False,), "accumulations": (1,)}


def of_gpt2(**choices: object) -> Plan:
    space = Space(clusters=(LARGE,), **{**FEW, **choices})  # type: ignore[arg-type]
    return plan(Workload.named("gpt2-xl"), space, Goal("fastest"))


def test_a_compression_that_was_measured_on_other_families_stands_beside() -> None:
    """TernGrad was measured on LeNet and a CIFAR network: it is no answer for a transformer, whatever it would gain."""
    answered = of_gpt2()
    shown = (*answered.ranking, *answered.by_devices, *answered.front)
    assert {choice.strategy.gradient_exchange.compression.name for choice in shown} == {"dense"}
    assert answered.compression.startswith("Not ranked, with its possible gain over dense: terngrad ")
    assert "not shown for transformer decoders (accuracy measured on cifar10-terngrad, lenet5)" in (answered.compression)
    assert any(x.reason.startswith("terngrad is not ranked: not shown") for x in answered.excluded)


def test_one_that_the_user_names_is_executed() -> None:
    for compressions in (("terngrad",), ("dense", "terngrad")):
        best = of_gpt2(compressions=compressions).best
        assert best.strategy.gradient_exchange.compression.name == "terngrad"
    known = TrainingTarget(penalties={"terngrad": 1.05})
    space = Space(clusters=(LARGE,), **FEW)  # type: ignore[arg-type]
    assert (
        plan(Workload.named("gpt2-xl"), space, Goal("fastest"), known).best.strategy.gradient_exchange.compression.name
        == "terngrad"
    )


def slow(space: Space, bandwidth: float) -> Space:
    def on(c: Cluster) -> Cluster:
        return c.changed(network=replace(c.network, bandwidth=replace(c.network.bandwidth, value=bandwidth)))

    return replace(space, compressions=(), clusters=tuple(map(on, space.clusters[1:3])))


def test_one_that_was_measured_ranks_first_only_beyond_the_range(
    toy: Workload, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = convolutional(toy)
    beyond = plan(network, slow(space, 1e6), Goal("fastest"))
    assert beyond.best.strategy.gradient_exchange.compression.name not in ("dense", "topk")
    assert beyond.compression.startswith("Compression pays: ")
    other = plan(toy, slow(space, 1e6), Goal("fastest"))
    assert (
        other.best.strategy.gradient_exchange.compression.name == "dense"
        and "not shown for networks of no" in other.compression
    )
    monkeypatch.setattr(compression_worth, "speedup_factor", lambda *_: 10.0)
    inside = plan(network, slow(space, 1e8), Goal("fastest"))
    assert inside.best.strategy.gradient_exchange.compression.name == "dense"
    assert "the range of the gain includes none" in inside.compression


def test_a_limit_that_only_a_compression_beside_meets_names_it(toy: Workload, space: Space) -> None:
    narrow = slow(space, 1e6)
    best = plan(toy, narrow, Goal("fastest"))
    named = plan(toy, replace(narrow, compressions=("terngrad",)), Goal("fastest")).best
    assert named.time_s < best.best.time_s / 2
    with pytest.raises(UserError, match=facts("name a compression", "terngrad")):
        plan(toy, narrow, Goal("deadline", named.time_s * 1.01), prices=PRICES)


def test_a_gain_that_is_none_is_told_so(toy: Workload, space: Space) -> None:
    fast = replace(space, compressions=(), clusters=space.clusters[:1])
    assert plan(toy, fast, Goal("fastest")).compression == "Compression was not tried."
    assert plan(toy, slow(space, 1e12), Goal("fastest")).compression.startswith("Compression does not pay")


@pytest.mark.long
def test_batches_stay_within_what_was_published(capsys: pytest.CaptureFixture[str]) -> None:
    many = "--device B200 --devices-per-node 8 --network 400Gb/s --max-nodes 16 --precision bf16 --sharding ddp"
    data = answer(capsys, f"plan gpt2-xl {many}")
    batches = {row["strategy"]["global_batch_size"] for row in (*data["ranking"], *data["by_devices"], *data["front"])}
    assert max(batches) == 4096 and "Batches stay within 4,096 samples unless one is named." in data["notice"]
    assert any("4,194,304 tokens, OLMo 1B" in sentence for sentence in data["assumptions"])
    named = answer(capsys, f"plan gpt2-xl {many} --global-batch 8192")
    assert named["best"]["strategy"]["global_batch_size"] == 8192
