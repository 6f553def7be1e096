"""Fixtures: a run directory with the two runs of the demonstration; which tests do not run beside each other."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import samples
import warm_python
from everyday import mark_the_rest_full
from paceline.rundir import RunDir
from processor_budget import LEDGER, ProcessorBudget

# No test asserts an absolute time, hypothesis neither: a busy machine makes examples slowly. What CI runs takes the same
# examples every time, so that one commit has one outcome; `make test-all` looks for others.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("all"), derandomize=True)
settings.register_profile("paceline", settings.get_profile("full"), max_examples=20)

# Collection makes a million objects and drops hardly any: a search for garbage would find none.
gc.disable()

# A shell that starts a job in the background has it ignore them; what is started from here is to be told to end.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)

# They build networks, time something or write where others do: one after another, beside the rest.
_IN_A_ROW = (
    "lab/",
    "cli/test_lab",
    "hardware/",
    "training/test_lab",
    *(f"training/attach/test_{name}" for name in ("consistency", "liveness")),
)


# Next to those the longest, so that at the end no worker has to wait for another's.
_LONG = ("test_docs", "test_bench", "training/", "workload/", "planning/", "codecs/")


def _group(nodeid: str) -> str:
    return _place(nodeid.partition("::")[0])[1]


@functools.cache
def _place(file: str) -> tuple[int, str, str]:
    """Place of a test file: the number of its kind, the group of tests that one worker runs, and its path."""
    path = file.removeprefix("tests/")
    group = "in a row" if path.startswith(_IN_A_ROW) else path
    first = ["in a row", *_LONG]
    return next((number for number, name in enumerate(first) if group.startswith(name)), len(first)), group, path


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Workers begin in different folders, so that a module which one of them has compiled is only read by the others."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    tests = Path(__file__).parent
    if worker and [Path(arg).resolve() for arg in session.config.args] == [tests]:
        parts = sorted({*tests.glob("test_*.py"), *(path for path in tests.iterdir() if any(path.glob("**/test_*.py")))})
        first = len(parts) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        session.config.args[:] = map(str, parts[first:] + parts[:first])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By name, but the longest groups first; before marks select, the cases that do not run every day get theirs."""
    if unknown := mark_the_rest_full(items):
        raise pytest.UsageError(f"everyday() names no case of its test: {', '.join(unknown)}")

    def place(item: pytest.Item) -> tuple[int, str]:
        number, _, path = _place(item.nodeid.partition("::")[0])
        return number, path

    items.sort(key=place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("everyday", "the expression of marks of the tests of every day, which have budgets")


def pytest_configure(config: pytest.Config) -> None:
    """With the cases that are marked ``full`` go more examples; a test may take a multiple of ``settings.default``."""
    everyday = config.getini("everyday")
    settings.load_profile(
        {everyday: "paceline", "long and not full": "paceline", "full": "full"}.get(config.option.markexpr, "all")
    )
    config.pluginmanager.register(ProcessorBudget(config))
    if sys.executable == os.environ.get(warm_python.SHARED):  # a worker; what its tests start is a fresh Python
        sys.executable = sys.orig_argv[0]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers of ``pytest -n`` are programs of the warm Python: torch and the rest are imported once for all of them."""
    option = session.config.option
    if getattr(option, "tx", None) and not hasattr(session.config, "workerinput"):
        command = os.environ[warm_python.SHARED] = warm_python.start()  # its workers inherit it
        os.environ.pop(LEDGER)  # they count their own time
        option.tx = [f"popen//python={command}" if spec == "popen" else spec for spec in option.tx]


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end; every later search for garbage leaves it out."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of ``pytest -n``: those in a row go to one worker, and each other file to one, so that its fixtures are made once."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the test or Paceline starts with ``sys.executable`` have torch imported already."""
    monkeypatch.setattr(sys, "executable", warm_python.executable())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Messages that are logged during the test."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield messages
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run")
    for label in ("dense", "terngrad"):
        directory.write_prediction(label, samples.metrics(label))
        directory.add_record(label, samples.record(label))
    return directory
