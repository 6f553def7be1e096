"""Sites whose ranks hold shards (FSDP2, HSDP): equal to whole sites, also if one joins, learns NaN, is killed or resumes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import local_oracle as oracle
import paceline
import paceline.training.attach.attach_local  # before the ranks are forked
from distributed import launch, launch_and_let_fail
from paceline.errors import LostRank, UserError
from paceline.strategy import GradientExchange
from paceline.training.attach.local.worker_ranks import ShardPart, WorkerPlace
from paceline.training.attach.peers.peer_store import PeerStore, host_store
from paceline.training.attach.peers.peer_sync import PeerSync
from paceline.training.attach.peers.peers import Peers
from paceline.training.attach.peers.site_places import SitePlaces, dim_of, sharding_of
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from peer_threads import at_once

oracle.optimizer("sgd", oracle.network())  # imports what an optimizer needs, once for all ranks that are forked
EVERY, STEPS = 2, 6


def test_a_sharding_is_described_by_shards_and_dimensions() -> None:
    parts = [ShardPart(TensorSpec(name, (4, 4), 0), (2, 4), (0, 0), 0, 8) for name in "abc"]
    assert sharding_of(WorkerPlace(shards=2), parts, [0, 0, 0]) == "in 2 shards of dimension 0"
    assert sharding_of(WorkerPlace(shards=2), parts, [0, 1, 0]) == "in 2 shards of dimension 0, b of dimension 1"
    assert sharding_of(WorkerPlace(), parts, [0, 0, 0]) == "whole"
    assert dim_of(torch.zeros(2)) == 0


def test_ranks_of_a_site_decide_as_one_until_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers(host_store("127.0.0.1:0"), patience_s=3.0)
    made = at_once([lambda: PeerStore(peers, 60)] * 2)
    places = at_once([partial(SitePlaces, made[shard], WorkerPlace(shard, 2), 7, 60.0) for shard in (0, 1)])
    assert places[0].number == places[1].number == made[0].number
    assert at_once([partial(one.everyone, one.counterpart(one.number)) for one in places]) == [[m.number for m in made]] * 2
    assert at_once([lambda one=one, value=value: one.decide(lambda: value) for value, one in enumerate(places)]) == [0, 0]

    def refuse() -> None:
        raise UserError("no", "next")

    def said(one: SitePlaces) -> str:
        with pytest.raises((UserError, LostRank)) as error:
            one.decide(refuse)
        return str(error.value)

    assert at_once([partial(said, one) for one in places]) == ["no; next"] * 2
    with monkeypatch.context() as patch:
        # The first rank takes the other for lost, whose heartbeat is late. The first one's heartbeat continues.
        patch.setattr(PeerStore, "beats", lambda self, number: number == self.number or self is not made[0])
        lost = at_once([partial(said, one) for one in places])
    assert ["shard 1 of this site is lost" in each for each in lost] == [True, True]
    other = PeerStore(peers, 60)
    made[1]._shared.stop.set()
    with pytest.raises(LostRank, match="shard 1 of this site is lost"):
        places[0].everyone(0)
    assert other.wait_until(lambda: not other.lives(places[0].number), 60)  # a site lives if all its ranks do


class Rank:
    """One rank of a site with its sharded network and samples.

    Args:
        grids: ranks of each site, (copies, shards); all ranks of the launch give the same.
    """

    def __init__(self, grids: list[list[list[int]]], run: str = "run", compression: str = "dense", **peers: Any) -> None:
        rank = dist.get_rank()
        meshes = [_mesh(grid) for grid in grids]
        own = next(number for number, grid in enumerate(grids) if rank in chain(*grid))
        self.model = oracle.network(int(own == 2))  # the third site begins with other weights
        if len(grids[own][0]) > 1:
            fully_shard(self.model[2], mesh=meshes[own])
            fully_shard(self.model, mesh=meshes[own])
        self.optimizer = oracle.optimizer("sgd", self.model)
        self.sync: PeerSync = paceline.attach_local(
            self.model,
            GradientExchange(compression),
            sync_every=EVERY,
            process_group=dist.new_group(list(chain(*grids[own])), use_local_synchronization=True),
            peers=paceline.Peers(dist.distributed_c10d._get_default_store(), run=run, patience_s=20.0, **peers),
            timeout_s=60,
            check_every=1,
        )

    def steps(self, samples: list[torch.Tensor]) -> None:
        """Take a step with each of the samples."""
        for x in samples:
            oracle.local_step(self.model, self.optimizer, x)
            self.sync.step()

    def weights(self) -> list[list[float]]:
        """The whole weights, tensor after tensor."""
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in self.model.parameters()]
        return [w.detach().reshape(-1).tolist() for w in whole]

    def seen(self) -> list[Any]:
        """Outer step, checksum of this rank's shared weights, and number of members of the last exchange."""
        return [self.sync.outer_step, self.sync.shared.digest(), len(self.sync.members)]


def _mesh(grid: list[list[int]]) -> DeviceMesh:
    if len(grid) == 1:
        return DeviceMesh("cpu", grid[0])
    return DeviceMesh("cpu", grid, mesh_dim_names=("copy", "shard"))


def events() -> Any:
    """Store for events of a test."""
    return dist.PrefixStore("events", dist.distributed_c10d._get_default_store())


