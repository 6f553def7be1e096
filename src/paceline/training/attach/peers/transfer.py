"""Transfer of the shared weights from one peer to another, in the background of the one that gives them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from paceline.errors import LostRank
from paceline.training.attach import daemon_threads
from paceline.training.attach.peers.peer_groups import PeerGroup
from paceline.training.attach.peers.peer_store import POLL_S, PeerStore
from paceline.training.attach.peers.shared_weights import SharedWeights

T = TypeVar("T")


class PeerCall(threading.Thread):
    """Call on a daemon thread, which its owner may abandon when a peer is lost.

    Attributes:
        result: what it returned. ``error``: what it raised.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="paceline-peers", daemon=True)
        self.result: Any = None
        self.error: Exception | None = None
        self._call: Callable[[], Any] | None = call
        self.start()

    def run(self) -> None:
        """Make the call."""
        assert self._call is not None
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error.with_traceback(None)  # its frames would keep the process group
        self._call = None


def serve(meeting: PeerStore, shared: SharedWeights, timeout_s: float) -> None:
    """Give snapshots of the shared weights to peers that ask for them, on a thread, until ``meeting`` is deleted."""
    stop = threading.Event()
    asked = (meeting.store.clone(), meeting.number, meeting.wanted, shared, timeout_s, stop)
    daemon_threads.start(meeting, _serve, asked, "paceline-peer-serve", stop.set)


def _serve(
    store: Any, own: int, wanted: queue.SimpleQueue[int], shared: SharedWeights, timeout_s: float, stop: threading.Event
) -> None:
    while not stop.is_set():
        try:
            request = wanted.get(timeout=0.1)
        except queue.Empty:
            continue
        PeerCall(partial(_give, store.clone(), own, request, shared, timeout_s))  # a slow one does not keep others waiting


def _give(store: Any, own: int, request: int, shared: SharedWeights, timeout_s: float) -> None:
    """Send a snapshot. An error is of the one that asked, which notices it too."""
    key = f"give/{own}/{request}"
    asker = int(store.get(f"{key}/asker").decode())
    pair = PeerGroup(store, key, (own, asker), own, timeout_s)
    for part in shared.snapshot():
        if part.numel():
            pair.group.send([part], 1, 0).wait()


def fetch(meeting: PeerStore, holder: int, shared: SharedWeights, timeout_s: float) -> list[torch.Tensor]:
    """Return a snapshot of the shared weights of another peer. Raises LostRank if that peer is lost."""
    request = int(meeting.store.add(f"requests/{holder}", 1))
    key = f"give/{holder}/{request}"
    meeting.store.set(f"{key}/asker", str(meeting.number))
    meeting.store.add(f"wants/{holder}", 1)
    own, store = meeting.number, meeting.store.clone()

    def receive() -> list[torch.Tensor]:
        pair, parts = PeerGroup(store, key, (holder, own), own, timeout_s), shared.room()
        for part in parts:
            if part.numel():
                pair.group.recv([part], 0, 0).wait()
        return parts

    task = PeerCall(receive)
    while task.is_alive():
        meeting.check()
        if not meeting.lives(holder):
            raise LostRank(f"peer {meeting.named([holder])} is lost, which gave the shared weights")
        time.sleep(POLL_S)
    if task.error is not None:
        raise LostRank(f"the shared weights did not come from peer {meeting.named([holder])}: {task.error}")
    parts: list[torch.Tensor] = task.result
    return parts
