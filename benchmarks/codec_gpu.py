"""Every codec on an NVIDIA GPU, beside the device's own copy of the same memory in the same run.

    python benchmarks/codec_gpu.py --megabytes 100 --out RESULTS/codec_gpu.csv

RESULTS is benchmarks/results. One row a codec and direction; the target is 0.6 of the copy's bandwidth. Without a GPU it says
so and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import append

from paceline import codecs
from paceline.codecs.bench import gradient

COLUMNS = (
    "device",
    "capability",
    "cuda",
    "triton",
    "codec",
    "direction",
    "elements",
    "payload_bytes",
    "repetitions",
    "median_ms",
    "p10_ms",
    "p90_ms",
    "gb_per_s",
    "copy_gb_per_s",
    "relative_to_copy",
    "reaches_target",
)
TARGET = 0.6


def main(arguments: list[str] | None = None) -> int:
    """Measure all codecs and add their rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100.0, help="fp32 bytes of the tensor, in 10**6")
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--codecs", nargs="+", default=codecs.names(), choices=codecs.names())
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured and nothing written")
        return 0
    elements = int(options.megabytes * 1e6 / 4)
    for name in options.codecs:
        for row in measure(name, elements, options.repetitions):
            append(options.out, COLUMNS, row)
            print({k: row[k] for k in ("codec", "direction", "median_ms", "relative_to_copy", "reaches_target")}, flush=True)
    return 0


def measure(name: str, elements: int, repetitions: int) -> list[dict[str, object]]:
    """The rows of one codec: the whole public call, with header, checksum and what it waits for.

    Bandwidth counts the bytes that must move: values and payload once each, ``out`` twice where a decoder adds to it.
    """
    codec = codecs.get(name)
    x = torch.from_numpy(gradient(elements)).cuda()
    out, room = torch.zeros_like(x), torch.empty(codecs.max_payload_bytes(codec, elements), dtype=torch.uint8, device="cuda")
    payload: Any = codecs.encode(codec, x, out=room)
    sent, values = payload.shape[0], 4 * elements
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "copy": (2 * values, lambda: out.copy_(x)),
        "encode": (values + sent, lambda: codecs.encode(codec, x, out=room)),
        "decode": (values + sent, lambda: codecs.decode(payload, out)),
        "decode_add": (2 * values + sent, lambda: codecs.decode(payload, out, codecs.ADD)),
    }
    taken: dict[str, list[float]] = {direction: [] for direction in calls}
    for repetition in range(repetitions + 3):  # three warm up: the first compiles
        for direction, (_, call) in calls.items():
            milliseconds = timed(call)
            if repetition >= 3:
                taken[direction].append(milliseconds)
    rates = {d: calls[d][0] / statistics.median(t) / 1e6 for d, t in taken.items()}
    device = torch.cuda.get_device_properties(0)
    return [
        {
            "device": device.name,
            "capability": f"{device.major}.{device.minor}",
            "cuda": torch.version.cuda,
            "triton": importlib.metadata.version("triton"),
            "codec": name,
            "direction": direction,
            "elements": elements,
            "payload_bytes": sent,
            "repetitions": repetitions,
            "median_ms": round(statistics.median(times), 4),
            "p10_ms": round(statistics.quantiles(times, n=10)[0], 4),
            "p90_ms": round(statistics.quantiles(times, n=10)[-1], 4),
            "gb_per_s": round(rates[direction], 1),
            "copy_gb_per_s": round(rates["copy"], 1),
            "relative_to_copy": round(rates[direction] / rates["copy"], 3),
            "reaches_target": rates[direction] >= TARGET * rates["copy"],
        }
        for direction, times in taken.items()
        if direction != "copy"
    ]


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call on an idle device, by its own clock."""
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


if __name__ == "__main__":
    raise SystemExit(main())
