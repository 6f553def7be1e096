"""What would fit: the least change of each kind, by closed forms of its memory, and that it does fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning import Fitting, Goal, Space, nearest_fit, plan
from paceline.planning.search.nearest_fit import ORDER, smaller_steps
from paceline.prediction import ORDINARY, predict
from paceline.prediction.step.memory import numbers_of, sample_bytes, usable_bytes
from paceline.strategy import Strategy
from paceline.strategy.frameworks.loss import PLAIN_LOSS
from paceline.workload import Workload

GIB = 2**30


def offers(name: str, machines: str, batch: int, tokens: int | None = None, **choices: Any) -> tuple[Fitting, ...]:
    cluster = Cluster.named(machines)
    strategy = Strategy.of(**{"world_size": cluster.world_size, "global_batch_size": batch, "precision": "bf16", **choices})
    return nearest_fit(Workload.named(name, tokens), cluster, strategy)


def test_nothing_is_offered_where_it_fits() -> None:
    assert offers("resnet-50", "A100", 8) == ()


def test_the_least_micro_steps_that_fit() -> None:
    """Memory = fixed + a sample's bytes x samples of a micro batch: nothing else needs to change for a network of 0.1 GB."""
    (offer,) = offers("resnet-50", "V100", 4096, precision="fp32")
    machines, net = Cluster.named("V100"), Workload.named("resnet-50")
    one, two = (Strategy.of(world_size=1, global_batch_size=n, optimizer="momentum") for n in (1, 2))
    each = sum(sample_bytes(net, numbers_of(one), loss=PLAIN_LOSS).values())
    needed = [predict(net, machines, s).memory_bytes for s in (one, two)]
    assert needed[1] - needed[0] == pytest.approx(each)
    most = (usable_bytes(machines.device) - needed[0] + each) // each
    steps = next(2**n for n in range(13) if 4096 / 2**n <= most)
    assert offer.kinds == ("micro steps",) and offer.strategy == one.changed(global_batch_size=4096, grad_accum_steps=steps)


def test_shards_before_layouts() -> None:
    """Llama-3 8B with Adam: 18 bytes a parameter and DDP's 4 are 164 GiB, shared by eight 15 GiB of weights, sums and state."""
    shards, layout, *_ = offers("llama-3-8b", "8 A100", 8, 6144)
    assert shards.kinds == ("sharding",) and shards.strategy.parallelism.sharding.name == "zero3"
    held = 8_030_261_248 / 8
    memory = shards.prediction.memory
    assert [memory[name] for name in ("weights", "gradients", "optimizer state")] == [4 * held, 4 * held, 8 * held]
    assert layout.kinds == ("layout",) and layout.strategy.parallelism.sharding.name == "ddp"
    assert layout.strategy.parallelism.model_devices > 1
    assert all(x.cluster == Cluster.named("8 A100") for x in (shards, layout))


def test_two_changes_where_one_is_too_few() -> None:
    first, *_ = offers("llama-3-8b", "8 A100", 512, 4096)
    assert first.kinds == ("micro steps", "sharding") and first.strategy.global_batch_size == 512
    alone = Strategy.of(world_size=8, global_batch_size=512, precision="bf16", sharding="zero3")
    assert predict(Workload.named("llama-3-8b", 4096), first.cluster, alone).fit == "does not fit"


def test_the_hosts_memory_then_more_devices_then_a_larger_one() -> None:
    host, more, larger = offers("llama-2-7b", "A100", 1, 2048)
    assert host.kinds[-1] == "offload" and host.cluster == Cluster.named("A100")
    assert more.kinds[-1] == "more devices" and more.cluster == Cluster.named("2 A100")
    assert larger.kinds[-1] == "larger device" and larger.cluster.device.name == "B200"


def test_as_many_of_the_smallest_device_that_holds_it_unchanged() -> None:
    *_, larger = offers("gpt2-xl", "8 V100", 64, precision="fp16")
    needed = predict(Workload.named("gpt2-xl"), larger.cluster, larger.strategy).memory_bytes
    assert larger.kinds == ("larger device",) and larger.cluster.device.name == "A100 PCIe 80GB"  # the cheapest of 80 GiB
    assert needed > usable_bytes(Cluster.named("L40S").device)  # the largest below it that is let


@pytest.mark.long
def test_nodes_come_with_a_network_of_their_own_or_a_stated_one() -> None:
    from paceline.hardware import network

    cluster = Cluster.named("8 A100")
    strategy = Strategy.of(world_size=8, global_batch_size=8, precision="bf16", compression="terngrad")
    for given_, meant in ((None, "Ethernet 100 Gb/s"), (network("InfiniBand HDR"), "InfiniBand HDR")):
        fitting = nearest_fit(Workload.named("llama-3-70b"), cluster, strategy.changed(compression="dense"), network=given_)
        (more,) = [x for x in fitting if "more devices" in x.kinds]
        assert more.cluster.num_nodes > 1 and more.cluster.network.name == meant
    first, *_ = nearest_fit(Workload.named("llama-3-70b"), cluster, strategy)  # compressed gradients may be shared out
    assert "dense all-reduce" not in first.kinds and first.strategy.gradient_exchange.compression.name == "terngrad"


