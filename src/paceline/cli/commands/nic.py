"""``paceline nic``: check, measure and write as Verilog the engine of a network card that compresses."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading
from paceline.units import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.nic.area import Cells, Clock
    from paceline.nic.formal import Proof
    from paceline.nic.tally import Verified

EXAMPLE = """example:
  paceline nic verify"""
VERIFY = "example:\n  paceline nic verify --values 100000"
AREA = "example:\n  paceline nic area --family ice40 --no-clock"
EMIT = "example:\n  paceline nic emit --out build/verilog"
ENGINE = "example:\n  paceline nic engine"
VALUES = 1_000_000
_GOLDEN, _RANDOM, _SUMS, _DAMAGE = (f"ternary {what}" for what in ("golden vectors", "random values", "sums", "damaged frames"))


def add(parser: Parser) -> None:
    """Add the actions of ``paceline nic``."""
    action = parser.group(EXAMPLE)
    verify = action("verify", "compare the engine's Verilog with the codec, and prove properties of it")
    verify.runs(_verify, VERIFY, shapes=BRIEF)
    verify.add_argument(
        "--values", metavar="N", type=int, default=VALUES, help=f"random values of each engine (default {VALUES:,})"
    )
    verify.add_argument("--no-proofs", dest="proofs", action="store_false", help="leave out what a solver proves")

    area = action("area", "cells that the engines take of an FPGA, and their clock")
    area.runs(_area, AREA, "one JSON object a line", BRIEF)
    families = "xc7 (Virtex-7), ecp5, ice40; may be repeated (default all)"
    area.add_argument("--family", metavar="F", action="append", help=families)
    area.add_argument("--block", metavar="B", action="append", help="only this block; may be repeated")
    area.add_argument("--seeds", metavar="N", type=int, default=3, help="placements, of which the median counts (default 3)")
    area.add_argument("--no-clock", dest="clock", action="store_false", help="leave out place and route, which takes minutes")

    emit = action("emit", "write the engines as Verilog (needs Amaranth)")
    emit.runs(_emit, EMIT, shapes=BRIEF)
    emit.add_argument("--out", metavar="DIR", type=Path, help="where to (default into the package, for its developers)")
    engine = action("engine", "build the engine's model for a lab's cards, and print its path (needs Verilator)")
    engine.runs(_engine, ENGINE, shapes=BRIEF)


def _verify(o: argparse.Namespace) -> Answer:
    from paceline.errors import NotMet, UserError
    from paceline.nic import ternary_verify, verify

    if o.values < 1:
        raise UserError(f"{o.values} random values", "give a whole number from 1 up")
    checks: list[Verified] = []
    left_out: list[str] = []
    steps: list[tuple[str, Callable[[], Verified]]] = [
        ("golden vectors", lambda: verify.verify_golden(progress=_progress("golden vectors"))),
        ("tag patterns", lambda: verify.verify_tag_patterns(progress=_progress("tag patterns"))),
        ("damaged frames", lambda: verify.verify_damage(progress=_progress("damaged frames"))),
        ("random values", lambda: verify.verify_random(o.values, progress=_progress("random values"))),
        (_GOLDEN, lambda: ternary_verify.verify_ternary_golden(progress=_progress(_GOLDEN))),
        (_RANDOM, lambda: ternary_verify.verify_ternary(o.values, progress=_progress(_RANDOM))),
        (_SUMS, lambda: ternary_verify.verify_ternary_sums(o.values, progress=_progress(_SUMS))),
        (_DAMAGE, lambda: ternary_verify.verify_ternary_damage(progress=_progress(_DAMAGE))),
    ]
    for name, step in steps:
        try:
            checks.append(step())
        except UserError as error:
            left_out.append(f"{name}: {error}")
    proofs = _proofs(left_out) if o.proofs else []
    wrong = [f"{c.what}: {c.difference}" for c in checks if not c.agreed]
    wrong += [f"{p.name} is refuted" for p in proofs if p.outcome == "refuted"]
    if wrong:
        raise NotMet(f"the engine is wrong: {wrong[0]}", "paceline nic emit, if its source has changed")
    if not checks and not proofs:
        causes = dict.fromkeys(line.partition(": ")[2] for line in left_out)
        raise UserError("nothing could be compared or proved", "; ".join(causes))
    good = bool(checks) and not left_out and all(p.proved for p in proofs)
    text = f"{len(checks)} comparisons with the codec: all agree" if checks else "nothing was compared"
    if proofs:
        text += f"; {sum(p.proved for p in proofs)} of {len(proofs)} properties proved"
    text += f"; {len(left_out)} left out" if left_out else ""
    data = {
        "good": good,
        "comparisons": [asdict(c) for c in checks],
        "proofs": [asdict(p) for p in proofs],
        "left_out": left_out,
    }
    return data, Screen(title="", answer=tuple(_verified(checks, proofs, left_out, text)), brief=text)


PROVED = (
    *("aligner_properties", "lane_properties", "stream_properties", "ternary_properties"),
    *("compressor", "decompressor", "ternary"),
)
"""Modules of the engine that the proofs need."""


def _proofs(left_out: list[str]) -> list[Proof]:
    from concurrent.futures import ThreadPoolExecutor
    from importlib import import_module

    from paceline.errors import UserError
    from paceline.nic.inceptionn_proofs import INCEPTIONN
    from paceline.nic.ternary_proofs import TERNARY

    def proved(name: str, prove: Callable[[], Proof]) -> Proof | UserError:
        print(f"proof of {name}", file=sys.stderr, flush=True)
        try:
            return prove()
        except UserError as error:
            return error

    wanted = {**TERNARY, **INCEPTIONN}
    proofs: list[Proof] = []
    try:  # import first: threads that import the same modules wait for each other
        for module in ("amaranth.back.rtlil", *(f"paceline.nic.engine.{name}" for name in PROVED)):
            import_module(module)
    except ModuleNotFoundError as error:
        left_out.append(f"proofs: {error.name} is missing; install it: pip install 'paceline[nic]'")
        return []
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:  # each solver is a separate process
        for name, found in zip(wanted, pool.map(proved, wanted, wanted.values()), strict=True):
            if isinstance(found, UserError):
                left_out.append(f"{name}: {found}")
            else:
                proofs.append(found)
    return proofs


def _verified(checks: list[Verified], proofs: list[Proof], left_out: list[str], text: str) -> list[Block]:
    blocks: list[Block] = [GAP, heading(text)]
    if checks:
        rows = [
            (
                c.what,
                format_count(c.cases),
                format_count(c.cycles),
                format_seconds(c.seconds),
                "agree" if c.agreed else c.difference,
            )
            for c in checks
        ]
        blocks.append(Table(("Verilog against codec", "cases", "cycles", "took", "result"), rows, frozenset({0, 4})))
    if proofs:
        proved = [
            (p.name, p.scope, p.method + (f" {p.depth}" if p.depth else ""), p.solver, format_seconds(p.seconds), p.outcome)
            for p in proofs
        ]
        heads = ("property", "scope", "method, cycles", "solver", "took", "result")
        blocks += [GAP, Table(heads, proved, frozenset({0, 1, 2, 3, 5}))]
    return [*blocks, *(Paragraph(f"left out: {what}", "bad") for what in left_out)]


def _area(o: argparse.Namespace) -> Answer:
    from paceline.errors import UserError, known_name
    from paceline.nic import area

    families = [known_name("family", name, area.SYNTHESIS) for name in o.family or area.SYNTHESIS]
    blocks = [known_name("block", name, area.blocks()) for name in o.block or area.blocks()]
    if o.seeds < 1:
        raise UserError(f"{o.seeds} placements", "give a whole number from 1 up, or --no-clock")
    cells: list[Cells] = []
    clocks: list[Clock] = []
    for block in blocks:
        for family in families:
            print(f"{block} on {family}", file=sys.stderr, flush=True)
            cells.append(area.cells(block, family))
            if o.clock and family in area.ROUTERS:
                clocks.append(area.clock(block, family, tuple(range(1, o.seeds + 1))))
    rows = [asdict(c) for c in cells] + [asdict(c) for c in clocks]
    return rows, Screen(title="", answer=tuple(_areas(cells, clocks)), brief=f"{len(cells)} areas, {len(clocks)} clocks")


def _areas(cells: list[Cells], clocks: list[Clock]) -> list[Block]:
    from paceline.nic.area import PUBLISHED_GBPS

    heads = ("block", "family", "LUT", "FF", "carry", "memory", "multiplier")
    counted = [(c.block, c.family, *(str(n) for n in (c.lut, c.ff, c.carry, c.memory, c.multiplier))) for c in cells]
    blocks: list[Block] = [GAP, Table(heads, counted, frozenset({0, 1}))]
    if clocks:
        timed = [
            (
                c.block,
                c.device,
                *(
                    (f"{c.median:.1f} MHz", f"{min(c.megahertz):.1f} to {max(c.megahertz):.1f}", f"{c.gbps:.1f} Gb/s")
                    if c.megahertz
                    else (c.verdict, "", "")
                ),
            )
            for c in clocks
        ]
        blocks += [GAP, Table(("block", "device", "clock", "of all placements", "one way"), timed, frozenset({0, 1}))]
        goal, prototype = PUBLISHED_GBPS["goal"], PUBLISHED_GBPS["prototype"]
        blocks.append(
            Paragraph(f"published: {prototype} Gb/s reached, {goal} Gb/s at 100 MHz the goal (Li et al., MICRO 2018)")
        )
    return blocks


def _emit(o: argparse.Namespace) -> Answer:
    from paceline.nic.emission import VERILOG, emit

    files = [str(path) for path in emit(o.out or VERILOG)]
    return {"files": files}, Screen.plain(*files)


def _engine(o: argparse.Namespace) -> Answer:
    from paceline.nic.verilated import library

    print("building the engine's model where it is not built yet: about a minute", file=sys.stderr, flush=True)
    path = str(library())
    return {"path": path}, Screen.plain(path)


def _progress(what: str) -> Callable[[int, int], None]:
    def say(done: int, total: int) -> None:
        print(f"\r{what}: {done:,} of {total:,}", end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return say
