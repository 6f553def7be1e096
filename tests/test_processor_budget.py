"""The account of processor time, and the budgets of directories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_python
from processor_budget import COLLECTION, Budgets, ProcessorBudget, by_directory, directory, over_budget

BUDGETS = Budgets.read()
TESTS = Path(__file__).parent
BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_every_directory_of_tests_has_a_budget_and_no_other() -> None:
    files = [str(path.relative_to(TESTS.parent)) for path in TESTS.rglob("test_*.py")]
    assert {directory(file) for file in [*files, COLLECTION]} == BUDGETS.seconds.keys()


def test_the_sum_of_the_budgets_is_at_most_eight_minutes() -> None:
    """A test that needs more takes it from another."""
    assert sum(BUDGETS.seconds.values()) <= 480 and BUDGETS.margin <= 1.5


def test_a_directory_fails_beyond_its_margin_alone() -> None:
    budgets = Budgets(1.5, 0.01, {"codecs": 10.0, "(top)": 2.0})
    files = {"tests/codecs/test_a.py": 9.0, "tests/codecs/deep/test_b.py": 5.9, "tests/test_c.py": 2.9}
    assert by_directory(files) == {"codecs": 14.9, "(top)": 2.9} and over_budget(files, budgets) == []
    (line,) = over_budget({**files, "tests/codecs/test_d.py": 0.2}, budgets)
    assert line.startswith("codecs uses 15.1 s") and "10.0 s" in line
    (line,) = over_budget({"tests/new/test_e.py": 0.1}, budgets)  # a directory without a budget
    assert line.startswith("new ")


@pytest.mark.parametrize("warm", [False, True])
def test_time_of_programs_and_of_warm_programs_counts(warm: bool, request: pytest.FixtureRequest) -> None:
    (account,) = (plugin for plugin in request.config.pluginmanager.get_plugins() if isinstance(plugin, ProcessorBudget))
    before = account.processor_s()
    python = warm_python.executable() if warm else sys.executable
    subprocess.run([python, "-c", BUSY], check=True, timeout=200, env=warm_python.ENVIRONMENT)
    assert account.processor_s() - before > 0.25
    assert os.environ["PACELINE_TEST_LEDGER"] == str(account.ledger)


def test_a_run_of_its_own_fails_beyond_its_budget_and_prints_the_table(tmp_path: Path) -> None:
    """The plugin in a session with one file, whose directory has no budget."""
    (tmp_path / "conftest.py").write_text(
        "from processor_budget import ProcessorBudget\n"
        "def pytest_addoption(parser): parser.addini('everyday', '')\n"
        "def pytest_configure(config): config.pluginmanager.register(ProcessorBudget(config))\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\neveryday = not full\n")
    (tmp_path / "dear").mkdir()
    (tmp_path / "dear" / "test_it.py").write_text("def test_it(): assert sum(range(1_000_000))\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**warm_python.ENVIRONMENT, "PYTEST_ADDOPTS": ""}
    codes = [
        subprocess.run([*command, *more], env=environment, cwd=tmp_path, capture_output=True, timeout=200).returncode
        for more in (["-m", "not full"], ["-m", "not long"])
    ]
    assert codes == [pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK]
