"""Slices of TPUs: some numbers count chips, others TensorCores."""

from __future__ import annotations

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.tpu_slices import tpu_slice


@pytest.mark.parametrize(
    ("name", "device", "chips"),
    [
        ("v5e-8", "TPU v5e", 8),
        ("v5litepod-16", "TPU v5e", 16),
        ("TPU v6e-256", "TPU v6e", 256),
        ("v5p-128", "TPU v5p", 64),  # the table of Google's page: 4x4x4, 128 cores, 64 chips
        ("v5p-12288", "TPU v5p", 6144),
        ("Cloud TPU v4-8", "TPU v4", 4),
        ("v3-32", "TPU v3", 16),
        ("V2_8", "TPU v2", 4),
    ],
)
def test_a_slice_is_one_node_of_its_chips(name: str, device: str, chips: int) -> None:
    machines = Cluster.named(name)
    assert (machines.device.name, machines.world_size, machines.num_nodes) == (device, chips, 1)


def test_several_slices_need_a_network() -> None:
    assert Cluster.named("2x v5e-16", "200Gb/s").world_size == 32
    with pytest.raises(UserError, match="network"):
        Cluster.named("2x v5e-16")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e-12", facts("12 chips", "TPU v5e", "1, 4, 8")),
        ("v5p-12", facts("12 TensorCores", "TPU v5p", "v5p-N", "two a chip", "multiple of 8", "12,288")),
        ("v3-4096", "up to 2,048"),
    ],
)
def test_slices_that_cannot_be_are_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Cluster.named(name)


@pytest.mark.parametrize("name", ["v5", "v5e", "p5-8", "v7-8", "TPU v5e", "v2p-8"])
def test_other_names_are_no_slices(name: str) -> None:
    assert tpu_slice(name) is None
