"""Peers as processes that are killed, leave, join, come late or learn NaN. Faults wait for events, never for times.

Each rank of ``distributed.launch_and_let_fail`` is a peer, whose site is a group of one rank. They use the launch's store.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import local_oracle as oracle
import paceline
import paceline.training.attach.attach_local  # here, and not in each rank
from paceline.strategy import GradientExchange
from paceline.training.attach.peers import peer_exchange, transfer
from paceline.training.attach.peers.peer_store import _Shared, host_store
from paceline.training.attach.peers.peer_sync import PeerSync
from paceline.training.attach.peers.shared_weights import checksum_of

oracle.optimizer("sgd", oracle.network())  # imports what an optimizer needs, once for all ranks that are forked
EVERY = 2
PATIENCE_S = 3.0
"""Patience of cases in which the last peer is lost. See ``lose_only``."""
WAIT = timedelta(seconds=150)


def store() -> Any:
    """The launch's store, for events of a case."""
    return dist.PrefixStore("events", dist.distributed_c10d._get_default_store())


class Peer:
    """One peer with its network and samples.

    Args:
        loses: rank of the peer that is lost in the case.

    Attributes:
        seen: outer step and checksum of the shared weights after each of its rounds.
    """

    def __init__(
        self,
        rank: int,
        compression: str = "dense",
        min_peers: int = 1,
        where: Any = None,
        loses: int | None = None,
        **local: Any,
    ) -> None:
        self.rank, patience_s = rank, 60.0
        if loses is not None:
            patience_s = PATIENCE_S
            lose_only(loses)
        site = dist.new_group([rank], use_local_synchronization=True)
        self.model = oracle.network(rank)
        self.optimizer = oracle.optimizer("sgd", self.model)
        meeting = where or dist.distributed_c10d._get_default_store()
        self.sync: PeerSync = paceline.attach_local(
            self.model,
            GradientExchange(compression),
            sync_every=EVERY,
            process_group=site,
            peers=paceline.Peers(meeting, name=f"peer-{rank}", min_peers=min_peers, patience_s=patience_s),
            timeout_s=60,
            check_every=1,
            **local,
        )
        self.samples = cycle(oracle.samples(rank, 200))
        self.seen: list[list[Any]] = []

    def round(self, before: Callable[[], None] = lambda: None) -> bool:
        """Take the steps of a round. ``before``: called before the last one."""
        for step in range(EVERY):
            oracle.local_step(self.model, self.optimizer, next(self.samples))
            if step == EVERY - 1:
                before()
            took = self.sync.step()
        self.seen.append([self.sync.outer_step, self.sync.shared.digest(), sorted(self.sync.members)])
        return took

    def told(self, **more: Any) -> dict[str, Any]:
        """Return the values that a case compares."""
        weights = checksum_of([self.sync.fragment.anchor])
        sync = self.sync
        counts = {"left_behind": sync.left_behind, "dropped": sync.dropped, "returned": sync.returned}
        return {"seen": self.seen, "anchor": weights, "outer_step": sync.outer_step, **counts, **more}


