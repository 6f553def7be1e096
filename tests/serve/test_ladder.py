"""Rungs of the what-if ladder: one step up in each direction that there is."""

from __future__ import annotations

import pytest

from paceline import Strategy, hardware
from paceline.serve.ladder import next_device, rungs


def changes(device: str, local: int, nodes: int, network: str | None, precision: str) -> list[str]:
    cluster = hardware.cluster(device, local, nodes, network)
    strategy = Strategy.of(world_size=cluster.world_size, global_batch_size=cluster.world_size, precision=precision)
    return [str(change) for change in rungs(cluster, strategy).values()]


@pytest.mark.parametrize(
    ("where", "there"),
    [
        (("A100", 8, 2, "100Gb/s", "bf16"), ["nodesx2", "network=200Gb/s", "global-batchx2"]),
        (("A100", 4, 1, None, "fp32"), ["devices-per-nodex2", "global-batchx2", "precision=bf16"]),
        (("A100", 8, 1, None, "bf16"), ["global-batchx2"]),
        (("A100", 8, 1, "10Gb/s", "bf16"), ["nodesx2", "global-batchx2"]),
        (("A100", 8, 2, "3200Gb/s", "bf16"), ["nodesx2", "global-batchx2"]),
    ],
)
def test_the_rungs_are_those_that_there_are(where: tuple[str, int, int, str | None, str], there: list[str]) -> None:
    assert [text for text in changes(*where) if not text.startswith("device=")] == there


def test_the_next_device_is_faster_of_the_same_maker_and_has_a_price() -> None:
    own = hardware.device("A100")
    other = next_device(own, "bf16")
    assert other is not None and other.link.startswith("NVLink")
    assert other.peak_flops["bf16"].value >= 1.5 * own.peak_flops["bf16"].value
    assert next_device(hardware.device("B300"), "bf16") is None
    assert next_device(own, "fp8") is None
