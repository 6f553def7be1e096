"""Daemon threads that end before the interpreter.

A daemon thread lets a script end although the thread waits for a lost peer. But a thread that returns from C++, or frees C++
objects, during the interpreter's shutdown aborts the process with exit code -6.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

from paceline.training.attach.waiting import slices

PATIENCE_S = 2.0
"""How long the interpreter's end waits for one that does not stop."""

_started: dict[threading.Thread, Callable[[], object]] = {}


def start(owner: object, target: Callable[..., object], args: tuple[Any, ...], name: str, stop: Callable[[], object]) -> None:
    """Run ``target`` on a thread until ``owner`` is deleted or the interpreter ends.

    Args:
        args: arguments of ``target``, which must not refer to the owner.
        stop: makes ``target`` return soon. It may be called twice, also by the thread itself if that held the last reference to
            the owner.
    """
    for ended in [thread for thread in _started if not thread.is_alive()]:
        del _started[ended]
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    _started[thread] = stop
    weakref.finalize(owner, stop).atexit = False  # then below


@atexit.register
def _end_all() -> None:
    for stop in _started.values():
        stop()
    for thread in _started:
        for seconds in slices(PATIENCE_S):
            thread.join(seconds)
            if not thread.is_alive():
                break