def end(told: dict[str, Any]) -> None:
    """End the process with a result, without the barrier of the launch, which a lost rank would not reach."""
    print("TOLD " + json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


def results(outcomes: list[Any]) -> list[dict[str, Any] | None]:
    """Return the last line that each peer told; None for one that was killed."""
    lines = [[line for line in outcome.said.splitlines() if line.startswith("TOLD ")] for outcome in outcomes]
    return [json.loads(found[-1][5:]) if found else None for found in lines]


def case(rank: int, workers: int, name: str, compression: str = "dense") -> None:
    """Run one case by its name."""
    end(CASES[name](rank, workers, compression))


def lose_only(rank: int) -> None:
    """Let this process take no peer for lost but the one of a rank, and that only when its process has stopped or ended.

    Heartbeats of the others may be late on a busy machine. The lost one is noticed by its heartbeat, as without this.
    """
    lives, key = _Shared.lives, f"process-{rank}"

    def judged(self: _Shared, number: int) -> bool:
        if lives(self, number) or not store().check([key]):
            return True
        lost, process = map(int, store().get(key).split())
        return number != lost or runs(process)

    _Shared.lives = judged  # type: ignore[method-assign]


def runs(process: int) -> bool:
    """Return True unless a process is stopped or has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False


def began(peer: Peer, workers: int) -> None:
    """Join, and wait until all others have."""
    peer.sync.join()
    assert peer.sync._meeting is not None
    store().set(f"process-{peer.rank}", f"{peer.sync._meeting.number} {os.getpid()}")
    store().add("joined", 1)
    until("joined", workers)


def until(event: str, count: int = 1) -> None:
    """Wait until an event has happened so often."""
    while int(store().add(event, 0)) < count:
        time.sleep(0.005)


def finished(peer: Peer, **more: Any) -> dict[str, Any]:
    """Leave the run, and tell how it was until then."""
    told = peer.told(**more)
    peer.sync.leave()
    return told


def together(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """All peers, three rounds."""
    peer = Peer(rank, compression, min_peers=workers)
    began(peer, workers)
    for _ in range(3):
        peer.round()
    return finished(peer)


def killed(rank: int, workers: int, compression: str, where: str = "exchange", how: int = signal.SIGKILL) -> Any:
    """The last peer is killed, or stopped, in the exchange of its second round."""
    peer = Peer(rank, compression, loses=workers - 1)
    began(peer, workers)
    peer.round()
    if rank == workers - 1:
        for name in ("begin_allreduce", "exchange_group") if where == "exchange" else ():
            setattr(peer_exchange, name, lambda *_: os.kill(os.getpid(), how))
        if where == "attempt":
            peer.sync._attempt = lambda *_: os.kill(os.getpid(), how)  # type: ignore[assignment, method-assign]
    for _ in range(2):
        peer.round()
    return finished(peer)


def suspended(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """The last peer is stopped in the exchange of its second round, and goes on when the others have taken two without it."""
    peer = Peer(rank, compression, loses=workers - 1)
    began(peer, workers)
    peer.round()
    if rank == workers - 1:
        store().set("pid", str(os.getpid()))
        exchange = peer_exchange.begin_allreduce, peer_exchange.exchange_group

        def stop(*given: Any) -> Any:
            """Stop this process, once, and exchange when it goes on."""
            peer_exchange.begin_allreduce, peer_exchange.exchange_group = exchange
            os.kill(os.getpid(), signal.SIGSTOP)
            return exchange[compression != "dense"](*given)

        peer_exchange.begin_allreduce = peer_exchange.exchange_group = stop
        while not peer.seen[1:] or not peer.seen[-1][2]:
            peer.round()
        return finished(peer)
    for _ in range(2):
        peer.round()
    store().add("without", 1)
    until("without", workers - 1)
    if rank == 0:
        os.kill(int(store().get("pid")), signal.SIGCONT)
    while len(peer.sync.members) < workers:
        peer.round()
    return finished(peer)


def leaving(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """The last peer leaves after its first round, with a step that it has taken since."""
    peer = Peer(rank, compression)
    began(peer, workers)
    peer.round()
    if rank == workers - 1:
        return finished(peer)
    for _ in range(2):
        peer.round()
    return finished(peer)


def joining(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """The last peer comes late. While it fetches the shared weights, the others take two further outer steps."""
    if rank < workers - 1:
        peer = Peer(rank, compression, min_peers=workers - 1)
        while not any(f"peer-{workers - 1}" in seen[2] for seen in peer.seen):
            peer.round()
            store().add(f"rounds-{rank}", 1)
        return finished(peer)
    for other in range(rank):
        until(f"rounds-{other}", 2)
    peer = Peer(rank, compression)
    whole, group = peer.sync.shared, transfer.PeerGroup

    def slow(*given: Any) -> Any:
        """Make the pair's group once the others have gone on."""
        transfer.PeerGroup = group
        for other in range(rank):
            until(f"rounds-{other}", int(store().add(f"rounds-{other}", 0)) + 2)
        return group(*given)

    transfer.PeerGroup = slow  # type: ignore[assignment, misc]
    peer.sync.join()
    fetched = [whole.outer_step, whole.digest()]
    while not peer.round():
        pass
    return finished(peer, fetched=fetched)


def late(rank: int, workers: int, compression: str, max_age: int = 0) -> dict[str, Any]:
    """The last peer comes to its second round when the others have taken two outer steps without it."""
    peer = Peer(rank, compression, min_peers=workers - 1, round_deadline_s=0.5, max_age=max_age)
    began(peer, workers)
    if rank == workers - 1:
        catch_up = peer.sync._catch_up

        def caught_up(newest: int) -> None:
            catch_up(newest)
            if int(store().add("without", 0)) == workers - 1:
                store().add("caught up", 1)

        peer.sync._catch_up = caught_up  # type: ignore[method-assign]
        peer.round(lambda: until("without", workers - 1))
    else:
        for _ in range(2):
            peer.round()
        store().add("without", 1)
        until("caught up")
    while len(peer.sync.members) < workers:
        peer.round()
    return finished(peer)


def infinite(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """The last peer learns NaN in its second round."""
    peer = Peer(rank, compression, min_peers=workers)
    began(peer, workers)
    peer.round()
    if rank == workers - 1:
        with torch.no_grad():
            next(peer.model.parameters()).fill_(float("nan"))
    for _ in range(2):
        peer.round()
        peer.optimizer = oracle.optimizer("sgd", peer.model)
    return finished(peer)


def storeless(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """The first rank only hosts the store, and is killed after a round of the others."""
    if rank == 0:
        hosted = host_store("127.0.0.1:0")
        store().set("port", str(hosted.port))
        until("ready", workers - 1)
        os.kill(os.getpid(), signal.SIGKILL)
    store().wait(["port"], WAIT)
    peer = Peer(rank, compression, min_peers=workers - 1, where=f"127.0.0.1:{store().get('port').decode()}")
    peer.round()
    store().add("ready", 1)
    try:
        while True:
            peer.round()
    except paceline.LostRank as lost:
        return peer.told(error=str(lost), state=peer.sync.state_dict()["peer"]["header"].tolist())


def orphaned(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """Decoupled learners: the last one is killed when only it has the newest outer step."""
    peer = Peer(rank, compression, loses=workers - 1, round_deadline_s=0.0, max_age=8)
    began(peer, workers)
    if rank == workers - 1:
        peer.round()
        store().add("sole", 1)
        os.kill(os.getpid(), signal.SIGKILL)
    until("sole")
    for _ in range(3):
        peer.round()
    return finished(peer)


def decoupled(rank: int, workers: int, compression: str) -> dict[str, Any]:
    """Learners of unequal pace, none of which waits: the last one takes a round while the others take as many as they like."""
    peer = Peer(rank, compression, round_deadline_s=0.0, max_age=50)
    began(peer, workers)
    if rank == workers - 1:
        for turn in range(3):
            peer.round(lambda turn=turn: until(f"turn-{turn}", workers - 1))  # type: ignore[misc]
        store().add("done", 1)
        return finished(peer)
    for turn in range(3):
        for _ in range(2):
            peer.round()
        store().add(f"turn-{turn}", 1)
    until("done")
    return finished(peer)


def problems(name: str, outcomes: list[Any]) -> list[str]:
    """Return the faults in the outcomes of a case."""
    found, told = list[str](), results(outcomes)
    lost = {"killed", "killed before", "stopped", "orphaned"}
    alive = told[1:] if name == "storeless" else told[:-1] if name in lost else told
    if None in alive:
        return [f"a peer ended: {[outcome.said[-1500:] for outcome in outcomes if outcome.code > 0]}"]
    peers = [one for one in alive if one is not None]
    by_step: dict[int, set[str]] = {}
    for one in peers:
        for step, digest, _ in one["seen"]:
            by_step.setdefault(step, set()).add(digest)
    found += [f"outer step {step} has {len(digests)} versions" for step, digests in by_step.items() if len(digests) > 1]
    everyone, others = [f"peer-{rank}" for rank in range(len(told))], [f"peer-{rank}" for rank in range(len(told) - 1)]
    found += [f"{text}: {told}" for text, holds in _EXPECTED[name](peers, everyone, others) if not holds]
    return found


def _members(one: dict[str, Any]) -> list[list[str]]:
    return [members for _, _, members in one["seen"]]


Checks = list[tuple[str, bool]]
_EXPECTED: dict[str, Callable[[list[dict[str, Any]], list[str], list[str]], Checks]] = {
    "together": lambda peers, everyone, others: [("members", all(_members(one) == [everyone] * 3 for one in peers))],
    "suspended": lambda peers, everyone, others: [
        ("others went on", all(_members(one)[1:3] == [others] * 2 for one in peers[:-1])),
        ("came again", all(_members(one)[-1] == everyone for one in peers)),
    ],
    "leaving": lambda peers, everyone, others: [
        ("members", all(_members(one)[1:] == [others] * 2 for one in peers[:-1])),
        ("members of the first", all(_members(one)[0] == everyone for one in peers)),
    ],
    "joining": lambda peers, everyone, others: [
        ("the newcomer takes part", all(_members(one)[-1] == everyone for one in peers)),
        ("the others went on while it fetched", _common(peers, peers[-1]["fetched"])),
    ],
    "late": lambda peers, everyone, others: [
        ("others went on", all(others in _members(one) for one in peers[:-1])),
        ("left behind", peers[-1]["left_behind"] >= 1 and peers[-1]["dropped"] >= 1),
        ("came again", all(everyone in _members(one) for one in peers)),
    ],
    "late counts": lambda peers, everyone, others: [
        ("others went on", all(others in _members(one) for one in peers[:-1])),
        ("left behind", peers[-1]["left_behind"] >= 1 and peers[-1]["dropped"] == 0),
        ("came again", _members(peers[-1])[-1] == everyone),
    ],
    "infinite": lambda peers, everyone, others: [
        ("members", all(_members(one) == [everyone] * 3 for one in peers)),
        ("returned", [one["returned"] for one in peers] == [0] * len(others) + [1]),
        ("same anchor", len({one["anchor"] for one in peers}) == 1),
    ],
    "storeless": lambda peers, everyone, others: [
        ("said", all("Start it again, and all peers with their saved states" in one["error"] for one in peers)),
        ("state is kept", all(one["state"][0] == one["outer_step"] >= 1 for one in peers)),
    ],
    "orphaned": lambda peers, everyone, others: [
        ("went on", all(one["outer_step"] > 1 and len(one["seen"]) == 3 for one in peers)),
    ],
    "decoupled": lambda peers, everyone, others: [
        ("none was dropped", all(one["dropped"] == 0 for one in peers)),
        ("the slow one counts", _members(peers[-1]) != [] and all(members for members in _members(peers[-1]))),
        ("each step is somebody's", _steps(peers) == list(range(1, max(_steps(peers)) + 1))),
    ],
    **dict.fromkeys(
        ("killed", "killed before", "stopped"),
        lambda peers, everyone, others: [("members", all(_members(one) == [everyone, others, others] for one in peers))],
    ),
}


def _steps(peers: list[dict[str, Any]]) -> list[int]:
    return sorted({step for one in peers for step, _, members in one["seen"] if members})


def _common(peers: list[dict[str, Any]], fetched: list[Any]) -> bool:
    """Return whether the fetched weights have the bits of the others', which have taken two outer steps since."""
    theirs = [{step: digest for step, digest, _ in one["seen"]} for one in peers[:-1]]
    mine = peers[-1]["seen"][0][0]
    return all(one.get(fetched[0]) == fetched[1] for one in theirs) and mine > fetched[0]


CASES: dict[str, Callable[[int, int, str], dict[str, Any]]] = {
    "together": together,
    "killed": killed,
    "killed before": partial(killed, where="attempt"),
    "stopped": partial(killed, how=signal.SIGSTOP),
    "suspended": suspended,
    "leaving": leaving,
    "joining": joining,
    "late": late,
    "late counts": partial(late, max_age=3),
    "infinite": infinite,
    "storeless": storeless,
    "orphaned": orphaned,
    "decoupled": decoupled,
}
