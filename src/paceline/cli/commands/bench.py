"""``paceline bench``: measure Paceline itself on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading
from paceline.reporting.values import count
from paceline.units import digits3, format_byte_rate, format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from paceline.codecs.bench import CodecSpeed
    from paceline.training.optimizers.bench import OptimizerSpeed

CODEC_EXAMPLE = """example:
  paceline bench codec --codec ternary bf16 --size 100MB --threads 1"""
OPTIMIZER_EXAMPLE = """example:
  paceline bench optimizer --network resnet-50 --threads 2"""


def add(parser: Parser) -> None:
    """Add the actions of ``paceline bench``."""
    action = parser.group(CODEC_EXAMPLE)
    codec = action("codec", "speed of the codecs compared with memcpy")
    codec.runs(_codec, CODEC_EXAMPLE, "one JSON object a line", BRIEF)
    codec.add_argument("--size", metavar="BYTES", default="100MB", help="size of the fp32 tensor (default 100MB)")
    codec.add_argument("--codec", metavar="NAME", nargs="+", action="extend", help="which codecs (default all)")
    codec.add_argument("--backend", metavar="B", default="", help="reference, native or triton (default the fastest here)")
    threads = "threads of the C++ kernels (default OMP_NUM_THREADS, else all cores)"
    codec.add_argument("--threads", metavar="N", type=int, help=threads)

    optimizer = action("optimizer", "speed of LARS and LAMB compared with memcpy and other implementations")
    optimizer.runs(_optimizer, OPTIMIZER_EXAMPLE, "one JSON object a line", BRIEF)
    network = "the network whose tensors are updated (default resnet-50)"
    optimizer.add_argument("--network", metavar="NAME", default="resnet-50", help=network)
    optimizer.add_argument("--optimizer", metavar="NAME", nargs="+", action="extend", help="lars, lamb (default both)")
    optimizer.add_argument("--variant", metavar="V", default="paper", help="which published form (default paper)")
    optimizer.add_argument("--device", metavar="D", default="cpu", help="cpu or cuda (default cpu)")
    optimizer.add_argument("--threads", metavar="N", type=int, help="threads on the CPU (default torch's)")


def _codec(o: argparse.Namespace) -> Answer:
    from paceline.codecs.bench import measure

    speeds = measure(max(1, int(parse_bytes(o.size)) // 4), o.codec, o.threads, o.backend)
    return [asdict(speed) for speed in speeds], codec_screen(speeds)


def _optimizer(o: argparse.Namespace) -> Answer:
    from paceline.training.optimizers.bench import measure

    speeds = measure(o.network, o.optimizer, o.variant, o.threads, o.device)
    return [asdict(speed) for speed in speeds], optimizer_screen(speeds)


def codec_screen(speeds: Sequence[CodecSpeed]) -> Screen:
    """Return a screen with a row for each codec and direction: GB/s of fp32 per core, compared with memcpy."""
    first, most = speeds[0], max(s.repetitions for s in speeds)
    rows = []
    for s in speeds:
        rates = (s.low_gb_per_s, s.gb_per_s, s.high_gb_per_s)
        low, middle, high = (digits3(rate / s.threads) for rate in rates)
        copied = digits3(s.memcpy_gb_per_s_per_core)
        backend = s.backend.removeprefix("native ")
        share = f"{s.relative_to_memcpy:.0%}"
        rows.append((s.codec, s.direction, backend, middle, f"{low}-{high}", copied, share, digits3(s.ratio)))
    threads = max(s.threads for s in speeds)
    fastest = max(speeds, key=lambda s: s.gb_per_s_per_core)
    return Screen(
        title=f"{format_bytes(4 * first.elements)} of fp32, median of up to {most} calls; GB/s of fp32, per core",
        answer=(
            Table(("codec", "direction", "backend", "GB/s", "p10-p90", "memcpy", "of it", "ratio"), rows, frozenset({0, 1, 2})),
            GAP,
            Paragraph(f"threads: {threads}. p10-p90: rates of the slowest and the fastest tenth."),
        ),
        brief=f"fastest: {fastest.codec} {fastest.direction}, {digits3(fastest.gb_per_s_per_core)} GB/s of fp32 per core, "
        f"{fastest.relative_to_memcpy:.0%} of memcpy",
    )


def optimizer_screen(speeds: Sequence[OptimizerSpeed]) -> Screen:
    """Return a screen with a table for each optimizer: Paceline's, the memory bound, and other implementations."""
    first = speeds[0]
    where = f"{first.device}, {count(first.threads, 'thread')}"
    return Screen(
        title=f"{first.network}: {first.tensors} tensors, {format_count(first.parameters)} fp32 parameters; {where}",
        answer=(
            Paragraph(
                f"Median of {max(s.repetitions for s in speeds)} steps in turn, and their 10th to 90th percentile. "
                "The floor is at memcpy's rate, a byte counted twice: as read and as written."
            ),
            *(block for speed in speeds for block in _optimizer_blocks(speed)),
        ),
        brief="; ".join(
            f"{s.optimizer.upper()} {s.variant}: {digits3(s.ms_per_step)} ms a step, {s.times_fastest_peer:.2f} times as fast "
            "as the fastest peer"
            for s in speeds
        ),
    )


def _optimizer_blocks(s: OptimizerSpeed) -> Iterator[Block]:
    from paceline.training.optimizers.bench import ADAMW, OURS

    copied, added = (format_byte_rate(1e9 * rate) for rate in (s.memcpy_gb_per_s, s.in_place_gb_per_s))

    def row(name: str, ms: float, note: str) -> tuple[str, ...]:
        low, high = s.spread[name]
        return name, f"{digits3(ms)} ms", f"{digits3(low)}-{digits3(high)} ms", note

    peers = sorted(s.peers.items(), key=lambda pair: pair[1])
    yield GAP
    yield heading(f"{s.optimizer.upper()} {s.variant!r}, {s.backend}")
    yield Table(
        ("", "a step", "p10-p90", ""),
        [
            row(OURS, s.ms_per_step, f"{s.times_floor:.2f} of the floor"),
            ("floor", f"{digits3(s.floor_ms)} ms", "", f"{s.floor_words} words a parameter at {copied}"),
            *(row(name, ms, f"{ms / s.ms_per_step:.2f} of paceline") for name, ms in peers),
            *((name, "-", "", f"absent: {why}") for name, why in s.absent.items()),
            row(ADAMW, s.fused_adamw_ms, "another algorithm"),
        ],
        frozenset({0, 3}),
    )
    yield Paragraph(
        f"{s.times_fastest_peer:.2f} times as fast as the fastest peer; {s.times_in_place_floor:.2f} of the floor at the "
        f"{added} of y += x, which fetches nothing that it does not count."
    )
