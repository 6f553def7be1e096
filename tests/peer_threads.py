"""Peers as threads of one process, for what needs no fault: groups, transfers, means and states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import local_oracle as oracle
import paceline
import paceline.training.attach.attach_local  # before the ranks are forked
from paceline.strategy import GradientExchange
from paceline.training.attach.peers.peer_groups import PeerGroup
from paceline.training.attach.peers.peer_store import PeerStore, connect
from paceline.training.attach.peers.peer_sync import PeerSync
from paceline.training.attach.peers.site import SiteRanks
from paceline.training.attach.peers.transfer import fetch, serve

oracle.optimizer("sgd", oracle.network())  # imports what an optimizer needs, before a test's time counts
EVERY, ROUNDS = 2, 4


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make the calls at the same time, and return what they return, or raise the first error at once."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    while not errors and (waiting := [thread for thread in threads if thread.is_alive()]):
        waiting[0].join(0.02)
    if errors:
        raise errors[0]
    return results


def settings(run: str, **more: Any) -> paceline.Peers:
    """Peers of a run in the store of the launch."""
    return paceline.Peers(dist.distributed_c10d._get_default_store(), run=run, patience_s=60.0, **more)


def attached(run: str, peers: int, compression: str = "dense", **local: Any) -> tuple[Any, Any, PeerSync]:
    """A peer's network, optimizer and exchange."""
    model = oracle.network()
    sync = paceline.attach_local(
        model, GradientExchange(compression), sync_every=EVERY, peers=settings(run, min_peers=peers), timeout_s=60, **local
    )
    return model, oracle.optimizer("sgd", model), sync


def trained(peer: tuple[Any, Any, PeerSync], samples: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The weights of a peer after steps with the samples."""
    model, optimizer, sync = peer
    for x in samples:
        oracle.local_step(model, optimizer, x)
        sync.step()
    return [p.detach().double().numpy().copy() for p in model.parameters()]


def simulated() -> list[np.ndarray]:
    """Return the weights of three peers after all rounds, by a simulation without peers."""
    return oracle.simulated(3, EVERY * ROUNDS, every=EVERY, inner="sgd")[0]


def mean_of_three() -> list[list[np.ndarray]]:
    """The weights of three peers after all rounds."""
    peers = [attached("mean", 3) for number in range(3)]
    steps = [oracle.samples(number, EVERY * ROUNDS) for number in range(3)]
    return at_once([lambda n=n: trained(peers[n], steps[n]) for n in range(3)])  # type: ignore[misc]


def resumed() -> dict[str, Any]:
    """Two peers of a codec with residuals: the weights after all rounds, and those of a run that begins again from states."""
    steps = [oracle.samples(number, EVERY * ROUNDS) for number in range(2)]

    def run(number: int, name: str, halves: bool) -> tuple[list[np.ndarray], Any]:
        peer = attached_at[name, number]
        if not halves:
            return trained(peer, steps[number]), None
        cut = EVERY * 2 + 1  # between two rounds
        trained(peer, steps[number][:cut])
        saved = peer[2].state_dict(), peer[1].state_dict()
        peer[2]._over = True  # ended without a word
        again = attached_at[f"{name} again", number]
        again[2].load_state_dict(saved[0])
        again[1].load_state_dict(saved[1])
        return trained(again, steps[number][cut:]), saved[0]

    names = ("whole", "cut", "cut again")
    attached_at = {(name, n): attached(name, 2, "topk") for name in names for n in range(2)}
    whole = at_once([lambda n=n: run(n, "whole", False) for n in range(2)])  # type: ignore[misc]
    cut = at_once([lambda n=n: run(n, "cut", True) for n in range(2)])  # type: ignore[misc]
    residuals = [float(sum(v.abs().sum() for v in state["feedback"]["residual"].values())) for _, state in cut]
    return {"whole": [w for w, _ in whole], "cut": [w for w, _ in cut], "residuals": residuals}


def sums() -> list[Any]:
    """Sums over a group of two peers whose ranks in their own worlds are equal, and the ranks in it."""

    def one(number: int) -> Any:
        group = PeerGroup(connect(settings("sums"), 60), "pair", (7, 9), number, 60)
        values = torch.full((3,), float(number))
        dist.all_reduce(values, group=group.group)
        return values.tolist(), dist.get_rank(group.group), dist.get_world_size(group.group)

    found = at_once([lambda: one(7), lambda: one(9)])
    left = len(dist.distributed_c10d._world.pg_group_ranks)
    return [*found, left]


def fetched() -> dict[str, Any]:
    """Shared weights that one peer has and another fetches."""
    _, _, first = attached("fetch", 1, max_age=2, round_deadline_s=0.0)
    _, _, second = attached("fetch", 1, max_age=2, round_deadline_s=0.0)
    with torch.no_grad():
        for part in first.shared.parts():
            part.uniform_()
    first.shared.outer_step, first.shared.counted = 5, 1
    giver, taker = (PeerStore(settings("fetch"), 60) for _ in range(2))
    serve(giver, first.shared, 60)
    second.shared.adopt(fetch(taker, giver.number, second.shared, 60))
    header = [second.shared.outer_step, second.shared.counted]
    return {"equal": first.shared.digest() == second.shared.digest(), "header": header}


def at_site() -> list[Any]:
    """Return the results and errors of a site of one rank."""
    group = dist.group.WORLD
    assert group is not None
    site = SiteRanks(group, torch.device("cpu"))
    _, _, sync = attached("site", 1)
    told = [site.together(lambda: True, sync.shared)]
    try:
        site.together(lambda: 1 // 0 > 0, sync.shared)
    except ZeroDivisionError:
        told.append(True)
    return told


def every(rank: int, workers: int) -> dict[str, Any]:
    """All of the above."""
    return {each.__name__: each() for each in (mean_of_three, resumed, sums, fetched, at_site)}
