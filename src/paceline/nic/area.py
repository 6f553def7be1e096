"""FPGA resources of the engine: cells after synthesis, and the clock after place and route.

Yosys counts the cells of a block alone. The clock is that of a harness of four pins around it: a shift register behind an LFSR
drives every input, and a tree of registered exclusive-ors folds every output into one bit. So every path of the block lies
between registers, and the package's pins do not limit it.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import known_name
from paceline.nic.programs import program

BEAT_BITS = 256
PUBLISHED_GBPS = {"prototype": 2.1, "goal": 25.6}
"""Li et al., MICRO 2018: what the authors' card reached, and 256 bits at 100 MHz (sections VI and VIII)."""

SYNTHESIS = {"xc7": "synth_xilinx -family xc7 -flatten", "ecp5": "synth_ecp5", "ice40": "synth_ice40"}
ROUTERS = {
    "ecp5": (
        "ECP5 85k, grade 8",
        ("nextpnr-ecp5", "--85k", "--speed", "8", "--package", "CABGA381", "--lpf-allow-unconstrained"),
    ),
    "ice40": ("iCE40 HX8K", ("nextpnr-ice40", "--hx8k", "--package", "ct256", "--pcf-allow-unconstrained")),
}
KINDS = {
    "lut": r"LUT[1-6]|SRL16E|SRLC32E|SB_LUT4",
    "ff": r"FD[RSCP]E(_1)?|TRELLIS_FF|SB_DFF\w*",
    "carry": r"CARRY4|CCU2C|SB_CARRY",
    "memory": r"RAM\w+|DP16KD|TRELLIS_DPR16X4|SB_RAM40_4K\w*",
    "multiplier": r"DSP48E1|MULT18X18D|SB_MAC16",
}


@dataclass(frozen=True)
class Cells:
    """Primitives of one block on one family."""

    block: str
    family: str
    lut: int
    ff: int
    carry: int
    memory: int
    multiplier: int


@dataclass(frozen=True)
class Clock:
    """The clock of a block in its harness.

    Args:
        megahertz: one figure per seed of the placer; empty if the block does not fit.
        verdict: reason for missing figures.
    """

    block: str
    device: str
    megahertz: tuple[float, ...]
    verdict: str = ""

    @property
    def median(self) -> float:
        """Median clock of the seeds, in MHz."""
        return statistics.median(self.megahertz)

    @property
    def gbps(self) -> float:
        """Throughput in Gb/s of one 256-bit beat per cycle at the median clock."""
        return self.median * BEAT_BITS / 1000


def blocks() -> dict[str, Callable[[], Any]]:
    """Blocks by name; each value builds one."""
    from paceline.nic.engine.adder import TernaryAdder
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.decompressor import Decompressor
    from paceline.nic.engine.lane import Lane
    from paceline.nic.engine.ternary import TernaryDecoder, TernaryEncoder
    from paceline.nic.engine.ternary_lanes import TernaryLanes

    return {
        "inceptionn lane": Lane,
        "inceptionn compressor": Compressor,
        "inceptionn decompressor": Decompressor,
        "ternary lane": lambda: TernaryLanes(1),
        "ternary encoder": TernaryEncoder,
        "ternary decoder": TernaryDecoder,
        "ternary adder": TernaryAdder,
    }


def cells(block: str, family: str) -> Cells:
    """Synthesise a block alone and count its cells.

    Raises:
        UserError: an unknown block or family, or Yosys is missing.
    """
    make = blocks()[known_name("block", block, blocks())]
    command = SYNTHESIS[known_name("family", family, SYNTHESIS)]
    with tempfile.TemporaryDirectory() as folder:
        said = _synthesise(Path(folder), make(), f"{command} -top top\nflatten\ntee -o cells.txt stat\n")
        counted = dict(re.findall(r"^\s+(\w+)\s+(\d+)$", (Path(folder) / "cells.txt").read_text(), re.MULTILINE))
    assert counted, said
    sums = {kind: sum(int(n) for cell, n in counted.items() if re.fullmatch(cells, cell)) for kind, cells in KINDS.items()}
    return Cells(block, family, **sums)


