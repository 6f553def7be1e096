"""Update of the weights: legal combinations, names of other software, bytes moved, and kernels."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import Predictor, predict
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.strategy import Strategy
from paceline.strategy.frameworks import FRAMEWORKS, ORDINARY, TUNED
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.updates.weight_update import PLAIN_UPDATE, STORED, UPDATES, WeightUpdate, usual_update
from paceline.workload import Workload

BASE: dict[str, Any] = {"world_size": 1, "global_batch_size": 8, "optimizer": "adamw", "precision": "bf16"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"update": "foreach", "optimizer": "adamw_8bit"}, "give one of looped, in_backward"),
    ({"update": "looped", "optimizer": "lamb"}, "leave update out"),
    ({"update": "fused", "offload": "optimizer"}, "where the host updates"),
    ({"update": "in_backward", "grad_accum_steps": 2}, "2 micro steps"),
    ({"update": "in_backward", "world_size": 2}, "give sharding zero2 or zero3"),
    ({"update": "in_backward", "precision": "fp16"}, "overflows"),
    ({"update": "in_backward", "tensor": 2, "world_size": 2}, "hold together"),
    ({"stored_weights": "bf16", "precision": "fp32"}, "give precision bf16"),
    ({"stored_weights": "bf16_kahan", "sharding": "zero1"}, "which shares out fp32 weights"),
    ({"stored_weights": "bf16", "sharding": "zero3", "offload": "optimizer"}, "the host has fp32 weights"),
    ({"stored_weights": "bf16", "tensor": 2, "world_size": 2}, "hold together"),
    ({"stored_weights": "bf16", "compression": "int8", "world_size": 2}, "leave the compression out"),
    ({"state_bits": 16, "optimizer": "sgd"}, "give optimizer adam or adamw"),
    ({"state_bits": 16, "update": "foreach"}, "give update fused"),
    ({"state_bits": 12}, "give one of 0, 8, 16, 32"),
    ({"ema": True, "offload": "optimizer"}, "EMA of the weights with offload optimizer"),
    ({"optimizer": "muon", "sharding": "zero3", "tensor": 2, "world_size": 4}, "give zero1"),
    ({"optimizer": "adamw_8bit", "offload": "optimizer"}, "fp32 state"),
    ({"optimizer": "paged_adamw", "pipeline": 2, "world_size": 2}, "hold together"),
    ({"optimizer": "adafactor", "sharding": "distributed_optimizer"}, "Megatron-Core's distributed optimizer"),
]


@pytest.mark.parametrize(("choices", "said"), REFUSED, ids=str)
def test_a_combination_that_no_software_runs_is_refused(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Strategy.of(**{**BASE, **choices})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("adamw_torch_fused", "adamw"),
        ("adamw_bnb_8bit", "adamw_8bit"),
        ("AdamW8bit", "adamw_8bit"),
        ("paged_adamw_32bit", "paged_adamw"),
        ("PagedAdamW8bit", "paged_adamw_8bit"),
        ("lion_32bit", "lion"),
        ("Adafactor", "adafactor"),
    ],
)
def test_names_of_other_software_are_known(theirs: str, ours: str) -> None:
    assert Strategy.of(**{**BASE, "optimizer": theirs}).optimizer == ours


def test_an_update_is_written_only_where_it_is_not_usual() -> None:
    usual = Strategy.of(**BASE)
    assert usual.weight_update is PLAIN_UPDATE and not {"update", "stored_weights", "state_bits"} & usual.to_json().keys()
    for name, values in (("update", UPDATES), ("stored_weights", STORED), ("state_bits", (8, 16))):
        for value in values:
            strategy = usual.changed(**{name: value})
            assert strategy.to_json()[name] == value and Strategy.of(**strategy.to_json()) == strategy
            assert strategy.changed(**{name: 0 if name == "state_bits" else ""}) == usual


@pytest.mark.parametrize("level", ["ordinary", "tuned"])
def test_kernels_are_as_many_as_the_update_says(level: str) -> None:
    adamw = OPTIMIZERS["adamw"]
    looped, foreach, fused, within = (WeightUpdate(update=way).kernels(adamw, 100, FRAMEWORKS[level], 36) for way in UPDATES)
    assert looped == within == 800 and foreach == 24 and fused == 3
    assert PLAIN_UPDATE.kernels(adamw, 100, FRAMEWORKS[level], 36) == {"ordinary": 700, "tuned": 21}[level]
    assert PLAIN_UPDATE.kernels(OPTIMIZERS["adamw_8bit"], 100, FRAMEWORKS[level], 36) == 100


def test_a_fused_step_moves_least_and_narrow_state_less() -> None:
    adamw = OPTIMIZERS["adamw"]
    of = {way: WeightUpdate(update=way).moved_bytes(adamw, ORDINARY) for way in UPDATES}
    assert of["fused"] == 28 == PLAIN_UPDATE.moved_bytes(adamw, TUNED) and of["looped"] == of["foreach"] == 84
    assert WeightUpdate(update="fused", stored_weights="bf16").moved_bytes(adamw, TUNED) == 14
    assert WeightUpdate(stored_weights="bf16_kahan").moved_bytes(adamw, TUNED) == 18
    assert WeightUpdate(state_bits=16).moved_bytes(adamw, TUNED) == 20
    eight = OPTIMIZERS["adamw_8bit"]  # gradient, weights in and out, and two values in and out with a 256th of a scale each
    assert PLAIN_UPDATE.moved_bytes(eight, ORDINARY) == 12 + 4 * (1 + 4 / 256)


def test_an_open_update_is_the_frameworks_where_the_optimizer_has_it() -> None:
    """``hf-trainer`` takes PyTorch's fused AdamW; bitsandbytes has one kernel a tensor in any framework."""
    trainer, eight = FRAMEWORKS["hf-trainer"], OPTIMIZERS["adamw_8bit"]
    assert trainer.defaults["update"] == usual_update(OPTIMIZERS["adamw"], trainer) == "fused"
    assert usual_update(eight, trainer) == usual_update(eight, ORDINARY) == "looped"
    assert usual_update(OPTIMIZERS["adamw"], ORDINARY) == usual_update(OPTIMIZERS["lamb"], trainer) == ""
    assert WeightUpdate(update="foreach").way(OPTIMIZERS["adamw"], trainer) == "foreach"


