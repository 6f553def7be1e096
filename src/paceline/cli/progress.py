"""Progress of a command that takes more than a moment, on stderr: a line that changes in a terminal, a new one elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
"""Function that receives a short message on the current work."""
PATIENCE_S = 1.0
"""Seconds after which the line appears."""
SELDOM_S = 10.0
"""Seconds between lines where stderr is not a terminal, such as a log."""


@contextmanager
def progress(title: str) -> Iterator[Say]:
    """Show a line with ``title``, the last message and the seconds, until the end; if stderr is no terminal, a new line every
    ``SELDOM_S`` seconds."""
    if not sys.stderr.isatty():
        yield _Log(title).say
        return
    line = _Line(title)
    timer = threading.Timer(PATIENCE_S, line.start)
    timer.daemon = True
    timer.start()
    try:
        yield line.say
    finally:
        timer.cancel()
        timer.join()
        line.stop()


class _Log:
    """Messages of long work, at intervals, one a line."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._start = self._last = clock()

    def say(self, words: str) -> None:
        now = self._clock()
        if now - self._last >= SELDOM_S:
            self._last = now
            print(f"{self._title}: {' '.join(words.split())} ({now - self._start:.0f} s)", file=sys.stderr, flush=True)


class _Line:
    """Status line of rich, which is imported when the line is first shown."""

    def __init__(self, title: str) -> None:
        self._title = self._text = title
        self._stop: Callable[[], None] = lambda: None
        self._update: Say = lambda text: None

    def say(self, words: str) -> None:
        self._text = f"{self._title}: {' '.join(words.split())}"
        self._update(self._text)

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
        task = bar.add_task(self._text, total=None)
        self._update = lambda text: bar.update(task, description=text)
        self._stop = bar.stop
        self._update(self._text)  # the last message before the start
        bar.start()

    def stop(self) -> None:
        self._stop()
