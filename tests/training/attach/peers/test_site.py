"""Ranks of one site."""

from __future__ import annotations

import peer_threads
from distributed import launch_once


def test_a_site_of_one_rank_calls_and_raises_as_the_call_does() -> None:
    assert launch_once(peer_threads.every, 1)[0]["at_site"] == [True, True]
