"""Process groups over peers that are in no common world."""

from __future__ import annotations

import peer_threads
from distributed import launch_once


def test_collectives_work_over_peers_and_a_group_is_forgotten() -> None:
    *found, left = launch_once(peer_threads.every, 1)[0]["sums"]
    assert found == [([16.0] * 3, 0, 2), ([16.0] * 3, 1, 2)]
    assert left <= 4  # the world, and groups of peers that are still there
