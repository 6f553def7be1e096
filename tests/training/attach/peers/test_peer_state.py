"""States of peers: a run that begins again from them has the bits of one that was never stopped."""

from __future__ import annotations

import numpy as np

import peer_threads
from distributed import launch_once


def test_a_run_from_states_has_the_same_bits() -> None:
    found = launch_once(peer_threads.every, 1)[0]["resumed"]
    assert min(found["residuals"]) > 0
    for whole, cut in zip(found["whole"], found["cut"], strict=True):
        for one, other in zip(whole, cut, strict=True):
            np.testing.assert_array_equal(one, other)
