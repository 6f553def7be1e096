"""What a command is doing, on stderr, where somebody watches and it takes more than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
"""Called with a few words on what is done now."""
PATIENCE_S = 1.0
"""Seconds after which the line appears."""


@contextmanager
def progress(title: str) -> Iterator[Say]:
    """A line with ``title``, the last words and the seconds; it vanishes at the end. Nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda words: None
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


class _Line:
    """Rich's line, which is imported when the line is shown."""

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
        self._update(self._text)  # what was said meanwhile
        bar.start()

    def stop(self) -> None:
        self._stop()
