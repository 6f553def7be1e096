"""Choices of offload."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy import Parallelism
from paceline.strategy.offload import OFFLOADS, host_activations
from wrong_types import wrong_types


def test_what_exists() -> None:
    states, passes = ("", "optimizer", "weights+optimizer"), ("", "activations", "checkpoints")
    assert set(OFFLOADS) == {"+".join(filter(None, (s, p))) or "none" for s in states for p in passes}
    for name, value in OFFLOADS.items():
        assert Parallelism(data=4, sharding="zero3", recompute="full", offload=name).offload is value
        assert bool(value) == (name != "none")
        parts = {each for each in ("optimizer", "weights", "activations", "checkpoints") if getattr(value, each)}
        assert parts == set(name.split("+")) - {"none"}
    assert Parallelism(offload="activations+optimizer").offload is OFFLOADS["optimizer+activations"]
    with pytest.raises(UserError, match=r"unknown offload 'optimiser'; .*did you mean optimizer\?"):
        Parallelism(offload="optimiser")
    for wrong in wrong_types(str):
        with pytest.raises(UserError, match="the offload is a name"):
            Parallelism(offload=wrong)


@pytest.mark.parametrize("sharding", ["ddp", "zero1"])
def test_weights_that_every_device_holds_are_not_offloaded(sharding: str) -> None:
    with pytest.raises(UserError, match=f"offload of weights with sharding {sharding}, which holds them whole; give sharding"):
        Parallelism(data=4, sharding=sharding, offload="weights+optimizer")


def test_what_needs_something_else_says_so() -> None:
    with pytest.raises(UserError, match="only recomputed blocks have some; give recompute full, or offload activations"):
        Parallelism(offload="checkpoints")
    with pytest.raises(UserError, match="4 layers with activations in the host's memory without such an offload"):
        Parallelism(offload="optimizer", offload_layers=4)
    with pytest.raises(UserError, match="offload 'nvme': the rate of disks is not modelled; give one of none, optimizer"):
        Parallelism(offload="nvme")


def test_layers_of_activations() -> None:
    assert host_activations(OFFLOADS["optimizer"], 0) is None
    own = Parallelism(pipeline=2, virtual_stages=2, micro_batches=2, offload="activations", offload_layers=3)
    assert own.host_activations is not None and own.host_activations.layers == 3
    assert own.replicas.host_activations is not None and own.replicas.host_activations.layers == 6  # of both parts of a stage