def test_an_average_of_the_weights_is_one_fp32_copy_and_its_update() -> None:
    """diffusers, EMAModel: a copy of every trained tensor; a step reads the weight, and reads and writes the average."""
    network, usual = Workload.named("resnet-50"), Strategy.of(world_size=4, global_batch_size=64, optimizer="adam")
    plain, averaged = (predict(network, "4 A100", usual.changed(ema=value)) for value in (False, True))
    assert "EMA" not in plain.memory and averaged.memory["EMA"] == 4 * network.num_parameters
    assert averaged.memory_bytes - plain.memory_bytes == pytest.approx(averaged.memory["EMA"])
    least = 12 * network.num_parameters / 2.04e12  # at the memory's peak
    assert least < averaged.step_time_s - plain.step_time_s < 10e-3
    shared = predict(network, "4 A100", usual.changed(ema=True, sharding="zero3"))
    assert shared.memory["EMA"] == network.num_parameters
    assert not usual.changed(ema=True).to_json().keys() - usual.to_json().keys() - {"ema"} and "ema" not in usual.to_json()


def test_a_frameworks_update_stays_open_where_the_networks_optimizer_has_none() -> None:
    """RNN-T is trained with LAMB, which has one form."""
    network, cluster, trainer = Workload.named("rnnt"), Cluster.named("2 A100"), Predictor(framework="hf-trainer")
    usual = Strategy.of(world_size=2, global_batch_size=8)
    own, named = (trainer.step(network, cluster, usual.changed(optimizer=name)) for name in ("", "lamb"))
    assert own.step_time_s == named.step_time_s and "update" not in own.strategy
    assert trainer.many(network, [(cluster, usual)]).step_s[0] == pytest.approx(own.step_time_s)
