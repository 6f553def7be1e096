"""The mean of peers' changes, against a simulation of DiLoCo that knows no peers."""

from __future__ import annotations

import numpy as np

import peer_threads
from distributed import launch_once


def test_three_peers_have_the_weights_of_diloco() -> None:
    expected = peer_threads.simulated()
    for weights in launch_once(peer_threads.every, 1)[0]["mean_of_three"]:
        for found, wanted in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-6)
