"""Draw docs/pictures/nic_blocks.svg, and from a simulation the engines' timing: nic_compressor.svg, nic_decompressor.svg.

python benchmarks/nic_pictures.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

PICTURES = Path(__file__).parents[1] / "docs/pictures"
INK, LINE, CARD, ENGINE = "#22262e", "#7a828e", "#eef2f7", "#dce8f5"


def blocks(path: Path) -> None:
    """The way of a segment through two cards, and the stages of the two engines."""
    figure, axis = pyplot.subplots(figsize=(11, 5.6))
    axis.set_xlim(0, 110)
    axis.set_ylim(0, 56)
    axis.axis("off")
    _box(axis, 1, 30, 14, 16, "host\nPyTorch, gloo,\nTCP (unmodified)", "white")
    _frame(axis, 18, 27, 32, 22, "sending card")
    _box(axis, 20, 37, 12, 8, "segments,\nflow follower")
    _box(axis, 36, 37, 12, 8, "compressor", ENGINE)
    _box(axis, 36, 29, 12, 5, "bypass")
    _frame(axis, 62, 27, 32, 22, "receiving card")
    _box(axis, 64, 37, 12, 8, "decompressor", ENGINE)
    _box(axis, 64, 29, 12, 5, "bypass")
    _box(axis, 80, 37, 12, 8, "lengths,\nchecksums")
    _box(axis, 96, 30, 13, 16, "host\nTCP, gloo,\nPyTorch", "white")
    for start, end in (
        ((15, 41), (20, 41)),
        ((32, 41), (36, 41)),
        ((48, 41), (64, 41)),
        ((76, 41), (80, 41)),
        ((92, 41), (96, 41)),
        ((32, 38), (36, 31.5)),
        ((48, 31.5), (64, 31.5)),
        ((76, 31.5), (80, 38)),
    ):
        _arrow(axis, start, end)
    axis.text(56, 42, "fewer bytes,\nas many packets", ha="center", va="bottom", fontsize=8, color=INK)
    axis.text(56, 30.6, "unmarked:\nuntouched", ha="center", va="top", fontsize=8, color=INK)
    compressor = (
        "queue:\nblock scale",
        "8 lanes:\ntag, shift",
        "8 lanes:\nround",
        "join\n2, 4, 8",
        "shift by\n8 bytes",
        "shift by\n1 byte",
        "full beats\nof 32 bytes",
    )
    decompressor = (
        "3 beats,\n32 ends",
        "next burst:\n1 of 32",
        "shift by\n8 bytes",
        "shift by\n1 byte",
        "part\n8, 4, 2",
        "8 lanes:\nnormalise",
        "beats of\n8 values",
    )
    _row(axis, 12, "compressor", compressor)
    _row(axis, 1, "decompressor", decompressor)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


def _row(axis: Axes, y: float, title: str, stages: Sequence[str]) -> None:
    axis.text(1, y + 4, title, fontsize=9, fontweight="bold", color=INK, va="center")
    for number, stage in enumerate(stages):
        x = 15 + 13.4 * number
        _box(axis, x, y, 11.4, 8, stage, ENGINE, 8)
        if number:
            _arrow(axis, (x - 2, y + 4), (x, y + 4))


def _box(axis: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = CARD, size: float = 8.5) -> None:
    axis.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.1,rounding_size=0.8", fc=colour, ec=LINE, lw=0.9)
    )
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=INK)


def _frame(axis: Axes, x: float, y: float, width: float, height: float, title: str) -> None:
    axis.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.1,rounding_size=1", fc="none", ec=INK, lw=1.2))
    axis.text(x + 1, y + height - 0.8, title, ha="left", va="top", fontsize=9, fontweight="bold", color=INK)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.0})


def timing(trace: Mapping[str, Sequence[int | str]], title: str, path: Path) -> None:
    """A timing diagram: a row a signal, a column a cycle. Numbers are drawn as levels, texts in boxes while they hold."""
    cycles = len(next(iter(trace.values())))
    figure, axis = pyplot.subplots(figsize=(max(7.0, 0.42 * cycles), 0.46 * len(trace) + 0.9))
    for row, (name, values) in enumerate(trace.items()):
        base = -row
        axis.text(-0.4, base + 0.3, name, ha="right", va="center", fontsize=8, color=INK)
        if all(isinstance(value, int) for value in values):
            level = [base + 0.6 * bool(value) for value in values]
            axis.step(range(cycles + 1), [*level, level[-1]], where="post", color="#3b6ea8", lw=1.3)
            continue
        start = 0
        for cycle in range(1, cycles + 1):
            if cycle == cycles or values[cycle] != values[start]:
                if values[start]:
                    axis.fill_between([start + 0.06, cycle - 0.06], base, base + 0.6, fc=ENGINE, ec=LINE, lw=0.7)
                    axis.text(
                        (start + cycle) / 2, base + 0.3, str(values[start]), ha="center", va="center", fontsize=6.5, color=INK
                    )
                start = cycle
    for cycle in range(0, cycles + 1, 4):
        axis.axvline(cycle, color=LINE, lw=0.4, alpha=0.5, zorder=0)
        axis.text(cycle, 0.95, str(cycle), ha="center", fontsize=6.5, color=LINE)
    axis.set_xlim(-0.3, cycles)
    axis.set_ylim(-len(trace) + 0.7, 1.3)
    axis.axis("off")
    axis.set_title(title, loc="left", fontsize=9, fontweight="bold", color=INK)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)


def simulated(decompress: bool) -> tuple[dict[str, list[int | str]], str]:
    """A marked frame of 32 values behind one that passes, with stalls at the output: the signals of both streams by cycle."""
    import numpy as np

    from paceline.nic.bodies import encoded, header
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.decompressor import Decompressor

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from engine_simulation import Frame, simulate

    values = (np.random.default_rng(3).standard_normal(64) * 0.05).astype(np.float32)
    body = encoded(values, 10, False) if decompress else values.tobytes()
    registers = {"head": 2, "k": 10, "scaled": 0, **({"values": 64} if decompress else {})}
    frames = [Frame(header(2, marked=False) + bytes(64), registers), Frame(header(2) + body, registers)]
    engine = Decompressor() if decompress else Compressor()
    ran = simulate(engine, frames, pauses=[0, 0, 0, 0, 0, 2, 0, 1])
    rows: dict[str, list[int | str]] = {}
    for side in ("in", "out"):
        valid, ready = (list(map(int, ran.trace[f"{side}.{name}"])) for name in ("valid", "ready"))
        rows[f"{side} valid"], rows[f"{side} ready"] = list(valid), list(ready)
        rows[f"{side} beat"] = _labels(valid, ready, [int(x) for x in ran.trace[f"{side}.first"]])
    return (
        rows,
        f"{'decompressor' if decompress else 'compressor'}: a frame that passes, then one of 64 values; the output stalls",
    )


def _labels(valid: Sequence[int], ready: Sequence[int], first: Sequence[int]) -> list[int | str]:
    """What each cycle shows: frame and beat, such as 2.3, while the beat is offered."""
    labels: list[int | str] = []
    frame, beat = 0, 0
    fresh = True
    for there, taken, begins in zip(valid, ready, first, strict=True):
        if there and fresh:
            frame, beat = (frame + 1, 1) if begins else (frame, beat + 1)
        fresh = bool(there and taken) or (fresh and not there)
        labels.append(f"{frame}.{beat}" if there else "")
    return labels


def main() -> None:
    """All three pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURES)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    blocks(out / "nic_blocks.svg")
    for decompress, name in ((False, "nic_compressor.svg"), (True, "nic_decompressor.svg")):
        timing(*simulated(decompress), out / name)


if __name__ == "__main__":
    main()
