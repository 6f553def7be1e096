"""A proposal that is applied is the strategy that was proposed."""

from __future__ import annotations

from paceline.planning.search.nearest_fit import Fitting
from paceline.serve.applied import address, applied, applied_fit
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question

CHOSEN = {
    "workload": "gpt2",
    "device": "A100",
    "devices-per-node": "4",
    "nodes": "2",
    "network": "100Gb/s",
    "transport": "RoCE",
}


def asked(**changes: str) -> Question:
    return question({**CHOSEN, "micro-batch-size": "2", **changes}, Configurations())


def test_another_strategy_means_itself_again() -> None:
    own = asked()
    other = own.strategy.changed(sharding="zero2", recompute="full", tensor=2, grad_accum_steps=2)
    chosen = applied(own, own.cluster, other)
    again = question(chosen, Configurations())
    assert again.strategy == other and again.cluster == own.cluster
    assert chosen["network"] == "100Gb/s" and chosen["transport"] == "RoCE" and "micro-batch-size" not in chosen


def test_another_cluster_means_itself_again() -> None:
    own = asked(price="2")
    larger = own.cluster.changed(num_nodes=4)
    assert question(applied(own, larger, own.strategy.changed(world_size=16)), Configurations()).cluster == larger
    single = own.cluster.changed(num_nodes=1)
    chosen = applied(own, single, own.strategy.changed(world_size=4))
    assert "network" not in chosen and "transport" not in chosen and chosen["nodes"] == "1" and chosen["price"] == "2"


def test_a_lighter_job_has_its_adapters_and_length() -> None:
    own = asked()
    fit = Fitting(
        kinds=(),
        cluster=own.cluster,
        strategy=own.strategy,
        prediction=None,
        lora="r=8",
        tokens=512,  # type: ignore[arg-type]
    )
    chosen = applied_fit(own, fit)
    assert (chosen["lora"], chosen["seq-len"]) == ("r=8", "512")
    assert address(chosen).startswith("./?workload=gpt2&seq-len=512&lora=r%3D8&")
