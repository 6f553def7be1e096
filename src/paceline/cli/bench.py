"""``paceline bench``: measure Paceline itself on this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from paceline.cli.parser import Answer, Parser
from paceline.units import parse_bytes

CODEC_EXAMPLE = """example:
  paceline bench codec --codec ternary bf16 --size 100MB --threads 1"""
OPTIMIZER_EXAMPLE = """example:
  paceline bench optimizer --network resnet-50 --threads 2"""


def add(parser: Parser) -> None:
    """Add the actions of ``paceline bench``."""
    action = parser.group(CODEC_EXAMPLE)
    codec = action("codec", "speed of the codecs beside memcpy")
    codec.runs(_codec, CODEC_EXAMPLE, "one JSON object a line")
    codec.add_argument("--size", metavar="BYTES", default="100MB", help="size of the fp32 tensor (default 100MB)")
    codec.add_argument("--codec", metavar="NAME", nargs="+", action="extend", help="which codecs (default all)")
    codec.add_argument("--backend", metavar="B", default="", help="reference, native or triton (default the fastest here)")
    threads = "threads of the C++ kernels (default OMP_NUM_THREADS, else all cores)"
    codec.add_argument("--threads", metavar="N", type=int, help=threads)

    optimizer = action("optimizer", "speed of LARS and LAMB beside memcpy and other implementations")
    optimizer.runs(_optimizer, OPTIMIZER_EXAMPLE, "one JSON object a line")
    network = "the network whose tensors are updated (default resnet-50)"
    optimizer.add_argument("--network", metavar="NAME", default="resnet-50", help=network)
    optimizer.add_argument("--optimizer", metavar="NAME", nargs="+", action="extend", help="lars, lamb (default both)")
    optimizer.add_argument("--variant", metavar="V", default="paper", help="which published form (default paper)")
    optimizer.add_argument("--device", metavar="D", default="cpu", help="cpu or cuda (default cpu)")
    optimizer.add_argument("--threads", metavar="N", type=int, help="threads on the CPU (default torch's)")


def _codec(o: argparse.Namespace) -> Answer:
    from paceline.codecs.bench import measure, text

    speeds = measure(max(1, int(parse_bytes(o.size)) // 4), o.codec, o.threads, o.backend)
    return [asdict(speed) for speed in speeds], text(speeds)


def _optimizer(o: argparse.Namespace) -> Answer:
    from paceline.training.optimizers.bench import measure, text

    speeds = measure(o.network, o.optimizer, o.variant, o.threads, o.device)
    return [asdict(speed) for speed in speeds], text(speeds)
