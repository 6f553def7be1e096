"""Transfer of the shared weights between two peers; ``tests/peer_ranks.py`` does it while the giver trains."""

from __future__ import annotations

import peer_threads
from distributed import launch_once


def test_fetched_weights_have_the_same_bits_and_counts() -> None:
    assert launch_once(peer_threads.every, 1)[0]["fetched"] == {"equal": True, "header": [5, 1]}
