"""Daemon threads that end before the interpreter does.

A script can end although a lost peer keeps one waiting; but one that comes back from C++, or frees something of it, while the
interpreter is being taken down aborts the process, with exit code -6 after a run that went well.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

PATIENCE_S = 2.0
"""How long the interpreter's end waits for one that does not stop."""

_started: dict[threading.Thread, Callable[[], object]] = {}


def start(owner: object, target: Callable[..., object], args: tuple[Any, ...], name: str, stop: Callable[[], object]) -> None:
    """Run ``target`` on a thread until ``owner`` is gone or the interpreter ends.

    Args:
        args: of ``target``; nothing in them keeps the owner.
        stop: makes ``target`` return soon. It may be called twice, by the thread itself too, where that is the last to let
            go of the owner.
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
        thread.join(PATIENCE_S)
