"""A toy to plan for: a network whose steps can be worked out, on machines with a price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.planning import Space
from paceline.workload import Workload
from prediction_toys import make_cluster, make_workload


@pytest.fixture
def toy() -> Workload:
    return make_workload()


@pytest.fixture
def space() -> Space:
    """One, two or four nodes of a slow device, and the same of one that is twice as fast."""
    slow = tuple(make_cluster(1, n, network=1e9) for n in (1, 2, 4))
    fast = tuple(
        replace(make_cluster(1, n, network=1e9, flops=2e13), device=replace(make_cluster(1, 1, flops=2e13).device, name="fast"))
        for n in (1, 2, 4)
    )
    return Space(
        clusters=slow + fast,
        batches=(256, 512),
        compressions=("dense", "bf16", "terngrad"),
        shardings=("ddp",),
        accumulations=(1,),
        recomputes=(False,),
    )
