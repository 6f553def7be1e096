"""Everything that only a GPU can show, step by step in 12 minutes, on one GPU or on eight.

    benchmarks/gpu_day.sh --dry-run
    benchmarks/gpu_day.sh --out runs/gpu-day

Each step has a limit, and the next one runs whatever became of it. Without a GPU only ``--dry-run`` runs. docs/gpu-day.md says
what each step decides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MINUTES = 12
RANK = "benchmarks/gpu_day_rank.py"


@dataclass(frozen=True)
class Step:
    """A step of the day.

    Attributes:
        command: arguments of Python; ``{gpus}``, ``{out}`` are filled in.
        minutes: limit on one GPU, and on several; 0: it does not run there.
        must: True if a failure fails the day: results are wrong, not slow.
    """

    name: str
    command: tuple[str, ...]
    minutes: tuple[float, float]
    decides: str
    must: bool = False

    def limit(self, gpus: int) -> float:
        """Minutes on so many GPUs."""
        return self.minutes[gpus > 1]


_CASES = ("tests/codecs/triton_cases.py", "tests/training/optimizers/triton_cases.py")
_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{gpus}", RANK)
STEPS = (
    Step(
        "kernels",
        ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *_CASES),
        (3.0, 2.5),
        "codecs and optimizers give the CPU's bits on this GPU; if not, it must not use them",
        must=True,
    ),
    Step(
        "waits",
        (RANK, "waits", "--out", "{out}"),
        (1.5, 1.0),
        "an exchange gives the CPU's bits, and the host waits as often at 8 ranks as at 2",
        must=True,
    ),
    Step(
        "codecs",
        ("benchmarks/codec_gpu.py", "--megabytes", "100", "--repetitions", "15", "--out", "{out}/codec_gpu.csv"),
        (1.5, 1.0),
        "codecs reach 0.6 of the copy's bandwidth; predictions take these rates in place of assumed ones",
    ),
    Step(
        "optimizers",
        (RANK, "optimizers", "--out", "{out}"),
        (1.5, 1.0),
        "LARS, LAMB and Muon against torch's fused AdamW and the copy of the same bytes",
    ),
    Step(
        "networks",
        (RANK, "networks", "--out", "{out}"),
        (4.0, 0.0),
        "five networks predicted before and measured after: the error of predictions on this GPU",
    ),
    Step(
        "exchanges",
        (*_RANKS, "exchanges", "--out", "{out}"),
        (0.0, 3.5),
        "NCCL's path of every exchange: equal replicas, bytes as counted, waits a step",
        must=True,
    ),
    Step(
        "overlap",
        (*_RANKS, "overlap", "--out", "{out}"),
        (0.0, 1.5),
        "share of the exchange that runs during the backward pass; if little, `auto` must not assume overlap",
    ),
    Step(
        "sharded",
        (*_RANKS, "sharded", "--out", "{out}"),
        (0.0, 1.0),
        "FSDP2 with int8 trains next to its own gathers, without a deadlock",
        must=True,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps that so many GPUs can run. Returns 1 if one that must hold failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to use (default: all that are here, at most 8)")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-day"), help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], help="steps to run (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="list the steps, their minutes and what each decides")
    options = parser.parse_args(arguments)
    if options.dry_run:
        for gpus in [options.gpus] if options.gpus else [1, 8]:
            print(listing(chosen(gpus, options.only), gpus))
        return 0
    gpus = options.gpus or min(8, _gpus())
    if not gpus:
        print("no CUDA device here: nothing was measured and nothing written; --dry-run lists the steps")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    results = [run(step, gpus, options.out) for step in chosen(gpus, options.only)]
    (options.out / "summary.json").write_text(json.dumps(results, indent=1))
    for result in results:
        print(f"{result['step']:<11} {result['outcome']:<9} {result['seconds']:6.0f} s  {result['decides']}")
    return int(any(result["outcome"] != "done" and result["must"] for result in results))


def chosen(gpus: int, only: Sequence[str] | None = None) -> list[Step]:
    """Return the steps that run on so many GPUs."""
    return [step for step in STEPS if step.limit(gpus) and (not only or step.name in only)]


def listing(steps: Sequence[Step], gpus: int) -> str:
    """Return a table of the steps on so many GPUs."""
    lines = [f"{gpus} GPU{'s' * (gpus > 1)}: {sum(step.limit(gpus) for step in steps):g} minutes at most"]
    for step in steps:
        lines.append(f"  {step.name:<11} {step.limit(gpus):4g} min{' must hold' if step.must else '':<10}  {step.decides}")
    return "\n".join(lines)


def run(step: Step, gpus: int, out: Path) -> dict[str, object]:
    """Run one step within its limit, with its output in a file."""
    command = [sys.executable, *(part.format(gpus=gpus, out=out) for part in step.command)]
    print(f"{step.name}: {' '.join(command[1:])}", flush=True)
    start = time.monotonic()
    with (out / f"{step.name}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"TRITON_INTERPRET": "0"}, start_new_session=True
        )
        try:
            outcome = "done" if process.wait(60 * step.limit(gpus)) == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # ranks too
            process.wait()
            outcome = "too slow"
    seconds = time.monotonic() - start
    return {"step": step.name, "outcome": outcome, "seconds": seconds, "must": step.must, "decides": step.decides}


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    raise SystemExit(main())
