"""Every legal strategy is tried and every other counted with its reason."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from paceline.hardware import aggregation, cluster
from paceline.planning import Space, TrainingTarget
from paceline.planning.search.candidates import candidates
from paceline.planning.search.tally import Exclusions
from paceline.prediction.learning.convergence import accuracies
from paceline.strategy import COMPRESSIONS
from paceline.strategy.exchanges import OF_HOSTS
from paceline.workload import Workload
from strategy_toys import exchanges_of


def test_every_combination_is_predicted_or_has_its_reason(toy: Workload, space: Space) -> None:
    space = replace(
        space, batches=(250, 256), shardings=("ddp", "zero3"), precisions=("fp32", "bf16"), recomputes=(False, True)
    )
    left_out = Exclusions()
    pairs = candidates(space, TrainingTarget(), left_out)
    cut = {  # ways that a bucket's size changes: those that exist and exchange bucket by bucket
        (c, x, s)
        for c, x, s in product(space.compressions, space.exchanges, space.shardings)
        if x == "allreduce" and x in exchanges_of(COMPRESSIONS[c]) and (s == "ddp" or c in ("dense", "bf16"))
    }
    several = sum(c.world_size > 1 for c in space.clusters)
    ways = len(space.compressions) * len(space.exchanges) * len(space.shardings) * len(space.clusters)
    alike = prod(map(len, (space.batches, space.precisions, space.accumulations, space.recomputes)))
    distinct = (ways + several * len(cut) * (len(space.buckets) - 1)) * alike
    assert len(pairs) + sum(x.count for x in left_out.excluded()) == distinct
    assert len({(id(c), *s.to_json().items()).__repr__() for c, s in pairs}) == len(pairs)
    reasons = {x.reason for x in left_out.excluded()}
    assert {"toy has no bf16", "the exchange cannot carry the compression"} <= reasons
    assert any("does not divide" in reason for reason in reasons)


@pytest.mark.parametrize("most", [0.0, 0.5, 3.0, 100.0])
def test_a_compression_that_lost_accuracy_competes_only_when_it_is_named(most: float, toy: Workload, space: Space) -> None:
    free = replace(space, compressions=(), max_loss=most)
    left_out = Exclusions()
    pairs = candidates(free, TrainingTarget(), left_out)
    lossless = {c for c in COMPRESSIONS if c == "dense" or (accuracies(c) and min(a.points for a in accuracies(c)) >= -most)}
    assert {s.gradient_exchange.compression.name for _, s in pairs} == lossless
    out = {x.reason.partition(":")[0]: x for x in left_out.excluded() if x.reason.partition(":")[0] in COMPRESSIONS}
    assert set(out) == set(COMPRESSIONS) - lossless and all(x.count > 0 for x in out.values())
    assert all("lets it compete" in x.reason for x in out.values())
    assert all(("points on" in x.reason) == bool(accuracies(name)) for name, x in out.items())
    named = candidates(replace(free, compressions=("topk",)), TrainingTarget(), Exclusions())
    assert {s.gradient_exchange.compression.name for _, s in named} == {"topk"}


def test_candidates_are_legal_on_their_cluster(space: Space) -> None:
    several = replace(space, servers=(1, 4), exchanges=("allreduce", "parameter_server"), compressions=("dense",))
    pairs = candidates(several, TrainingTarget(), tally := Exclusions())
    assert all(strategy.world_size == machines.world_size for machines, strategy in pairs)
    assert {s.gradient_exchange.servers for c, s in pairs if c.world_size == 4} == {1, 4}
    assert {s.gradient_exchange.exchange.name for c, s in pairs if c.world_size == 1} == {"allreduce"}
    assert "4 servers need as many workers: a server is one of them" in {x.reason for x in tally.excluded()}


def test_candidates_hold_the_network_whole(space: Space) -> None:
    assert space.whole and not space.divides
    assert replace(space, tensors=(1, 2)).whole and replace(space, tensors=(1, 2)).divides
    for sizes in ({"tensors": (2,)}, {"contexts": (2, 4)}, {"tensors": (1, 2), "pipelines": (2,)}):
        assert not replace(space, **sizes).whole and candidates(replace(space, **sizes), TrainingTarget(), Exclusions()) == []
    same = candidates(replace(space, tensors=(1, 2), pipelines=(1,)), TrainingTarget(), Exclusions())
    assert same == candidates(space, TrainingTarget(), Exclusions()) and all(s.parallelism.model_devices == 1 for _, s in same)


def test_groups_of_experts_are_tried_where_they_divide_a_stage(space: Space) -> None:
    clusters = tuple(cluster("A100", 4, nodes, "100Gb/s") for nodes in (1, 2, 3))
    shared = replace(space, clusters=clusters, precisions=("bf16",), batches=(48,), experts=(1, 4, 8))
    left_out = Exclusions()
    legal = candidates(shared, TrainingTarget(), left_out)
    groups = {(c.world_size, s.parallelism.pipeline, s.parallelism.expert) for c, s in legal}
    assert {(4, 1, 4), (8, 1, 8), (12, 1, 4)} <= groups and not {(4, 1, 8), (12, 1, 8)} & groups
    assert "the devices of a stage are no whole groups of experts" in {x.reason for x in left_out.excluded()}
    assert all(s.parallelism.expert == 1 or s.gradient_exchange.compression.name == "dense" for _, s in legal)


def test_weights_are_gathered_in_the_bits_that_were_named_where_they_can_be(space: Space) -> None:
    here = replace(
        space,
        clusters=(cluster("A100", 8, 2, "100Gb/s"),),
        compressions=("dense", "int8"),
        shardings=("ddp", "zero1", "zero3"),
        precisions=("bf16",),
        gather_bits=8,
    )
    left_out = Exclusions()
    found = {
        (s.parallelism.sharding.name, s.gradient_exchange.compression.name, s.parallelism.gather_bits)
        for _, s in candidates(here, TrainingTarget(), left_out)
    }
    assert found == {("ddp", "dense", 0), ("ddp", "int8", 0), ("zero3", "dense", 8), ("zero3", "int8", 8)}
    assert "weights of bf16 travel in no 8 bits with zero1" in {x.reason for x in left_out.excluded()}


def test_residuals_and_dense_numbers_are_as_asked_where_they_can_be(space: Space) -> None:
    here = replace(space, clusters=(cluster("A100", 1, 4, "10Gb/s"),), compressions=("dense", "int8", "sign", "powersgd"))
    asked = replace(here, others={"residual_bits": (16,), "residuals_at": ("host",), "dense_bits": (16,)})
    usual, found = (candidates(of, TrainingTarget(), Exclusions()) for of in (here, asked))
    assert len(usual) == len(found)
    kinds = {
        (x.compression.name, x.residual_bits, x.residuals_at.name, x.dense_bits)
        for x in (s.gradient_exchange for _, s in found)
    }
    assert kinds == {("dense", 32, "", 32), ("int8", 32, "", 16), ("sign", 16, "host", 16), ("powersgd", 16, "host", 16)}


def test_cards_and_sums_in_the_switch_are_tried_where_they_are_named(space: Space) -> None:
    here = (cluster("A100", 1, 4, "10Gb/s"),)
    usual = replace(space, clusters=here, compressions=("dense", "inceptionn", "terngrad"), exchanges=OF_HOSTS)
    assert "switch" not in Space(clusters=here).exchanges
    assert {s.gradient_exchange.codec_at.name for _, s in candidates(usual, TrainingTarget(), Exclusions())} == {""}
    found = [
        s.gradient_exchange
        for _, s in candidates(replace(usual, others={"codec_at": ("nic",)}), TrainingTarget(), Exclusions())
    ]
    carried = {(x.compression.name, x.exchange.name, x.compress_pull) for x in found if x.codec_at.name == "nic"}
    assert carried == {("inceptionn", "ring", True), ("inceptionn", "parameter_server", False)}
    assert {(x.compression.name, x.exchange.name) for x in found} == {
        (s.gradient_exchange.compression.name, s.gradient_exchange.exchange.name)
        for _, s in candidates(usual, TrainingTarget(), Exclusions())
    }
    switch = replace(usual, exchanges=("ring", "switch"), compressions=("dense", "int8"))
    legal = candidates(switch, TrainingTarget(), tally := Exclusions())
    assert not any(s.gradient_exchange.exchange.name == "switch" for _, s in legal)
    reasons = {x.reason for x in tally.excluded()}
    assert any("add nothing up" in why for why in reasons) and "the exchange cannot carry the compression" in reasons
    adding = replace(switch, clusters=(here[0].changed(aggregation=aggregation("ATP")),))
    sums = {str(s.gradient_exchange) for _, s in candidates(adding, TrainingTarget(), Exclusions())}
    assert "dense over switch" in sums and "int8 over switch" not in sums
