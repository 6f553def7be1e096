"""Proofs about the engine with Amaranth's assertions, Yosys and a solver.

A property is a module with ``Assert`` and ``Assume`` around blocks of the engine. Amaranth writes it as RTLIL, Yosys turns it
into a transition system, and a solver looks for a run that breaks an assertion. Three methods:

- ``bounded``: no run of so many cycles from reset breaks it (yosys-smtbmc with z3 or cvc5, or ABC's bmc3);
- ``induction``: additionally, no run of so many good cycles from any state is followed by a bad one: it always holds;
- ``reachability``: ABC's pdr finds an invariant of the reachable states: it always holds;
- ``combinational``: of a design without registers, ABC merges equal nodes and proves that no input breaks it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.nic.programs import program

Method = Literal["bounded", "induction", "reachability", "combinational"]
Solver = Literal["z3", "cvc5", "abc"]

_PREPARE = "read_rtlil design.il\nprep -top top\nflatten\nmemory_map\nasync2sync\ndffunmap\nopt_clean\n"
_AIGER = (
    "setundef -undriven -zero\nopt -full\ntechmap\nopt -fast\ndffunmap\nabc -g AND -fast\nopt_clean\n"
    "write_aiger -I -B -zinit -no-startoffset design.aig\n"
)

_ABC: Mapping[Method, tuple[str, str, str]] = {
    "bounded": ("fold; strash; bmc3 -F {depth}", "No output", "was asserted in frame"),
    "reachability": ("fold; strash; {merge}pdr", "Property proved", "was asserted in frame"),
    "combinational": ("strash; dc2; fraig; orpos; sat -C 0", "UNSATISFIABLE", "\nSATISFIABLE"),
}
"""Commands to ABC, its answer for a property that holds, and for one that does not."""


@dataclass(frozen=True)
class Proof:
    """Result of a solver for one property.

    Args:
        scope: for which inputs and which width of the design.
        depth: cycles of a bounded proof or of the induction; 0 for other methods.
        outcome: ``proved``, ``refuted`` or ``undecided``.
    """

    name: str
    scope: str
    method: Method
    depth: int
    solver: Solver
    seconds: float
    outcome: Literal["proved", "refuted", "undecided"]

    @property
    def proved(self) -> bool:
        """True if the solver proved the property."""
        return self.outcome == "proved"


def programs(solver: Solver) -> tuple[str, ...]:
    """Return the programs that a proof with this solver needs."""
    return ("yosys", "yosys-abc") if solver == "abc" else ("yosys", "yosys-smtbmc", solver)


def prove(
    name: str,
    design: Any,
    *,
    scope: str,
    method: Method,
    depth: int = 0,
    solver: Solver = "z3",
    seconds: float = 240,
    merge: bool = False,
) -> Proof:
    """Try to prove every assertion of ``design``, an Amaranth module without ports.

    Args:
        seconds: time limit of the solver; then the outcome is undecided.
        merge: for ``reachability``: equal registers become one before the search, which costs time in a large design.

    Raises:
        UserError: a program is missing.
    """
    for name_of_program in programs(solver):
        program(name_of_program)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "design.il").write_text(_rtlil(design))
        script = _PREPARE + (_AIGER if solver == "abc" else "write_smt2 -wires design.smt2\n")
        (work / "prepare.ys").write_text(script)
        _run(["yosys", "-q", "prepare.ys"], work, seconds, check=True)
        outcome = _solve(work, method, depth, solver, seconds, merge)
    return Proof(name, scope, method, depth, solver, time.perf_counter() - begin, outcome)


def _rtlil(design: Any) -> str:
    """Convert the design to RTLIL for Yosys from 0.9 on: one cell per assertion or assumption instead of ``$check``."""
    from amaranth.back import rtlil

    return re.sub(r"cell \$check (\S+)\n.*?\n  end", _plain_cell, rtlil.convert(design, ports=[]), flags=re.DOTALL)


def _plain_cell(found: re.Match[str]) -> str:
    body = found.group(0)
    flavor, condition, enable = (
        _group(pattern, body) for pattern in (r'\\FLAVOR "(\w+)"', r"connect \\A (.*)", r"connect \\EN (.*)")
    )
    return f"cell ${flavor} {found.group(1)}\n    connect \\A {condition}\n    connect \\EN {enable}\n  end"


def _group(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, pattern
    return found.group(1)


def _solve(
    work: Path, method: Method, depth: int, solver: Solver, seconds: float, merge: bool
) -> Literal["proved", "refuted", "undecided"]:
    if solver == "abc":
        engine, good, bad = _ABC[method]
        said = _run(
            [
                "yosys-abc",
                "-c",
                f"read_aiger design.aig; {engine.format(depth=depth, merge='scorr; dc2; scorr; ' if merge else '')}",
            ],
            work,
            seconds,
        )
        if bad in said:
            return "refuted"
        return "proved" if good in said else "undecided"
    smtbmc = ["yosys-smtbmc", "-s", solver, "--presat", "-t", str(depth)]
    said = _run([*smtbmc, "design.smt2"], work, seconds)
    if method == "induction" and "Status: PASSED" in said:
        again = _run([*smtbmc, "-i", "design.smt2"], work, seconds)
        return "proved" if "Status: PASSED" in again else "undecided"
    return "proved" if "Status: PASSED" in said else "refuted" if "Status: FAILED" in said else "undecided"


def _run(command: list[str], work: Path, seconds: float, check: bool = False) -> str:
    """Return a program's output up to its end or the limit. Its child processes end with it: yosys-smtbmc starts a solver."""
    with (work / "said.txt").open("w+") as said:
        started = subprocess.Popen(command, cwd=work, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = started.wait(seconds)
        except subprocess.TimeoutExpired:
            code = 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        said.seek(0)
        text = said.read()
    if check and code:
        raise RuntimeError(f"{command[0]} stopped with {code}: {text.strip()[-400:]}")
    return text
