"""Ranks of one site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import local_oracle as oracle
import paceline
import peer_threads
from distributed import launch, launch_once


def test_a_site_of_one_rank_calls_and_raises_as_the_call_does() -> None:
    assert launch_once(peer_threads.every, 1)[0]["at_site"] == [True, True]


def two_sites(rank: int, workers: int) -> list[list[Any]]:
    """Two sites of two ranks that add their gradients in every step; the ranks of a site begin unequal."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    site = groups[rank // 2]
    model = oracle.network(rank % 2)
    peers = paceline.Peers(dist.distributed_c10d._get_default_store(), min_peers=2)
    sync = paceline.attach_local(model, sync_every=2, process_group=site, peers=peers, timeout_s=60)
    sync.join()
    trained = DistributedDataParallel(model, process_group=site)
    optimizer = oracle.optimizer("sgd", model)
    for x in oracle.samples(rank // 2, 6):
        oracle.local_step(trained, optimizer, x)
        sync.step()
    sync.finish()
    return [[p.detach().numpy() for p in model.parameters()], sync.outer_step]


@pytest.mark.long
def test_two_sites_of_two_ranks_are_two_workers() -> None:
    expected = oracle.simulated(2, 6, every=2, inner="sgd")[0]
    for weights, outer_step in launch(two_sites, 4):
        assert outer_step == 3
        for found, wanted in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-6)
