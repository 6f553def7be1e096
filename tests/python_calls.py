"""How much a program does, as the calls that a fresh Python makes: the same number on a busy machine, unlike its time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Work", "work_of"]

_COUNT = """
import sys
calls = 0
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
try:
    exec(sys.argv[1], {})
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
print(calls, *sys.modules, file=sys.stderr)
"""


class Work(NamedTuple):
    """What a program did.

    Attributes:
        calls: of Python's and of C's functions, those of imports too; what C does within one call is not seen.
        modules: that are loaded at its end.
    """

    calls: int
    modules: frozenset[str]


def work_of(program: str, *options: str, environment: Mapping[str, str] | None = None) -> Work:
    """Run statements in a fresh Python, started with ``options``, that end well.

    Raises:
        AssertionError: they raise, or exit with another code than 0.
    """
    command = [sys.executable, *options, "-c", _COUNT, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    calls, *modules = done.stderr.splitlines()[-1].split()
    return Work(int(calls), frozenset(modules))