def equal(rank: int, workers: int, grids: list[list[list[int]]]) -> Any:
    """Weights after all rounds. Ranks with equal shards see equal samples."""
    one = Rank(grids, min_peers=2)
    own, shard = next((g, row.index(rank)) for g, grid in enumerate(grids) for row in grid if rank in row)
    one.steps(oracle.samples(2 * own + shard, STEPS))
    one.sync.finish()
    return one.weights(), one.sync.outer_step


@pytest.mark.long
@pytest.mark.parametrize("grids", [[[[0, 1]], [[2, 3]]], [[[0, 1], [2, 3]], [[4, 5]]]], ids=["fsdp", "hsdp"])
def test_two_sites_of_two_shards_are_two_workers(grids: list[list[list[int]]]) -> None:
    expected = oracle.simulated(2, STEPS, every=EVERY, inner="sgd", devices=2)[0]
    for weights, outer_step in launch(equal, sum(len(row) for grid in grids for row in grid), grids=grids):
        assert outer_step == STEPS // EVERY
        for found, wanted in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, wanted.reshape(-1), rtol=1e-4, atol=2e-6)


def resumed(rank: int, workers: int) -> Any:
    """Weights of a run with residuals, and of one that begins again from its states between two rounds."""
    grids, samples, found = [[[0, 1]], [[2, 3]]], oracle.samples(rank, STEPS), []
    cut = EVERY + 1
    whole = Rank(grids, "whole", "topk", min_peers=2)
    whole.steps(samples)
    first = Rank(grids, "first", "topk", min_peers=2)
    first.steps(samples[:cut])
    state, inner = first.sync.state_dict(), first.optimizer.state_dict()
    again = Rank(grids, "again", "topk", min_peers=2)
    again.sync.load_state_dict(state)
    again.optimizer.load_state_dict(inner)
    again.steps(samples[cut:])
    other = {**state, "peer": {**state["peer"], "place": {"shard": 1 - rank % 2, "shards": 2, "copy": 0, "copies": 1}}}
    try:
        Rank(grids, "other", "topk").sync.load_state_dict(other)
    except UserError as error:
        found.append(str(error))
    return whole.weights(), again.weights(), float(sum(v.abs().sum() for v in state["feedback"]["residual"].values())), found


@pytest.mark.long
def test_a_state_of_each_rank_continues_with_the_same_bits() -> None:
    for whole, again, residual, said in launch(resumed, 4):
        assert whole == again
        assert residual > 0
        assert "the state is of shard" in said[0]


def other_sharding(rank: int, workers: int) -> str:
    """Join with a second site that is not sharded, and return what this rank is told."""
    one = Rank([[[0, 1]], [[2]]])
    if rank == 2:
        events().wait(["joined"], timedelta(seconds=150))
    try:
        one.sync.join()
        if rank == 0:
            events().set("joined", "1")
        return "joined"
    except UserError as error:
        return str(error)


@pytest.mark.long
def test_a_site_with_another_sharding_is_refused() -> None:
    told = launch(other_sharding, 3)
    assert told[:2] == ["joined", "joined"]
    assert "model is whole, those of the run's other sites are in 2 shards of dimension 0" in told[2]
    assert "call fully_shard" in told[2]


def faults(rank: int, workers: int) -> None:
    """Two sites, of which one learns NaN in one shard; a third one that joins late, and is killed."""
    site, seen = rank // 2, []
    one = Rank([[[0, 1]], [[2, 3]], [[4, 5]]], min_peers=2)
    samples = oracle.samples(rank, 5 * EVERY)
    done = lambda: events().add("done", 1)  # noqa: E731
    if site < 2:
        one.steps(samples[:EVERY])
        seen.append(one.seen())
        if rank == 3:
            one.sync.fragment.weights[0].fill_(float("nan"))
        one.sync.step_number += EVERY - 1  # a step with NaN weights would spread it to the site's other shard
        one.sync.step()
        seen.append(one.seen())
        done()
        while int(events().add("joined", 0)) < 2:  # the third site
            time.sleep(0.01)
    else:
        while int(events().add("done", 0)) < 4:
            time.sleep(0.01)
        one.sync.join()
        seen.append(one.seen())
        events().add("joined", 1)
    one.steps(samples[2 * EVERY : 3 * EVERY])
    seen.append(one.seen())
    if site == 2:
        print("TOLD " + json.dumps([seen, one.sync.returned]), flush=True)
        events().add("told", 1)
        while int(events().add("told", 0)) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    one.steps(samples[3 * EVERY : 4 * EVERY])
    seen.append(one.seen())
    print("TOLD " + json.dumps([seen, one.sync.returned]), flush=True)
    one.sync.leave()
    sys.stdout.flush()
    os._exit(0)


@pytest.mark.long
def test_a_site_joins_with_equal_bits_and_its_loss_leaves_the_others_going_on() -> None:
    outcomes = launch_and_let_fail(faults, 6)
    lines = [[line for line in outcome.said.splitlines() if line.startswith("TOLD ")] for outcome in outcomes]
    assert all(lines), [outcome.said[-3000:] for outcome in outcomes]
    told = [json.loads(found[-1][5:]) for found in lines]
    assert [returned for _, returned in told] == [0, 0, 1, 1, 0, 0]
    for shard in (0, 1):
        (first, _), (second, _), (third, _) = told[shard], told[2 + shard], told[4 + shard]
        assert first == second
        assert (third[0][:2], third[1]) == (first[1][:2], first[2])
        assert [[step, members] for step, _, members in first] == [[1, 2], [2, 2], [3, 3], [4, 2]]
        assert len({digest for _, digest, _ in first}) == 4
    assert told[0][0][3][1] != told[1][0][3][1]  # the shards differ
