"""Detection of lost ranks by heartbeats in the store, so that a lost one can be named after a failed exchange."""

from __future__ import annotations

import itertools
import os
import queue
import re
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from paceline.errors import LostRank, UserError
from paceline.training.attach import daemon_threads as daemons
from paceline.training.attach.waiting import slices
from paceline.training.exchanges.wires.collectives import WireError

BEAT_S = 1.0
PATIENCE_S = 4.0  # a rank whose beat stands still for so long is lost
SURE = 2  # beats that only a living rank sends
SETTLE_S = 0.2  # for a beat that was on its way when its rank ended
LINGER_S = 8.0  # how long rank 0 waits for the others to hear of it
ANSWER_S = 4.0  # the store's answers take no longer, else there is no way to it

_hooks = itertools.count()
_calls: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()
"""Number of calls of ``wait_for_all``, by group, equal on all its ranks."""
_LOSS = re.compile(r"gloo|NCCL|[Cc]onnection|[Tt]imed out|[Tt]imeout|socket", re.ASCII)


def wait_for_all(group: dist.ProcessGroup, what: str, timeout_s: float) -> None:
    """Wait for at most ``timeout_s`` until every rank of a group calls this. Collectives would wait as long as the group does.

    Args:
        what: name of the call in the error, such as ``attach``.

    Raises:
        UserError: a rank has not called, with its number.
    """
    ranks = dist.get_process_group_ranks(group)
    count = _calls[group] = _calls.get(group, 0) + 1
    store: Any = dist.distributed_c10d._get_default_store()
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"paceline/{what}/{restart}/{'-'.join(map(str, ranks))}/{group.group_name}/{count}"
    keys = {rank: f"{prefix}/{rank}" for rank in ranks}
    store.set(keys[dist.get_rank()], "1")
    try:
        store.wait(list(keys.values()), timedelta(seconds=timeout_s))
    except dist.DistError as error:
        absent = [str(rank) for rank, key in keys.items() if not store.check([key])]
        if not absent:
            return
        raise UserError(
            f"{what} was called on rank {dist.get_rank()}, and within {timeout_s:g} s not on rank {', '.join(absent)}",
            f"call {what} on every rank, or give a larger timeout_s",
        ) from error


class Roll:
    """Heartbeats of all ranks of a group, made by every rank of it at the same time. Ranks are named as in the whole job."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._rank, self._ranks = dist.get_rank(), dist.get_process_group_ranks(group)
        store: Any = dist.distributed_c10d._get_default_store()
        with suppress(AttributeError, RuntimeError):
            store = store.clone()  # a separate connection: the beat must not wait behind someone's blocking get
        self._store: Any = dist.distributed_c10d.PrefixStore(f"paceline/{_label(group)}", store)
        self._stop = threading.Event()
        if len(self._ranks) > 1:
            beat = (self._store, self._rank, self._stop)  # and not self: the beat ends with its hook
            daemons.start(self, _beat, beat, "paceline-beat", self._stop.set)

    def verdict(self, error: Exception) -> LostRank:
        """Return a LostRank with the ranks whose heartbeat has stopped. The first rank that detects it tells the others."""
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        # On a thread: over a link that is cut the store's operations wait for minutes.
        answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=lambda: answer.put(self._still()), name="paceline-verdict", daemon=True).start()
        lost = None
        for seconds in slices(SETTLE_S + 2 * PATIENCE_S + ANSWER_S):
            with suppress(queue.Empty):
                lost = answer.get(timeout=seconds)
                break
        if lost is None:
            return LostRank(f"the store on rank 0 does not answer: this rank's link is cut or rank 0 is lost ({why})")
        if not lost:
            cause = "a link is slow or cut, or the ranks did not run the same layers"
            return LostRank(f"the exchange failed though every rank is alive: {cause} ({why})")
        return LostRank(f"rank {lost} is lost: it was ended, it stands still, or its link is cut ({why})")

    def _still(self) -> str | None:
        """Return the ranks whose heartbeat has stopped, possibly none; None if the store does not answer."""
        try:
            if self._store.add("lost/told", 0):
                return self._shared_verdict(str(self._store.get("lost/ranks").decode()))
            time.sleep(SETTLE_S)
            beats = self._beats_within_patience([rank for rank in self._ranks if rank != self._rank])
            # A single one may be a dead rank's: over a link that is back, its host sends again what was on its way.
            silent = [rank for rank, count in beats.items() if count < SURE]
            if len(silent) > 1 or any(beats[rank] for rank in silent):  # one may be alive, and slow
                beats |= {rank: beats[rank] + count for rank, count in self._beats_within_patience(silent).items()}
            lost = ", ".join(str(rank) for rank, count in beats.items() if count < SURE)
            self._store.set("lost/ranks", lost)
            self._store.add("lost/told", 1)
            return self._shared_verdict(lost)
        except Exception:
            return None

    def _beats_within_patience(self, ranks: list[int]) -> dict[int, int]:
        before = [self._store.add(f"beat/{rank}", 0) for rank in ranks]
        for seconds in slices(PATIENCE_S):
            time.sleep(seconds)
        return {rank: self._store.add(f"beat/{rank}", 0) - count for rank, count in zip(ranks, before, strict=True)}

    def _shared_verdict(self, lost: str) -> str:
        """Return the verdict after all ranks have it, because rank 0 may host the store and end after this."""
        self._store.add("lost/heard", 1)
        alive = len(self._ranks) - len(lost.split(", ") if lost else ())
        for seconds in slices(LINGER_S if dist.get_rank() == 0 else 0.0):
            if self._store.add("lost/heard", 0) >= alive:
                break
            time.sleep(seconds)
        return lost


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """Convert errors of collectives in this block, over any group, to a LostRank that names the rank. Every rank must enter the
    block."""
    roll = Roll(dist.distributed_c10d._get_default_group()) if dist.get_world_size() > 1 else None
    try:
        yield
    except Exception as error:
        has_name = isinstance(error, LostRank) and not isinstance(error, WireError)
        if roll is None or has_name or not tells_of_a_loss(error):
            raise
        raise roll.verdict(error) from error


def tells_of_a_loss(error: Exception) -> bool:
    """Return whether an error means a lost peer; gloo raises plain RuntimeErrors."""
    if isinstance(error, LostRank | dist.DistError):
        return True
    return type(error) is RuntimeError and bool(_LOSS.search(str(error)))


def _label(group: dist.ProcessGroup) -> str:
    """Return a name that no other hook in the store has, equal on every rank, chosen by the group's first rank.

    Counts of hooks or restarts would not do, since ranks may have taken part in different numbers of them.
    """
    mine = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{dist.get_rank()}-{next(_hooks)}"
    labels = [""] * dist.get_world_size(group)
    dist.all_gather_object(labels, mine, group=group)
    return labels[0]


def _beat(store: Any, rank: int, stop: threading.Event) -> None:
    try:
        while not stop.wait(BEAT_S if store.add(f"beat/{rank}", 1) else 0):
            pass
    except Exception:  # the store has gone, and with it whoever would read this
        return
