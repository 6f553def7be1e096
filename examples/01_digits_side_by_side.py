"""The demo: predict a training job, run it dense and with TernGrad, show both side by side.

    python examples/01_digits_side_by_side.py --out runs/demo

LeNet-5 on 1,797 real digits, four workers, total batch 64. Each run measures where it is, writes its prediction to disk, and
only then trains. Where this machine can emulate a cluster (Linux, root), each worker is a host of its own behind a link of
``--link``; elsewhere the workers share this machine's memory and ``--link`` has no effect.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from paceline import Strategy, UserError, lab, train
from paceline.reporting import render, write_report
from paceline.rundir import RunDir
from paceline.training.runs.launcher import WorkerFailed

FILES = ("prediction.json", "record.jsonl", "predicted.trace.json", "measured.trace.json", "report.html", "checkpoint.pt")


def main() -> int:
    """Run the demo. Exit code 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/demo")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--link", default="200Mb/s")
    options = parser.parse_args()
    out = Path(options.out)
    try:
        for name in FILES if out.is_dir() else ():
            (out / name).unlink(missing_ok=True)  # the table shows this demo, not the one before
        lacking = lab.missing()
        with nullcontext() if lacking else lab.up(options.workers, options.link, name=f"demo{os.getpid()}") as cluster:
            for compression in ("dense", "terngrad"):
                strategy = Strategy.of(world_size=options.workers, global_batch_size=64, compression=compression)
                train("lenet5", "digits", strategy, epochs=options.epochs, out=str(out), on=cluster)
    except UserError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 2
    except (WorkerFailed, lab.HostFailed) as error:
        print(f"paceline: {error}", file=sys.stderr)
        return error.code
    contents = RunDir(out).read()
    if lacking:
        print(f"{options.workers} processes on this machine, no links between them (for an emulated cluster: {lacking[0]})")
    else:
        print(f"{options.workers} emulated hosts with {options.link} links, on one machine's processor")
    print(render(contents.predictions, contents.records))
    print(
        f"open {write_report(out)}; the traces open in ui.perfetto.dev: {out}/predicted.trace.json, {out}/measured.trace.json"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
