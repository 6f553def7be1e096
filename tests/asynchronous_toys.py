"""A small asynchronous job: equal layers on equal hosts."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.prediction.asynchronous import AsyncResult, Profile, WorkerLayer, simulate

GIGABIT = 125e6
"""Bytes a second."""


def profile(
    layers: int = 8, size: float = 8e6, compute_s: float = 0.1, jitter: float = 0.1, drawn: int = 16, **given: Any
) -> Profile:
    """Equal layers, a third of the time forward, steps that differ as a whole."""
    factors = 1 + jitter * np.random.default_rng(1).uniform(-1, 1, drawn)
    forward, backward = (tuple((factors * share * compute_s / layers).tolist()) for share in (1 / 3, 2 / 3))
    each = (WorkerLayer(name=f"l{i}", size=size / layers, forward_s=forward, backward_s=backward) for i in range(layers))
    return Profile(name="equal", batch_size=32, layers=tuple(each), **{"link_share": 1.0, **given})


def run(of: Profile, workers: int, servers: int = 1, bandwidth: float = GIGABIT, **options: Any) -> AsyncResult:
    """The simulation of the profile."""
    return simulate(of, workers, servers, link_bandwidth=bandwidth, **options)