def clock(block: str, family: str, seeds: Sequence[int] = (1, 2, 3), seconds: float = 1200) -> Clock:
    """Place and route a block in its harness, once per seed.

    Args:
        family: ``ecp5`` or ``ice40``.
        seconds: limit for one run.

    Raises:
        UserError: an unknown block or family, or a program is missing.
    """
    make = blocks()[known_name("block", block, blocks())]
    device, (router, *options) = ROUTERS[known_name("family", family, ROUTERS)]
    found = program(router)
    clocks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _synthesise(work, harness(make()), f"{SYNTHESIS[family]} -top top -json design.json\n")
        for seed in seeds:
            report = work / f"report_{seed}.json"
            wanted = [*options, "--json", "design.json", "--freq", "100", "--seed", str(seed), "--timing-allow-fail"]
            command = [found, *wanted, "--report", report.name]
            try:
                done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=seconds)
            except subprocess.TimeoutExpired:
                return Clock(block, device, tuple(clocks), f"seed {seed} is not routed within {seconds:g} s")
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                why = lines[0].removeprefix("ERROR: ") if lines else f"{router} stopped: {done.returncode}"
                return Clock(block, device, tuple(clocks), why)
            clocks += [limits["achieved"] for limits in json.loads(report.read_text())["fmax"].values()]
    return Clock(block, device, tuple(clocks))


def _synthesise(work: Path, design: Any, commands: str) -> str:
    from amaranth.back import rtlil

    (work / "design.il").write_text(rtlil.convert(design))
    (work / "design.ys").write_text(f"read_rtlil design.il\n{commands}")
    done = subprocess.run([program("yosys"), "-q", "design.ys"], cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"yosys stopped with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def harness(block: Any) -> Any:
    """Return the block between a shift register and a tree of exclusive-ors: a component with two pins, clock and reset."""
    from amaranth.hdl import Cat, Module, Signal
    from amaranth.lib import wiring

    class Harness(wiring.Component):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__({"seed": wiring.In(1), "folded": wiring.Out(1)})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            m.submodules.block = block
            inputs, outputs = (_ports(block, flow) for flow in (wiring.In, wiring.Out))
            lfsr, chain = Signal(32, init=1), Signal(len(inputs))
            m.d.sync += [
                lfsr.eq(Cat(lfsr[31] ^ lfsr[21] ^ lfsr[1] ^ lfsr[0] ^ self.seed, lfsr[:-1])),
                chain.eq(Cat(lfsr[31], chain)),
            ]
            m.d.comb += inputs.eq(chain)
            level = Signal(len(outputs))
            m.d.sync += level.eq(outputs)
            while len(level) > 1:
                following = Signal(-(-len(level) // 4), name=f"level_{len(level)}")
                m.d.sync += following.eq(Cat(level[k : k + 4].xor() for k in range(0, len(level), 4)))
                level = following
            m.d.comb += self.folded.eq(level)
            return m

    return Harness()


def _ports(block: Any, flow: Any) -> Any:
    from amaranth.hdl import Cat, Value

    return Cat(Value.cast(value) for _, member, value in block.signature.flatten(block) if member.flow == flow)


def rows(
    families: Sequence[str] = tuple(SYNTHESIS), seeds: Sequence[int] = (1, 2, 3), names: Sequence[str] = ()
) -> Iterator[Cells | Clock]:
    """Yield cells of the named blocks (default all) on ``families``, then, with seeds, clocks if the router is free."""
    for block in names or blocks():
        for family in families:
            yield cells(block, family)
        for family in families:
            if seeds and family in ROUTERS:
                yield clock(block, family, seeds)
