"""Predictions of published runs that no constant and no range was fitted to.

    python benchmarks/unseen_runs.py --out RESULTS/unseen_runs.csv

RESULTS is benchmarks/results. Each run is a command of ``paceline predict`` with the settings of its publication, and its
seconds a step, measured or from the published rate. Nothing here is tuned to: a run that is missed stays.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from rows import append

from paceline.cli import main as paceline
from paceline.exit_codes import ExitCode

COLUMNS = ("run", "published_s", "predicted_s", "low_s", "high_s", "error", "inside", "command", "source")
KEMPNER = "KempnerInstitute/KempnerForge, benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md"
LLAMA = "--seq-len 4096 --recompute full --compile"
TIMM = "huggingface/pytorch-image-models, results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"


@dataclass(frozen=True, slots=True)
class Run:
    """A published run.

    Attributes:
        name: the network and its devices.
        step_s: published seconds of a step, or samples of a step over samples a second.
        command: what ``paceline predict`` is given.
        source: where it was published, and how ``step_s`` follows from it.
    """

    name: str
    step_s: float
    command: str
    source: str


def kempner(network: str, cluster: str, layout: str, micro: int, steps: int, data: int, step_s: float) -> Run:
    """A run of KempnerForge: ``steps`` micro steps of ``micro`` sequences on each of ``data`` replicas or shards."""
    name = f"{Path(network).name}, {cluster}{', ' + layout.replace('--', '') if layout else ''}"
    batch = f"--global-batch {micro * steps * data} --grad-accum {steps}"
    return Run(name, step_s, f"{network} --cluster '{cluster}' {LLAMA} {batch} {layout}".strip(), KEMPNER)


def timm(network: str, batch: int, images_per_s: float) -> Run:
    """A run of pytorch-image-models on one RTX 3090, mixed precision, channels last, PyTorch 1.12."""
    command = f"{network} --cluster 'RTX 3090' --global-batch {batch} --precision fp16 --optimizer momentum"
    return Run(f"{network}, RTX 3090", batch / images_per_s, command, TIMM)


_ACROSS = "{}x4 H200, 4x400Gb/s InfiniBand"
RUNS = (
    kempner("llama-3-8b", "1 H200", "", 2, 4, 1, 3.13),
    kempner("llama-3-8b", "2 H200", "--sharding zero3", 2, 4, 2, 3.50),
    kempner("llama-3-8b", "2 H200", "--tensor 2", 4, 2, 1, 2.49),
    kempner("llama-3-8b", "4 H200", "--sharding zero3", 4, 2, 4, 3.36),
    kempner("llama-3-8b", "4 H200", "--tensor 4", 4, 2, 1, 1.30),
    kempner("llama-3-8b", "4 H200", "--tensor 2 --sharding zero3", 4, 2, 2, 2.52),
    kempner("llama-3-8b", _ACROSS.format(2), "--tensor 4 --sharding zero3", 4, 2, 2, 1.48),
    kempner("llama-3-8b", _ACROSS.format(4), "--tensor 4 --sharding zero3", 4, 2, 4, 1.58),
    kempner("llama-3-8b", _ACROSS.format(8), "--tensor 4 --sharding zero3", 4, 2, 8, 1.68),
    kempner("examples/llama-15b", _ACROSS.format(2), "--tensor 4 --sharding zero3", 4, 4, 2, 4.79),
    kempner("examples/llama-15b", _ACROSS.format(4), "--tensor 4 --sharding zero3", 4, 4, 4, 4.87),
    kempner("examples/llama-15b", _ACROSS.format(8), "--tensor 4 --sharding zero3", 4, 4, 8, 5.03),
    kempner("llama-3-70b", _ACROSS.format(8), "--tensor 4 --sharding zero3", 2, 4, 8, 14.85),
    Run(
        "examples/llama-15b, 2x4 H200, FSDP",
        14.81,
        "examples/llama-15b --cluster '2x4 H200, 4x400Gb/s InfiniBand' --seq-len 4096 --recompute full --global-batch 128 "
        "--grad-accum 4 --sharding zero3",
        f"{KEMPNER}; this run alone without torch.compile",
    ),
    Run(
        "gpt2-xl, 8 H100",
        2.80,
        "gpt2-xl --cluster '8 H100' --global-batch 1024 --grad-accum 8 --sharding zero1 --software tuned --software-year 2024",
        "karpathy/llm.c, scripts/run_gpt2_1558M.sh: 1,048,576 tokens a step, micro batch 16, ZeRO-1, 2.80 s a step",
    ),
    Run(
        "mixtral-8x7b, 64 H100",
        2.90,
        "mixtral-8x7b --cluster '8x8 H100, 8x400Gb/s InfiniBand' --seq-len 4096 --global-batch 256 --grad-accum 16 "
        "--pipeline 4 --virtual-stages 8 --expert 8 --sharding distributed_optimizer --software tuned --software-year 2024.7",
        "NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md: 468 TFLOP/s a device; 82.9 GFLOP a token with the whole "
        "square of attention",
    ),
    Run(
        "llama-2-70b-lora, 8 MI300X",
        3.78,
        "llama-2-70b-lora --cluster '8 MI300X' --global-batch 8 --precision fp8 --software tuned --recompute full",
        "mlcommons/training_results_v5.1, AMD, MI300X_EPYC_9575F_pytorch: 2.115 samples/s; its recomputation is not known here",
    ),
    Run(
        "my_gpt.py:GPT as large as gpt2, 8 A100 40GB",
        0.576,
        "examples/my_gpt.py:GPT --cluster '8 A100 40GB' --global-batch 480 --grad-accum 5 --compile",
        "karpathy/nanoGPT, README and config/train_gpt2.py: 600,000 steps of 491,520 tokens in about 4 days",
    ),
    Run(
        "resnet-50, 4 RTX 4090",
        1024 / 6143,
        "resnet-50 --cluster '4 RTX 4090' --global-batch 1024 --precision fp16 --memory-format channels_last",
        "server-gear.com, four RTX 4090: 6,143 images/s, tf_cnn_benchmarks, 256 a device, fp16, XLA (which orders images so)",
    ),
)
IN_THE_FIT = (
    timm("resnet-18", 512, 3481.78),
    timm("resnet-50", 512, 1218.01),
    timm("resnet-101", 256, 747.89),
    timm("inception-v3", 384, 782.35),
    timm("vit-s-16", 384, 1057.92),
    timm("vit-l-16", 64, 117.2),
    Run(
        "maxtext-16b, 256 TPU v5e",
        10.3,
        "examples/maxtext-16b --cluster v5e-256 --global-batch 1536 --seq-len 2048 --sharding zero3 --recompute full "
        "--software tuned",
        "AI-Hypercomputer/maxtext, MaxText/configs/v5e: 120 TFLOP/s a chip, 6 x 2,048 tokens a chip; 1.24 PFLOP of them",
    ),
)
"""Runs of tables that constants were fitted to later: those of convolutions (timm), the share of the peak that products reach
on TPU v5e (MaxText). ``docs/questions.md`` asks about one of each."""


def predicted(run: Run) -> dict[str, object]:
    """The row of a run."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = paceline(["predict", *shlex.split(run.command), "--json"])
    if code not in (ExitCode.DONE, ExitCode.NO):
        raise SystemExit(f"{run.name}: {run.command}")
    answer = json.loads(out.getvalue())
    step_s, low_s, high_s = (float(answer[key]) for key in ("step_time_s", "low_s", "high_s"))
    return {
        "run": run.name,
        "published_s": round(run.step_s, 4),
        "predicted_s": round(step_s, 4),
        "low_s": round(low_s, 4),
        "high_s": round(high_s, 4),
        "error": round(step_s / run.step_s - 1, 4),
        "inside": low_s <= run.step_s <= high_s,
        "command": f"paceline predict {run.command}",
        "source": run.source,
    }


def read(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file of results."""
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def main() -> None:
    """Predict every run and write the file anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    rows = [predicted(run) for run in RUNS]
    out.unlink(missing_ok=True)
    for row in rows:
        append(out, COLUMNS, row)
        print(f"{row['run']:60} {row['published_s']:8} {row['predicted_s']:8} {row['error']:+.1%} {row['inside']}")
    errors = [abs(float(str(row["error"]))) for row in rows]
    inside = sum(bool(row["inside"]) for row in rows)
    print(f"{len(rows)} runs: mean error {mean(errors):.1%}, median {median(errors):.1%}, {inside} inside the range")


if __name__ == "__main__":
    main()
