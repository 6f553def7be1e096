"""Exchanges in the background: in their order, each future with its buffer, and the first failure fails all after it."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.training.attach import exchange_thread
from paceline.training.attach.exchange_thread import Background, Exchanges, promise
from paceline.training.attach.liveness import LostRank
from paceline.training.exchanges.wires.collectives import WireError


class Owner:
    """Something that a thread must not keep."""


class AllAlive:
    """A roll of ranks that finds none of them lost."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def verdict(self, error: Exception) -> LostRank:
        return LostRank(f"asked of {self.group}: {error}")


def exchanges(monkeypatch: pytest.MonkeyPatch, ranks: int = 2) -> tuple[Exchanges, Any]:
    monkeypatch.setattr(exchange_thread, "Roll", AllAlive)
    wire: Any = SimpleNamespace(
        rank=0,
        world_size=ranks,
        group="a group",
        soundness=SimpleNamespace(sound=True),
        device=torch.device("cpu"),
        timeout_s=5.0,
    )
    return Exchanges(wire), wire


def submitted(work: Exchanges, task: Any) -> torch.Tensor:
    """The buffer that the future of ``task`` is given."""
    buffer = torch.ones(3)
    future = promise(buffer)
    work.submit(task, [(buffer, future)])
    future.wait()
    assert future.value() is buffer
    return buffer


def test_tasks_run_in_their_order_on_one_thread() -> None:
    owner, done, order = Owner(), threading.Event(), []
    background = Background(owner, "a thread")
    for number in range(20):
        background.submit(lambda number=number: order.append((number, threading.current_thread().name)))
    background.submit(done.set)
    assert done.wait(20) and order == [(number, "a thread") for number in range(20)]


def test_the_thread_ends_with_its_owner() -> None:
    owner, threads = Owner(), []
    ready = threading.Event()
    background = Background(owner, "a thread")
    background.submit(lambda: (threads.append(threading.current_thread()), ready.set()))
    assert ready.wait(20)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    threads[0].join(20)
    assert gone() is None and not threads[0].is_alive()


def test_an_exchange_writes_into_the_buffer_of_its_future(monkeypatch: pytest.MonkeyPatch) -> None:
    work, wire = exchanges(monkeypatch)
    buffer = torch.ones(3)
    future = promise(buffer)
    work.submit(lambda: buffer.mul_(2.0), [(buffer, future)])
    assert future.wait().tolist() == [2.0] * 3 and wire.soundness.sound
    work.check()


def test_nothing_refers_to_the_caller_once_its_future_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may be attached again as soon as its last exchange has ended and its hook is thrown away."""

    class Hook:
        def exchange(self) -> None:
            thrown_away.wait()

    work, _ = exchanges(monkeypatch)
    thrown_away, hook, buffer = threading.Event(), Hook(), torch.zeros(1)
    caller, done = weakref.ref(hook), promise(buffer)
    seen = done.then(lambda _: caller() is None)
    work.submit(partial(Hook.exchange, hook), [(buffer, done)])
    del hook
    thrown_away.set()
    assert seen.wait()


def test_the_first_that_fails_fails_all_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    work, wire = exchanges(monkeypatch)
    ran = []

    def fail() -> None:
        raise ZeroDivisionError("no")

    submitted(work, fail)
    submitted(work, lambda: ran.append(1))
    assert ran == [] and not wire.soundness.sound
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="no"):
            work.check()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_broken_link_is_asked_about_where_there_are_others(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = exchanges(monkeypatch, ranks)

    def fail() -> None:
        raise WireError("cut")

    submitted(work, fail)
    with pytest.raises(LostRank if ranks > 1 else WireError, match="asked of a group: cut" if ranks > 1 else "^cut$"):
        work.check()


def test_what_went_wrong_is_raised_at_the_end_of_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = exchanges(monkeypatch)

    def fail() -> None:
        raise ZeroDivisionError("in an exchange")

    weight = torch.ones(2, requires_grad=True)
    ended: list[list[float]] = []
    weight.register_hook(lambda gradient: work.after_backward(lambda: ended.append((weight.grad + 0).tolist())))
    (2 * weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0] and ended == [[2.0, 2.0]]
    submitted(work, fail)
    with pytest.raises(ZeroDivisionError, match="in an exchange"):
        (2 * weight).sum().backward()
    assert len(ended) == 1


def test_a_lost_rank_of_another_collective_fails_the_exchanges_and_the_first_error_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, wire = exchanges(monkeypatch)
    with work.naming():
        pass
    for told in ("cut", "later"):
        with pytest.raises(LostRank, match=r"^asked of a group: cut$"), work.naming():
            raise WireError(told)
    with pytest.raises(LostRank, match=r"^asked of a group: cut$"):
        work.check()
    assert not wire.soundness.sound


def test_another_error_of_the_caller_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = exchanges(monkeypatch)
    with pytest.raises(ZeroDivisionError), work.naming():
        raise ZeroDivisionError
    work.check()
