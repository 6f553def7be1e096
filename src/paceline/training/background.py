"""One thread beside the backward pass that runs what it is given, in order."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable

Job = Callable[[], None]


class Background:
    """Runs jobs one after another until its owner is gone.

    The thread knows only its queue, so a model that is thrown away takes its hook and its buffers with it. It is a daemon, so
    that a script can end although a lost peer keeps it waiting.
    """

    def __init__(self, owner: object, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True).start()
        weakref.finalize(owner, self._jobs.put, None)

    def submit(self, job: Job) -> None:
        """Run ``job`` when those before it are done."""
        self._jobs.put(job)


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it refers to the owner, which must not live until the next one