def test_the_batch_grows_as_far_as_it_fits() -> None:
    cluster, net = Cluster.named("8 A100"), Workload.named("llama-3.2-3b")
    strategy = Strategy.of(world_size=8, global_batch_size=8, precision="bf16", optimizer="lamb", recompute="full")
    (small, *_), (grown, *_) = (nearest_fit(net, cluster, strategy, most_batches=most) for most in (1, 64))
    assert small.strategy.global_batch_size == 8 < grown.strategy.global_batch_size
    twice = grown.strategy.changed(global_batch_size=2 * grown.strategy.global_batch_size)
    assert predict(net, cluster, twice).fit != "fits"


@settings(max_examples=settings.default.max_examples // 10)
@given(
    name=st.sampled_from(["gpt2-xl", "llama-3.2-1b", "bert-large", "resnet-152"]),
    machines=st.sampled_from(["T4", "4 V100", "2x4 T4", "1+3 T4", "RTX 4090"]),
    each=st.sampled_from([1, 32, 1024]),
    choices=st.sampled_from([{}, {"sharding": "zero1"}, {"compression": "terngrad"}, {"grad_accum_steps": 2}, {"tensor": 1}]),
)
def test_whatever_is_offered_fits(name: str, machines: str, each: int, choices: dict[str, Any]) -> None:
    cluster = Cluster.named(machines, "25Gb/s" if machines[1] in "x+" else None)
    batch = each * cluster.world_size * choices.get("grad_accum_steps", 1)
    strategy = Strategy.of(world_size=cluster.world_size, global_batch_size=batch, precision="fp16", **choices)
    strategy = strategy if cluster.device.name != "RTX 4090" else strategy.changed(precision="bf16")
    net = Workload.named(name)
    for offer in nearest_fit(net, cluster, strategy):
        again = predict(net, offer.cluster, offer.strategy)
        assert again == offer.prediction and again.fit == "fits" and again.memory_bytes <= usable_bytes(offer.cluster.device)
        assert offer.strategy.precision == strategy.precision
        if not {"more devices", "layout"} & {*offer.kinds}:
            assert offer.strategy.global_batch_size == batch


def test_measurements_change_the_seconds_of_an_offer_but_not_what_is_offered() -> None:
    cluster, net = Cluster.named("4 V100"), Workload.named("gpt2-xl")
    strategy = Strategy.of(world_size=4, global_batch_size=16, precision="fp16")
    free = ORDINARY.without("compute")
    plain, faster = (nearest_fit(net, cluster, strategy, predictor=p) for p in (ORDINARY, free))
    assert [x.strategy for x in plain] == [x.strategy for x in faster] != []
    assert faster[0].prediction.step_time_s < plain[0].prediction.step_time_s


def test_smaller_steps_change_one_choice_and_need_less() -> None:
    cluster, net = Cluster.named("4 A100"), Workload.named("gpt2")
    strategy = Strategy.of(world_size=4, global_batch_size=32, precision="bf16", optimizer="adam")
    base = predict(net, cluster, strategy)
    found = smaller_steps(net, cluster, strategy, base)
    assert [own.kinds for own in found] and {kind for own in found for kind in own.kinds} <= {*ORDER}
    assert sorted(own.prediction.memory_bytes for own in found) == [own.prediction.memory_bytes for own in found]
    for own in found:
        before, after = strategy.to_json(), own.strategy.to_json()
        assert len({name for name in after if after[name] != before[name]}) == 1
        assert own.prediction == predict(net, cluster, own.strategy)
        assert own.prediction.memory_bytes <= 0.99 * base.memory_bytes
    (halved,) = [own for own in found if own.kinds == ("micro steps",)]
    assert halved.strategy.parallelism.micro_batches == 2
    least = strategy.changed(sharding="zero3", recompute="full", offload="weights+optimizer", global_batch_size=4)
    assert smaller_steps(net, cluster, least, predict(net, cluster, least)) == ()


def test_a_plan_in_which_nothing_fits_names_what_would() -> None:
    space = Space(clusters=(Cluster.named("8 T4"),), batches=(64,), shardings=("ddp",), tensors=(1,))
    with pytest.raises(UserError, match=facts("GiB are missing", "this fits: 8 T4, batch 64, fp16, zero2")) as nothing:
        plan(Workload.named("gpt2-xl"), space, Goal("fastest"))
    assert str(nothing.value).count("this fits") >= 1
