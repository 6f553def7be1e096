"""Processor seconds of every test file and directory, against the budgets of ``budget.toml``.

Each process that runs tests adds up what its tests use: its own time, that of the programs which they started, and that of
programs in the warm Python, which reports it in a ledger. The first process sums, prints a table and fails the run where a
directory uses more than its budget by a wide margin. Machines differ, so seconds are scaled by a fixed piece of work that
is timed between the tests: a budget holds on a slow machine and on a fast one.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import warm_python

__all__ = ["LEDGER", "TABLE", "Budgets", "ProcessorBudget", "directory", "over_budget", "slowness", "unit_of_work"]

TABLE = Path(__file__).with_name("budget.toml")
LEDGER = "PACELINE_TEST_LEDGER"
"""Environment variable with the path of a file to which the warm Python adds the processor seconds of each ended program."""
COLLECTION = "(collection)"
"""The row of imports and collection, of all processes together."""
EVERY = 4.0
"""Processor seconds between two timings of the unit of work."""


class Budgets(NamedTuple):
    """Budgets of a run of the everyday tests.

    Attributes:
        margin: a directory fails beyond this multiple of its budget.
        unit_s: seconds of ``unit_of_work`` on the machine of the budgets.
        seconds: the budget of each directory.
    """

    margin: float
    unit_s: float
    seconds: Mapping[str, float]

    @staticmethod
    def read(path: Path = TABLE) -> Budgets:
        """Read the table."""
        table = tomllib.loads(path.read_text())
        return Budgets(table["margin"], table["unit_s"], table["directories"])


def directory(file: str) -> str:
    """Return the row of a test file: ``tests/planning/search/test_x.py`` belongs to ``planning``."""
    parts = Path(file).parts[1:] if file.startswith("tests/") else Path(file).parts
    return parts[0] if len(parts) > 1 or file == COLLECTION else "(top)"


def by_directory(files: Mapping[str, float]) -> Counter[str]:
    """Sum the seconds of files by directory."""
    sums: Counter[str] = Counter()
    for file, seconds in files.items():
        sums[directory(file)] += seconds
    return sums


def over_budget(files: Mapping[str, float], budgets: Budgets) -> list[str]:
    """Name each directory beyond its margin. ``files``: scaled processor seconds."""
    sums = by_directory(files)
    return [
        f"{name} uses {seconds:.1f} s of processor time, its budget is {budgets.seconds.get(name, 0):.1f} s"
        for name, seconds in sorted(sums.items())
        if seconds > budgets.margin * budgets.seconds.get(name, 0)
    ]


def unit_of_work() -> float:
    """Run a fixed loop and return its processor seconds."""
    start = time.process_time()
    total = 0
    for number in range(50_000):
        total += number * number % 7
    return time.process_time() - start


def slowness() -> float:
    """Return how many times as long as the machine of the budgets this one takes now."""
    return min(unit_of_work() for _ in range(3)) / Budgets.read().unit_s


class ProcessorBudget:
    """The plugin: one in each process that runs tests, and one in the process that starts them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.worker: dict[str, Any] | None = getattr(config, "workeroutput", None)
        self.files: Counter[str] = Counter()
        self.units: list[float] = []
        self.next_unit = 0.0
        handle, name = tempfile.mkstemp(prefix="ledger-")
        os.close(handle)
        self.ledger = Path(name)
        os.environ[LEDGER] = warm_python.ENVIRONMENT[LEDGER] = name

    def processor_s(self) -> float:
        """Return the processor seconds of this process, its ended children and its ended warm programs."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used) + sum(map(float, self.ledger.read_text().split()))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Add what a test uses, its fixtures included, to its file."""
        start = self.processor_s()
        try:
            return (yield)
        finally:
            end = self.processor_s()
            self.files[item.nodeid.partition("::")[0]] += end - start
            if record := os.environ.get("PROCESSOR_SECONDS"):  # a folder: one line for each test
                with Path(record, str(os.getpid())).open("a") as lines:
                    print(json.dumps([item.nodeid, round(end - start, 3)]), file=lines)
            if end > self.next_unit:
                self.units.append(unit_of_work())
                self.next_unit = end + EVERY

    def pytest_collection_finish(self) -> None:
        """Processor seconds before the first test."""
        self.files[COLLECTION] += self.processor_s()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the sums to the first process, or judge them there."""
        self.ledger.unlink(missing_ok=True)
        if self.worker is not None:
            self.worker["processor_s"] = dict(self.files), self.units
        elif self.everyday() and over_budget(self.scaled(), Budgets.read()) and not session.testsfailed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the sums of a process of ``pytest -n``."""
        files, units = getattr(node, "workeroutput", {}).get("processor_s", ({}, []))
        self.files.update(files)
        self.units += units

    def everyday(self) -> bool:
        """Return whether these are the tests of every day, for which the budgets are."""
        return self.config.option.markexpr == self.config.getini("everyday") and bool(self.units)

    def scaled(self) -> dict[str, float]:
        """Seconds as on the machine of the budgets."""
        scale = Budgets.read().unit_s / statistics.median(self.units)
        return {file: seconds * scale for file, seconds in self.files.items()}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print directories against their budgets and the slowest files."""
        if not self.everyday() or len(self.files) < 20:
            return
        budgets, files = Budgets.read(), self.scaled()
        write = terminalreporter.write_line
        terminalreporter.section("processor seconds")
        scale = budgets.unit_s / statistics.median(self.units)
        write(
            f"{sum(files.values()):.0f} s in all; measured {sum(self.files.values()):.0f} s times {scale:.2f}, the unit of work"
        )
        write("seconds  budget  directory")
        for name, seconds in by_directory(files).most_common():
            write(f"{seconds:7.1f} {budgets.seconds.get(name, 0):7.1f}  {name}")
        write("the ten slowest files:")
        for file, seconds in Counter(files).most_common(11):
            if file != COLLECTION:
                write(f"{seconds:7.1f}  {file}")
        for line in over_budget(files, budgets):
            write(f"FAILED: {line}; docs/testing.md says what to do", red=True)
