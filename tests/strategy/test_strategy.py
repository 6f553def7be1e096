"""A strategy refuses what cannot be run, and names the nearest thing that can."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import PRECISIONS
from paceline.hardware.precision import ALIASES as PRECISION_ALIASES
from paceline.names import fold, look_up
from paceline.strategy import COMPRESSIONS, SHARDINGS, GradientExchange, Strategy
from paceline.strategy.sharding import ALIASES as SHARDING_ALIASES
from paceline.workload import Workload
from wrong_types import wrong_types


@each_row(
    ("choice", "words"),
    [
        ({"compression": "terngard"}, ("unknown compression 'terngard'", "did you mean terngrad?")),
        ({"exchange": "alreduce"}, ("unknown exchange", "did you mean allreduce?")),
        ({"compression": "powersgd", "exchange": "ring"}, ("cannot carry powersgd", "legal for powersgd: allreduce")),
        ({"compression": "int8", "options": {"blok": 64}}, ("unknown option of int8 'blok'", "did you mean block?")),
        ({"compression": "int8", "options": {"block": 65}}, ("block 65 of int8", "a power of two from 64 to 65536")),
        ({"compression": "topk", "options": {"density": 0}}, ("density 0 of topk", "from 0.0001 to 1 (default 0.01)")),
        ({"compression": "topk", "options": {"density": float("nan")}}, ("density nan of topk", "a number")),
        ({"compression": "powersgd", "options": {"rank": 1.5}}, ("rank 1.5 of powersgd", "a whole number")),
        ({"compression": "bf16", "options": {"rank": 2}}, ("bf16 takes no option", "leave it out")),
        ({"exchange": "hierarchical", "ranks_per_node": 3}, ("4 workers", "nodes of 3 ranks", "3 or 6 workers")),
        ({"exchange": "hierarchical", "ranks_per_node": 0}, ("0 ranks a node", "from 1 up")),
        ({"exchange": "ring", "compress_pull": False}, ("'ring' has no pull", "sharded, parameter_server, hierarchical")),
        ({"servers": 2}, ("exchange 'allreduce' has no 2 servers", "name exchange parameter_server")),
        ({"exchange": "parameter_server", "servers": 0}, ("0 servers", "from 1 up")),
        ({"exchange": "parameter_server", "servers": 5}, ("5 servers among 4 workers", "at most 4 servers")),
        (
            {"exchange": "parameter_server", "servers": 3, "sharding": "zero3", "shard_devices": 2},
            ("3 servers among 2 copies of each share", "at most 2 servers"),
        ),
        ({"exchange": "ring", "ranks_per_node": 2}, ("'ring' has no nodes of 2 ranks", "name exchange hierarchical")),
        ({"sharding": "zero3", "shard_devices": 1}, ("4 copies", "groups of one rank")),
        (
            {"sharding": "zero2", "precision": "bf16", "gather_bits": 32},
            ("gather_bits=32", "16, as bf16", "leave gather_bits out"),
        ),
        ({"optimizer": "adamm"}, ("unknown optimizer", "did you mean adam?")),
        ({"precision": "float33"}, ("unknown precision", "legal: fp32, tf32, bf16, fp16")),
        ({"compression": "terngrad", "exchange": "allreduce"}, ("cannot carry terngrad", "sharded, parameter_server, ring")),
        ({"global_batch_size": 10}, ("does not divide among 4 workers", "nearest legal: 8 or 12")),
        ({"global_batch_size": 3}, ("global batch 3", "nearest legal: 4")),
        ({"world_size": 0}, ("0 workers", "from 1 up")),
        ({"bucket_bytes": 0}, ("0 bytes in a bucket", "from 1 up")),
        ({"grad_accum_steps": 0}, ("0 micro steps", "from 1 up")),
        ({"grad_accum_steps": 3}, ("4 workers in 3 micro steps", "nearest legal: 60 or 72")),
        ({"sharding": "zero"}, ("unknown sharding 'zero'", "legal: ddp, zero1, zero2, zero3")),
        ({"sharding": "zero3", "compression": "powersgd"}, ("powersgd works on whole matrices", "or sharding ddp")),
        ({"sharding": "zero3", "exchange": "allgather"}, ("'allgather' has no reduce-scatter", "allreduce, sharded, ring")),
    ],
)
def test_what_cannot_be_run_is_refused(choice, words):
    with pytest.raises(UserError) as caught:
        Strategy.of(**{"world_size": 4, "global_batch_size": 64, **choice})
    assert all(word in str(caught.value) for word in words), caught.value


def test_defaults():
    assert Strategy.of(world_size=4, global_batch_size=64).gradient_exchange.exchange.name == "allreduce"
    plan = Strategy.of(world_size=4, global_batch_size=64, compression="terngrad")
    assert plan.gradient_exchange.exchange.name == "sharded"
    assert plan.micro_batch_size == 16
    assert Strategy.of(**plan.to_json()) == plan


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_choice_survives_json_and_is_hashable(compression):
    options = {o.name: o.default for o in COMPRESSIONS[compression].options}
    plan = Strategy.of(world_size=4, global_batch_size=64, compression=compression, options=options)
    again = Strategy.of(**json.loads(json.dumps(plan.to_json())))
    assert again == plan and len({again, plan}) == 1
    dense = plan.uncompressed().gradient_exchange
    assert (dense.compression.name, dense.exchange) == ("dense", plan.gradient_exchange.exchange)


def test_options_reach_the_description():
    plan = Strategy.of(world_size=4, global_batch_size=64, compression="topk", options={"density": 0.1})
    assert plan.description.option("density") == 0.1
    assert Strategy.of(world_size=4, global_batch_size=64, compression="topk").description.option("density") == 0.01


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_one_worker_sends_nothing(compression):
    net = Workload.named("lenet5")
    plan = Strategy.of(world_size=1, global_batch_size=64, compression=compression)
    assert plan.wire_bytes_per_device(net.parameters, net.ready_order) == 0


def test_wire_bytes_of_a_ring_are_those_of_the_formula():
    net = Workload.named("lenet5")
    plan = Strategy.of(world_size=4, global_batch_size=64)
    exact = 2 * 3 / 4 * 4 * net.num_parameters
    sent = plan.wire_bytes_per_device(net.parameters, net.ready_order)
    assert exact <= sent < exact + len(plan.exchange_phases(net.parameters, net.ready_order))


def test_terngrad_sends_less_and_the_parameter_server_most():
    net = Workload.named("alexnet")

    def sent(**choice: str) -> int:
        return Strategy.of(world_size=8, global_batch_size=64, **choice).wire_bytes_per_device(net.parameters, net.ready_order)

    assert sent(compression="terngrad") < sent(compression="bf16") < sent()
    assert sent(exchange="parameter_server") > 3 * sent(exchange="sharded")


def test_micro_steps_divide_the_batch():
    plan = Strategy.of(world_size=4, global_batch_size=64, grad_accum_steps=8)
    assert plan.micro_batch_size == 2 and plan.exchanges_per_step == 1
    assert Strategy.of(world_size=4, global_batch_size=64, grad_accum_steps=8, sharding="zero2").exchanges_per_step == 8


WRONG: list[tuple[str, tuple[type, ...], str]] = [
    ("global_batch_size", (int,), facts("global batch", "whole number", "1")),
    ("parallelism", (), "parallelism=.*; give a paceline.Parallelism"),
    ("precision", (str,), facts("precision", "a name", "was given", "fp32", "tf32", "bf16", "fp16")),
    ("gradient_exchange", (str,), "gradient_exchange=.*; give a paceline.GradientExchange"),
    ("optimizer", (str,), facts("optimizer", "a name", "was given", "sgd")),
    ("first_bucket_bytes", (int,), facts("bytes", "first bucket", "whole number", "1")),
    ("bucket_bytes", (int,), facts("bytes", "bucket", "whole number", "1")),
]


def test_a_value_of_the_wrong_type_is_the_users_mistake():
    for name, legal, words in WRONG:
        for value in (10**5000, *wrong_types(*legal)):
            with pytest.raises(UserError, match=words):
                Strategy(**{"global_batch_size": 64, name: value})
            if name not in ("parallelism", "gradient_exchange"):
                with pytest.raises(UserError, match=words):
                    Strategy.of(**{"world_size": 4, "global_batch_size": 64, name: value})


def test_every_choice_can_be_read_by_its_name():
    plan = Strategy.of(world_size=4, global_batch_size=64, compression="topk", options={"density": 0.5}, sharding="ddp")
    as_json = plan.to_json()
    plain = {name: plan.choice(name) for name in as_json}
    assert {**plain, "options": {"density": 0.5}, "dense_rule": as_json["dense_rule"]} == as_json
    with pytest.raises(UserError, match="unknown choice of a strategy 'bach'"):
        plan.choice("bach")
    with pytest.raises(UserError, match=facts("strategy", "'compresion'", "did you mean compression")):
        plan.changed(compresion="int8")
    with pytest.raises(UserError, match="has no global batch; give global_batch_size"):
        Strategy.of(world_size=4)


@each_row(
    ("choices", "meant"),
    [
        ({"sharding": "fsdp"}, {"sharding": "zero3"}),
        ({"sharding": "FSDP2"}, {"sharding": "zero3"}),
        ({"sharding": "zero-3"}, {"sharding": "zero3"}),
        ({"sharding": "deepspeed zero 2"}, {"sharding": "zero2"}),
        ({"sharding": "DeepSpeed ZeRO-1"}, {"sharding": "zero1"}),
        ({"sharding": "SHARD_GRAD_OP"}, {"sharding": "zero2"}),
        ({"sharding": "none"}, {"sharding": "ddp"}),
        ({"precision": "amp"}, {"precision": "bf16"}),
        ({"precision": "mixed"}, {"precision": "bf16"}),
        ({"precision": "half"}, {"precision": "fp16"}),
        ({"precision": "Float16"}, {"precision": "fp16"}),
        ({"precision": "bfloat16"}, {"precision": "bf16"}),
        ({"precision": "BF16-mixed"}, {"precision": "bf16"}),
        ({"precision": "FP8 current"}, {"precision": "fp8-current"}),
        ({"optimizer": "AdamW"}, {"optimizer": "adamw"}),
        ({"compression": "TernGrad"}, {"compression": "terngrad"}),
        ({"compression": "none"}, {"compression": "dense"}),
        ({"exchange": "all-reduce"}, {"exchange": "allreduce"}),
    ],
)
def test_names_forgive(choices: dict[str, str], meant: dict[str, str]) -> None:
    assert Strategy.of(world_size=8, global_batch_size=64, **choices) == Strategy.of(
        world_size=8, global_batch_size=64, **meant
    )


@pytest.mark.parametrize(("legal", "aliases"), [(SHARDINGS, SHARDING_ALIASES), (PRECISIONS, PRECISION_ALIASES)])
def test_no_alias_means_two_things(legal: Collection[str], aliases: Mapping[str, str]) -> None:
    assert set(aliases.values()) <= set(legal)
    folded = [fold(name) for name in (*legal, *aliases)]
    assert len(folded) == len(set(folded))
    for name in (*legal, *aliases):
        assert look_up(name.upper().replace(" ", "_"), legal, aliases) == aliases.get(name, name)


MESHES: dict[str, dict[str, Any]] = {
    "ddp": {"sharding": "ddp"},
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "hsdp": {"sharding": "zero3", "shard_devices": 2},
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("compression", [name for name in COMPRESSIONS if name != "powersgd"])
def test_the_usual_exchange_is_one_however_a_strategy_is_made(compression: str, mesh: str) -> None:
    division, base = MESHES[mesh], {"world_size": 4, "global_batch_size": 8}
    made = Strategy.of(**base, compression=compression, **division)
    usual = "sharded" if compression == "topk" and mesh in ("zero2", "zero3") else GradientExchange(compression).exchange
    assert made.gradient_exchange == GradientExchange(compression, usual)
    assert Strategy(global_batch_size=8, parallelism=made.parallelism, gradient_exchange=compression) == made  # type: ignore[arg-type]
    assert Strategy.of(**base, compression=compression, exchange="", **division) == made
    for other in MESHES.values():
        before = Strategy.of(**base, compression=compression, **other)
        assert before.changed(sharding="ddp", shard_devices=0).changed(**division) == made
        assert Strategy.of(**base, **other).changed(**{"shard_devices": 0, **division}, compression=compression) == made


def test_an_exchange_that_was_named_stays_with_another_sharding() -> None:
    named = Strategy.of(world_size=4, global_batch_size=8, compression="topk", exchange="ring")
    assert named.changed(sharding="zero2").gradient_exchange.exchange.name == "ring"
    with pytest.raises(UserError, match="'allgather' has no reduce-scatter"):
        named.changed(sharding="zero2", exchange="allgather")
    halves = Strategy.of(world_size=4, global_batch_size=8, compression="topk", sharding="zero3", shard_devices=2)
    assert halves.gradient_exchange.exchange.name == "allgather"  # between the copies
    assert halves.changed(world_size=2).gradient_exchange.exchange.name == "sharded"


def test_the_simpler_strategy_divides_less_and_an_optimizer_shared_out_next_to_a_pipeline_is_usual() -> None:
    common = {"world_size": 256, "global_batch_size": 512, "precision": "bf16"}
    order = [
        Strategy.of(**common, **more)  # type: ignore[arg-type]
        for more in (
            {"sharding": "zero3", "recompute": "full"},
            {"tensor": 8, "pipeline": 4, "sharding": "zero1", "grad_accum_steps": 8},
            {"tensor": 8, "pipeline": 4, "sharding": "zero1", "grad_accum_steps": 16},
            {"tensor": 8, "pipeline": 4, "sharding": "zero3", "grad_accum_steps": 8},
            {"tensor": 8, "pipeline": 16, "grad_accum_steps": 64},
            {"tensor": 2, "context": 2, "pipeline": 2, "grad_accum_steps": 8},
        )
    ]
    ranks = [strategy.simplicity for strategy in order]
    assert ranks == sorted(set(ranks))
    assert order[1].detours == order[1].changed(sharding="ddp").detours
    alone = [Strategy.of(**common, sharding=name).detours for name in ("zero1", "ddp")]  # type: ignore[arg-type]
    assert alone[0] == alone[1] + 1, "without tensor groups or a pipeline it is a choice"
