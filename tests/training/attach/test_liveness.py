"""A rank that is killed or cut off in the middle of an exchange: the others end soon, and say who it was."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import Outcome, launch, launch_and_let_fail
from paceline.errors import UserError
from paceline.training.attach import liveness, waiting
from paceline.training.attach.attach import attach
from paceline.training.exchanges.streams import encoded_streams as streams

STEP, LIMIT_S = 3, 30


def vanish(rank: int, workers: int, way: str, compression: str, how: int, lost: int, timeout_s: float) -> None:
    """Train; in one step a rank gets the signal ``how`` after its first messages have left, before the exchange is done."""
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 8)))
    hook = attach(model, compression, exchange=way, timeout_s=timeout_s)
    encode = streams.CodecStream.encode
    calls = 0

    def encode_and_vanish(self: Any, *args: Any, **more: Any) -> torch.Tensor:
        nonlocal calls
        calls += hook.step == STEP
        if rank == lost and calls == 2:
            os.kill(os.getpid(), how)
        return encode(self, *args, **more)

    streams.CodecStream.encode = encode_and_vanish  # type: ignore[method-assign]
    for _ in range(20):
        model(torch.randn(6, 100)).square().mean().backward()


def check(outcomes: list[Outcome], lost: int, says: str) -> None:
    lines = [f"--- rank {rank}: {one.code} after {one.seconds:.1f} s\n{one.said}" for rank, one in enumerate(outcomes)]
    everything = "\n".join(lines)
    for rank, one in enumerate(outcomes):
        if rank != lost:
            assert one.code == 1 and one.seconds < LIMIT_S, everything
            raised = one.said[one.said.rindex("Traceback") :]
            assert f"LostRank: {says}" in raised, everything


@pytest.mark.long
@pytest.mark.parametrize("way", ["ring", "sharded"])
def test_every_survivor_names_the_killed_rank_within_30_s(way):
    outcomes = launch_and_let_fail(vanish, 4, way=way, compression="topk", how=int(signal.SIGKILL), lost=2, timeout_s=1800)
    assert outcomes[2].code == -signal.SIGKILL
    check(outcomes, 2, "rank 2 is lost")


def test_rank_0_is_named_though_it_kept_the_store():
    outcomes = launch_and_let_fail(
        vanish, 3, way="sharded", compression="terngrad", how=int(signal.SIGKILL), lost=0, timeout_s=1800, tcp=True
    )
    assert outcomes[0].code == -signal.SIGKILL
    check(outcomes, 0, "the store on rank 0 does not answer: this rank's link is cut or rank 0 is lost")


def test_a_rank_that_does_not_answer_is_named_when_the_time_is_up():
    # Stopped, not ended: its connections stay open, as those of a machine whose link was cut.
    outcomes = launch_and_let_fail(vanish, 3, way="ring", compression="topk", how=int(signal.SIGSTOP), lost=1, timeout_s=8)
    assert outcomes[1].code == -signal.SIGKILL  # by the test, in the end
    check(outcomes, 1, "rank 1 is lost")


def labels(rank: int, workers: int) -> list[str]:
    """Ranks 1 and 2 have a hook more than rank 0, and rank 2 was restarted once."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(int(rank == 2))
    two = dist.new_group([1, 2])
    made = [liveness._label(two)] if rank else []
    return made + [liveness._label(dist.group.WORLD) for _ in range(2)]


def test_hooks_of_equal_models_have_labels_of_their_own_alike_on_every_rank():
    zero, one, two = launch(labels, 3)
    assert one == two and one[1:] == zero and len(set(one)) == 3


