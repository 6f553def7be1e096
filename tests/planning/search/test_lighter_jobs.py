"""Lighter jobs for devices that are too small: each fits, and those of the fewest changes are first."""

from __future__ import annotations

from functools import cache

import pytest

from paceline import Cluster, Strategy, Workload, predict
from paceline.planning.search.lighter_jobs import AdjustableJob, lighter_jobs, with_lighter
from paceline.planning.search.nearest_fit import ADAPTERS, BITS, LOSS, NARROW, SHORTER, Fitting, nearest_fit
from paceline.prediction import ORDINARY
from paceline.workload.builders.adapters.lora import parse_lora
from paceline.workload.builders.transformer import llama

BOARD = Cluster.named("1 RTX 3090")
FEW_LAYERS = {
    "13b of 4 layers": llama(layers=4, hidden=16384, heads=128, kv_heads=128, ffn=43008, vocabulary=32000),
    "8b of 4 layers": llama(layers=4, hidden=11264, heads=88, kv_heads=22, ffn=38912, vocabulary=128256),
}
"""Networks with the weights of llama-2-13b and llama-3-8b in a tenth of the layers, for everyday tests."""


@cache
def network(name: str, tokens: int, lora: str) -> Workload:
    if name not in FEW_LAYERS:
        return Workload.named(name, tokens, lora=lora)
    plain = Workload.from_shape(FEW_LAYERS[name], tokens, name=name)
    return plain.with_lora(lora) if lora else plain


def job(name: str, lora: str, tokens: int) -> AdjustableJob:
    def made(text: str, length: int) -> Workload:
        return network(name, length or tokens, text)

    return AdjustableJob(made, parse_lora(lora) if lora else None, tokens)


def lighter(name: str, lora: str, tokens: int, on: Cluster = BOARD) -> tuple[Fitting, ...]:
    strategy = Strategy.of(world_size=on.world_size, global_batch_size=on.world_size, precision="bf16")
    found = lighter_jobs(job(name, lora, tokens), on, strategy)
    for fit in found:  # each is what a user gets who types it
        step = predict(network(name, fit.tokens or tokens, fit.lora or lora), on, fit.strategy)
        assert step.fit == "fits" and step.memory_bytes == fit.prediction.memory_bytes and fit.cluster == on
    return found


def test_weights_in_four_bits_come_first() -> None:
    first, *others = lighter("13b of 4 layers", "r=16", 1024)
    assert first.kinds == (BITS,) and not first.tokens and parse_lora(first.lora).double
    assert not any(SHORTER in fit.kinds for fit in others)  # 26 GB of weights fit at no length


@pytest.mark.long
def test_one_change_is_enough_where_one_is() -> None:
    assert all(len(fit.kinds) == 1 for fit in lighter("llama-3-8b", "r=16", 16384))
    assert {SHORTER} in [set(fit.kinds) for fit in lighter("llama-3-8b", "qlora", 16384)]


@pytest.mark.long
def test_several_changes_together_where_none_alone_is_enough() -> None:
    found = lighter("llama-3-8b", "r=16", 8192, Cluster.named("1 RTX 3060"))
    assert found and (BITS, SHORTER) in [fit.kinds for fit in found]
    assert all(len(fit.kinds) == 2 for fit in found)


def test_a_network_that_is_trained_whole_may_have_adapters() -> None:
    found = lighter("8b of 4 layers", "", 2048)
    assert [fit for fit in found if ADAPTERS in fit.kinds] and all(ADAPTERS in fit.kinds or not fit.lora for fit in found)


def test_a_network_that_is_trained_whole_may_store_bf16_weights_alone() -> None:
    """torchtune fine-tunes 7B whole on one board of 24 GB so, and 8B (18.9 GiB without the paged state)."""
    (narrow,) = (fit for fit in lighter("llama-2-7b", "", 512) if NARROW in fit.kinds)
    assert narrow.kinds == (NARROW,) and not narrow.job
    assert narrow.strategy.weight_update.in_backward and narrow.strategy.optimizer == "paged_adamw_8bit"
    assert not [fit for fit in lighter("13b of 4 layers", "r=16", 512) if NARROW in fit.kinds]  # adapters have little state


def test_experts_with_adapters_stay_in_sixteen_bits() -> None:
    assert not any(BITS in fit.kinds for fit in lighter("mixtral-8x7b", "r=8,targets=experts", 512))


@pytest.mark.parametrize(("lora", "first"), [("r=16", (BITS,)), ("r=16,bits=4,double=yes", (SHORTER,))])
def test_they_come_before_other_devices(lora: str, first: tuple[str, ...]) -> None:
    tokens = 1024 if first == (BITS,) else 32768
    name, strategy = "13b of 4 layers", Strategy.of(global_batch_size=1, precision="bf16")
    found = nearest_fit(network(name, tokens, lora), BOARD, strategy)
    every = with_lighter(found, job(name, lora, tokens), BOARD, strategy, ORDINARY)
    assert every[0].kinds == first and every[-len(found) :] == found
    assert " ".join(every[0].job) in str(every[0])


def test_a_strategy_that_fits_is_lighter_than_another_job() -> None:
    network, strategy = Workload.named("gpt2-xl", 1024, lora="r=16"), Strategy.of(global_batch_size=64, precision="bf16")
    found = nearest_fit(network, BOARD, strategy)
    assert found and with_lighter(found, job("gpt2-xl", "r=16", 1024), BOARD, strategy, ORDINARY) == found


@pytest.mark.long
def test_four_bits_and_offload_are_named_where_they_are_much_faster() -> None:
    on = Cluster.named("2 RTX 4090")
    alone, both = lighter("llama-3-70b", "r=16", 512, on)
    assert alone.kinds == ("offload",) and both.kinds == (BITS, "offload")
    assert both.prediction.samples_per_s > 1.5 * alone.prediction.samples_per_s
    strategy = Strategy.of(world_size=2, global_batch_size=2, precision="bf16")
    found = nearest_fit(Workload.named("llama-3-70b", 512, lora="r=16"), on, strategy)
    every = with_lighter(found, job("llama-3-70b", "r=16", 512), on, strategy, ORDINARY)
    assert "offload" in every[0].kinds and every[1].kinds == both.kinds and every[-1].cluster != on


def test_the_loss_in_parts_saves_the_logits_of_long_sequences() -> None:
    found = lighter("llama-3-8b", "qlora", 16384)
    first = next(fit for fit in found if fit.kinds == (LOSS,))
    assert first.strategy.choice("loss") == "chunked" and not first.lora and not first.tokens
