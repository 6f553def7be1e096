"""Progress of a training run for the user: a bar on a terminal, else one plain line per epoch. Only rank 0 shows it, on
stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.training.runs.training_run import TrainingRun


class Progress:
    """Progress display, which is silent on every rank but 0."""

    def __init__(self, rank: int, run: TrainingRun) -> None:
        self._quiet = rank != 0
        self._run = run

    def say(self, text: str) -> None:
        """Print a line about the current phase."""
        if not self._quiet:
            print(f"{self._run.label}: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def epochs(self, steps: int) -> Iterator[Callable[[int], None]]:
        """Yield a function to call after every step with its number within the epoch."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda number: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(self._run.label, total=steps)
            yield lambda number: bar.advance(task)

    def epoch_done(self, entry: Mapping[str, Any]) -> None:
        """Print the line of the epoch."""
        if self._quiet or (sys.stderr.isatty() and entry["epoch"] < self._run.epochs):
            return
        self.say(
            f"epoch {entry['epoch']:.0f}/{self._run.epochs}  loss {entry['loss']:.4f}  "
            f"accuracy {100 * entry['accuracy']:.2f} %  {entry['seconds']:.2f} s"
        )