def beats_during_a_verdict(rank: int, workers: int) -> list[str]:
    """Return what a verdict says of two other ranks whose beats arrive while it sleeps."""
    said = []
    patience = round(liveness.PATIENCE_S / waiting.SLICE_S)
    for arriving in (
        {1: [0]},  # on its way when the rank ended
        {1: [1, 11], 2: [1, 11, 21]},
        {1: [1], 2: [patience + 5, patience + 15]},  # the machine of one that lives stood still
        {1: [patience + 5], 2: [1, 11]},
        {2: [1, patience + 11], 1: [2, patience + 12]},
    ):
        roll = liveness.Roll(dist.group.WORLD)
        roll._ranks = [0, 1, 2]
        sleeps = count()

        def sleep(seconds: float, roll: liveness.Roll = roll, sleeps: Any = sleeps, arriving: Any = arriving) -> None:
            now = next(sleeps)
            for other, times in arriving.items():
                roll._store.add(f"beat/{other}", times.count(now))

        liveness.time = SimpleNamespace(sleep=sleep)
        said.append(str(roll.verdict(RuntimeError("cut"))))
    return said


def test_a_rank_is_lost_unless_two_beats_of_it_arrive() -> None:
    """Over a link that was cut and is back, one of a dead rank comes late; a slow rank beats late."""
    lost = "rank {} is lost: it was ended, it stands still, or its link is cut (cut)".format
    alive = (
        "the exchange failed though every rank is alive: a link is slow or cut, or the ranks did not run the same layers (cut)"
    )
    assert launch(beats_during_a_verdict, 1)[0] == [lost("1, 2"), alive, lost("1"), lost("1"), alive]


def of_a_part(rank: int, workers: int) -> None:
    """Ranks 1 and 2 watch each other, and 2 is killed."""
    part = dist.new_group([1, 2])
    if rank:
        roll = liveness.Roll(part)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(torch.zeros(1), group=part)  # fails when rank 2 has ended, and not before
        except RuntimeError as error:
            print(roll.verdict(error))


def test_a_rank_of_a_part_of_the_job_is_named_as_in_the_whole():
    outcomes = launch_and_let_fail(of_a_part, 3)
    assert "rank 2 is lost: it was ended, it stands still, or its link is cut (" in outcomes[1].said


class _Keys:
    """A store with the keys that some ranks have set, as ``wait_for_all`` uses it."""

    def __init__(self, *ranks: int) -> None:
        self._ranks, self.waited = ranks, 0.0

    def set(self, key: str, value: str) -> None:
        assert key.endswith("/0")

    def check(self, keys: list[str]) -> bool:
        return all(int(key.rpartition("/")[2]) in self._ranks for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waited = timeout.total_seconds()
        if not self.check(keys):
            raise dist.DistStoreError("wait timeout")


@pytest.mark.parametrize("ranks", [(0,), (0, 2), (0, 1, 2)])
def test_a_rank_that_does_not_attach_is_named_within_the_time_limit(ranks: tuple[int, ...], monkeypatch: Any) -> None:
    class Group:
        group_name = "0"

    keys: Any = _Keys(*ranks)
    monkeypatch.setattr(liveness.dist, "get_process_group_ranks", lambda group: [0, 1, 2])
    monkeypatch.setattr(liveness.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(liveness.dist.distributed_c10d, "_get_default_store", lambda: keys)
    group: Any = Group()
    if ranks == (0, 1, 2):
        liveness.wait_for_all(group, "attach", 7)
    else:
        absent = "1, 2" if ranks == (0,) else "1"
        with pytest.raises(
            UserError, match=f"attach was called on rank 0, and within 7 s not on rank {absent}; call attach on"
        ):
            liveness.wait_for_all(group, "attach", 7)
    assert keys.waited == 7


def alone(rank: int, workers: int) -> tuple[str, float]:
    """Rank 0 attaches alone."""
    model, start = DDP(nn.Linear(4, 4)), time.monotonic()
    if rank == 0:
        try:
            attach(model, "int8", timeout_s=1)
        except UserError as error:
            return str(error), time.monotonic() - start
    return "", 0.0


@pytest.mark.long
def test_attach_on_one_rank_alone_ends() -> None:
    (told, seconds), _ = launch(alone, 2)
    assert told.startswith("attach was called on rank 0, and within 1 s not on rank 1")
    assert seconds < 120  # and not the group's half an hour
