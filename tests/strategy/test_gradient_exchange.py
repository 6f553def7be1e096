"""How gradients travel, as one value: what it fills in, what it refuses, how it is written down."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from facts import facts
from paceline.errors import UserError
from paceline.strategy import COMPRESSIONS, EXCHANGES, DenseRule, GradientExchange, Option, Strategy
from strategy_toys import exchanges_of
from wrong_types import wrong_types


def values_of(option: Option) -> st.SearchStrategy[float]:
    """Legal values of an option."""
    values: list[float] = [2**k for k in range(-20, 20)] if option.power else [option.least, option.default, option.most]
    return st.sampled_from([value for value in values if option.least <= value <= option.most])


@st.composite
def exchanges(draw: st.DrawFn) -> GradientExchange:
    """Any legal exchange of gradients, with each field at its default or at another value."""
    described = COMPRESSIONS[draw(st.sampled_from(list(COMPRESSIONS)))]
    exchange = draw(st.sampled_from(exchanges_of(described)))
    options = {o.name: draw(values_of(o)) for o in described.options if draw(st.booleans())}
    rule = st.builds(DenseRule, min_elements=st.integers(0, 9999), last_layer=st.booleans(), names=st.tuples(st.just("*.emb")))
    return GradientExchange(
        described.name,
        exchange,
        options=options,
        clip=draw(st.none() | st.floats(1e-3, 1e6)) if described.name == "terngrad" else oracle.CLIP,
        dense_rule=draw(st.none() | rule) if described.rule else None,
        compress_pull=draw(st.booleans()) if EXCHANGES[exchange].has_pull else True,
        servers=draw(st.integers(1, 9)) if exchange == "parameter_server" else 1,
        ranks_per_node=draw(st.integers(1, 9)) if exchange == "hierarchical" else 1,
    )


@given(exchanges())
def test_json_there_and_back_is_the_same_value(exchange: GradientExchange) -> None:
    again = GradientExchange.from_json(json.loads(json.dumps(exchange.to_json())))
    assert again == exchange and hash(again) == hash(exchange) and repr(again) == repr(exchange)


@given(exchanges(), st.integers(0, 63))
def test_a_strategy_with_it_is_written_flat_and_read_back(exchange: GradientExchange, batch: int) -> None:
    workers = 72 * exchange.ranks_per_node
    strategy = Strategy.of(**exchange.to_json(), world_size=workers, global_batch_size=workers * (1 + batch))
    assert strategy.gradient_exchange == exchange
    flat = json.loads(json.dumps(strategy.to_json()))
    assert not {"parallelism", "gradient_exchange"} & set(flat)
    assert Strategy.from_json(**flat) == strategy
    assert {name: strategy.choice(name) for name in ("compression", "exchange", "clip", "world_size")} == {
        "compression": exchange.compression.name,
        "exchange": exchange.exchange.name,
        "clip": exchange.clip,
        "world_size": workers,
    }


def test_what_earlier_versions_wrote_without_clip_and_rule_is_read() -> None:
    old = {
        "world_size": 4,
        "global_batch_size": 64,
        "grad_accum_steps": 1,
        "precision": "fp32",
        "compression": "terngrad",
        "exchange": "ring",
        "optimizer": "sgd",
        "options": {},
        "sharding": "ddp",
        "recompute": "none",
        "recompute_layers": 0,
        "shard_devices": 0,
        "offload": "none",
        "first_stage_layers": 0,
        "last_stage_layers": 0,
    }
    strategy = Strategy.of(**old)
    assert strategy.choice("clip") == oracle.CLIP and strategy.choice("dense_rule") == COMPRESSIONS["terngrad"].rule
    assert GradientExchange.from_json({"compression": "int8"}) == GradientExchange("int8")


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_what_is_left_out_follows_from_the_compression(name: str) -> None:
    exchange = GradientExchange(name)
    assert exchange.exchange.name == exchanges_of(COMPRESSIONS[name])[0]
    assert exchange.dense_rule == COMPRESSIONS[name].rule
    assert exchange.clip == (oracle.CLIP if name == "terngrad" else None)
    assert exchange.description == COMPRESSIONS[name]
    assert str(exchange) == f"{name} over {exchange.exchange}"


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_uncompressed_keeps_the_exchange_and_nothing_of_the_codec(name: str) -> None:
    dense = GradientExchange(name).uncompressed()
    assert (dense.compression.name, dense.exchange) == ("dense", GradientExchange(name).exchange)
    assert (dense.options, dense.clip, dense.dense_rule) == ((), None, None)
    if "hierarchical" in exchanges_of(COMPRESSIONS[name]):
        assert GradientExchange(name, "hierarchical", ranks_per_node=2).uncompressed().ranks_per_node == 2


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"compression": "terngard"}, "unknown compression 'terngard'.*did you mean terngrad"),
    ({"exchange": "alreduce"}, "unknown exchange 'alreduce'.*did you mean allreduce"),
    ({"compression": "terngrad", "exchange": "allreduce"}, facts("packed codes", "terngrad", "sharded")),
    ({"compression": "powersgd", "exchange": "ring"}, "its factors are all-reduced; legal for powersgd: allreduce"),
    ({"compression": "int8", "options": {"blok": 64}}, "unknown option of int8 'blok'.*did you mean block"),
    ({"options": {"block": 64}}, facts("dense", "no option", "'block'")),
    ({"compression": "int8", "options": {"block": 96}}, facts("block 96", "int8", "power of two", "64", "65536")),
    ({"compression": "topk", "options": {"density": 2.0}}, facts("density 2", "topk", "0.0001", "1")),
    ({"compression": "topk", "options": {"density": 0.25, "warmup_steps": 3}}, "which density 0.25 is not below; leave"),
    ({"compression": "int8", "clip": 3.0}, "int8 does not clip; leave clip out"),
    ({"compression": "terngrad", "clip": 0.0}, facts("clip=0.0", "standard deviations", "1e-3", "1e6", "None")),
    ({"compression": "terngrad", "clip": float("inf")}, "clip=inf; give standard deviations"),
    ({"dense_rule": DenseRule()}, facts("dense", "min_elements", "dense_rule")),
    ({"servers": 0}, "0 servers; give a whole number from 1 "),
    ({"servers": 2}, "'allreduce' has no 2 servers; name exchange parameter_server"),
    ({"ranks_per_node": 0}, facts("0 ranks a node", "whole number", "1")),
    ({"exchange": "ring", "compress_pull": False}, facts("'ring'", "no pull", "fp32", "sharded", "parameter_server")),
]


def test_every_refusal_says_what_is_legal() -> None:
    for choice, words in REFUSED:
        with pytest.raises(UserError, match=words):
            GradientExchange(**choice)
        with pytest.raises(UserError, match=words):
            Strategy.of(global_batch_size=8, **choice)


NUMBER = (int, float)
WRONG: list[tuple[str, dict[str, Any], tuple[type, ...], str]] = [
    ("compression", {}, (str,), "the compression is a name, .* was given; "),
    ("exchange", {}, (str,), facts("exchange", "a name", "was given", "allreduce")),
    ("options", {"compression": "int8"}, (dict,), r"options of int8.*; write \{'block': 1024\}"),
    ("options", {}, (dict,), r"options of dense.*; leave them out"),
    ("clip", {"compression": "terngrad"}, (*NUMBER, type(None)), facts("clip=", "standard deviations", "1e-3", "1e6", "None")),
    ("clip", {}, (type(None),), "dense does not clip; leave clip out"),
    ("dense_rule", {"compression": "int8"}, (type(None), dict), "dense_rule=.*; give a paceline.strategy.DenseRule"),
    ("compress_pull", {"exchange": "sharded"}, (), "compress_pull=.*; give True or False"),
    ("servers", {"exchange": "parameter_server"}, (int,), "servers; give a whole number from 1 "),
    ("ranks_per_node", {"exchange": "hierarchical"}, (int,), facts("ranks a node", "whole number", "1")),
]


def test_a_value_of_the_wrong_type_is_the_users_mistake() -> None:
    for name, others, legal, words in WRONG:
        for value in (10**5000, *wrong_types(*legal)):
            with pytest.raises(UserError, match=words):
                GradientExchange(**{**others, name: value})
            with pytest.raises(UserError, match=words):
                Strategy.of(global_batch_size=8, **{**others, name: value})


def test_options_are_pairs_of_a_name_and_a_number() -> None:
    for options in ([("block",)], [("block", 64, 3)], [[]], {3: 64}, [(["block"], 64)]):
        with pytest.raises(UserError, match="int8"):
            GradientExchange("int8", options=options)  # type: ignore[arg-type]
    for value in (True, *wrong_types(int)):
        with pytest.raises(UserError, match=facts("block", "int8", "power of two", "64", "65536")):
            GradientExchange("int8", options={"block": value})
    assert GradientExchange("int8", options=[("block", 64)]) == GradientExchange("int8", options={"block": 64})


def test_the_fields_of_a_rule_have_their_types() -> None:
    for field, legal, words in (
        ("min_elements", (int,), facts("min_elements", "whole number", "0")),
        ("last_layer", (), "last_layer=.*; give True or False"),
        ("names", (list, tuple), "names=.*; give patterns such as"),
    ):
        for value in wrong_types(*legal):
            with pytest.raises(UserError, match=words):
                DenseRule(**{field: value})
    for names in ([1], (1,), [["a"]]):
        with pytest.raises(UserError, match=r"names=.*; give patterns such as"):
            DenseRule(names=names)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="-1 elements as min_elements"):
        DenseRule(min_elements=-1)


def test_a_rule_that_is_read_has_its_own_fields_only() -> None:
    for rule in ({"least": 3}, {"min_elements": "many"}, {"names": 3}, {3: 4}):
        with pytest.raises(UserError, match=r"least|min_elements|names"):
            GradientExchange.from_json({"compression": "int8", "dense_rule": rule})


def test_numbers_may_be_numpys_and_are_kept_as_plain_ones() -> None:
    """A checkpoint or a record with a NumPy number in it could not be read back."""
    exchange = GradientExchange(
        "terngrad",
        "parameter_server",
        clip=np.float32(3),  # type: ignore[arg-type]
        dense_rule=DenseRule(min_elements=np.int64(7)),  # type: ignore[arg-type]
        servers=np.int64(2),  # type: ignore[arg-type]
    )
    assert json.loads(json.dumps(exchange.to_json())) == {**exchange.to_json()}
    assert type(exchange.clip) is float and type(exchange.servers) is int
    topk = GradientExchange("topk", options={"density": np.float32(0.25), "value_bits": np.int64(16)})
    assert [(name, type(value)) for name, value in topk.options] == [("density", float), ("value_bits", int)]


def test_an_unknown_choice_names_the_nearest() -> None:
    with pytest.raises(UserError, match=facts("gradient exchange", "'compresion'", "did you mean compression")):
        GradientExchange.from_json({"compresion": "int8"})
    for data in wrong_types(dict):
        with pytest.raises(UserError, match="a gradient exchange is written as a dict of its choices"):
            GradientExchange.from_json(data)


def test_another_compression_comes_with_its_own_choices() -> None:
    before = Strategy.of(
        global_batch_size=64,
        world_size=4,
        compression="terngrad",
        exchange="parameter_server",
        servers=2,
        compress_pull=False,
        clip=4.0,
        dense_rule=DenseRule(min_elements=7),
        precision="bf16",
    )
    after = before.changed(compression="int8")
    assert after.gradient_exchange == GradientExchange("int8")
    assert after.precision == "bf16" and after.world_size == 4
    kept = before.changed(compression="int8", exchange="parameter_server")
    assert kept.gradient_exchange == GradientExchange("int8", "parameter_server", servers=2, compress_pull=False)
    options = Strategy.of(global_batch_size=64, compression="topk", options={"density": 0.5})
    assert options.changed(compression="int8").choice("options") == ()
    assert options.changed(compression="topk") == options.changed() == options
    assert before.changed(clip=5.0).gradient_exchange.servers == 2
    named = before.changed(compression="int8", options={"block": 64}, dense_rule=None)
    assert named.gradient_exchange == GradientExchange("int8", options={"block": 64})


def test_another_exchange_has_no_nodes_of_the_one_before() -> None:
    nodes = Strategy.of(global_batch_size=64, world_size=4, compression="terngrad", exchange="hierarchical", ranks_per_node=2)
    assert nodes.changed(exchange="ring").gradient_exchange == GradientExchange("terngrad", "ring")
    assert nodes.changed(compression="int8").gradient_exchange == GradientExchange("int8")
    kept = nodes.changed(compression="int8", exchange="hierarchical")
    assert kept.gradient_exchange == GradientExchange("int8", "hierarchical", ranks_per_node=2)


@given(exchanges())
def test_an_exchange_of_the_compression_is_a_known_one(exchange: GradientExchange) -> None:
    assert exchange.exchange is EXCHANGES[exchange.exchange.name] and exchange.exchange.name in exchanges_of(
        exchange.description
    )
    assert exchange.description.rule == exchange.dense_rule


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy], ids=["pickle", "copy"])
def test_it_can_be_sent_after_it_has_been_described(again):
    exchange = GradientExchange("int8", "ring", options={})
    described = exchange.description.name  # which is kept, and holds functions
    assert again(exchange) == exchange and again(exchange).description.name == described == "int8"
    strategy = Strategy(global_batch_size=8, gradient_exchange=exchange)
    assert again(strategy) == strategy
