"""The tables of ``docs/validation.md``: for every set, what is visible of it, and the errors beside those of the baselines.

    python benchmarks/validation_table.py FOLDER --out RESULTS/validation.csv --leave-out "published timm"

FOLDER holds the CSV files, with the names below. RESULTS is benchmarks/results. Its file keeps the first table. The networks of
timm are traced, which takes many minutes; ``vision_networks.py`` has their errors.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from rows import append

from paceline.validation import Info, Validation, validate
from paceline.validation.case import HoldOut

FILES = {
    "neusight": "neusight_model_latency",
    "mlperf": "mlperf_training",
    "pollux_sia": "pollux_sia_dataparallel",
    "llmfoundry": "llmfoundry_mpt_fsdp",
    "lambda": "lambda_single_node",
    "tf_benchmarks": "tf_benchmarks_2017_k80_p100",
    "nvidia_dle": "nvidia_dle",
    "vtrain": "vtrain_megatron_a100",
    "mlperf v2.0 to v3.1": "mlperf_training_v2_v3",
    "megatron_bridge": "megatron_bridge_h100",
    "dgxc": "nvidia_dgxc_h100_bf16",
    "megatron_bridge GB200": "megatron_bridge_gb200",
    "mlperf v4.0 and v4.1": "mlperf_training_v4",
    "published SimuMax, one node of 8 B200": "simumax_b200",
    "published Sailor, GH200": "sailor",
    "published InternEvo, A100": "internevo_a100",
    "published XTuner, Qwen3 235B on H800": "xtuner_qwen3_235b_h800",
    "published NeMo AutoModel, H100": "nemo_automodel_h100",
    "published BigScience, V100 and A100": "bigscience_jean_zay",
    "published DLPerf, V100": "dlperf_v100",
    "published NeMo Megatron launcher, A100": "nemo_megatron_launcher_a100",
    "published FlagPerf, A100": "flagperf_nvidia",
    "published Qwen fine-tuning, A100": "qwen_finetune_a100",
    "published LitGPT, A100": "litgpt_a100_lora",
    "published ms-swift, A100": "ms_swift_a100_lora",
    "published MaxText, TPU v4 and v5e": "maxtext_tpu_gpu",
    "published AWS Neuron, Trainium": "aws_neuron_trn1",
    "published optimum-habana, Gaudi": "gaudi_optimum_habana_ci",
    "published timm, RTX 3090": "timm_rtx3090",
    "published timm with older PyTorch, RTX 3090": "timm_rtx3090_older_pytorch",
    "published torchvision networks, Turing and Volta": "pytorch_gpu_benchmark",
}
"""Files by set; what follows the first word says which rows of the set."""
RUNS = (
    ("mlperf", "up_to=16"),
    ("mlperf", "one_node"),
    ("mlperf", "none"),
    ("neusight", "none"),
    ("pollux_sia", "none"),
    ("pollux_sia", "up_to=8"),
    ("llmfoundry", "none"),
    ("llmfoundry", "none, model held out"),
    ("llmfoundry", "one_node"),
    ("lambda", "none"),
    ("lambda", "one_device"),
    ("tf_benchmarks", "none"),
    ("tf_benchmarks", "one_device"),
    ("nvidia_dle", "none"),
    ("vtrain", "none"),
    ("vtrain", "up_to=2"),
    ("mlperf v2.0 to v3.1", "none"),
    ("mlperf v2.0 to v3.1", "one_node"),
    ("mlperf v2.0 to v3.1", "up_to=16"),
    ("megatron_bridge", "none"),
    ("megatron_bridge", "none, model held out"),
    ("dgxc", "none"),
    ("dgxc", "none, model held out"),
    ("megatron_bridge GB200", "none"),
    ("mlperf v4.0 and v4.1", "none"),
    *((name, "none") for name in FILES if name.startswith("published")),
)
"""Each with what is visible of it, and what the constants were fitted without where that is not usual."""
HEAD = ("set", "seen", "points", "cover", "MAPE", "median", "p90", "in 80 %", "wait, points", "baseline: MAPE / ours (rows)")
KEPT = {"points": "rows", "coverage": "coverage", "mape": "mape", "median": "median", "p90": "p90", "interval_share": "inside"}
"""Figures that the file keeps, and its columns. Shares are fractions."""
OTHER = ("other", "other_mape", "mape_on_other_rows")
MORE = ("memory_rows", "memory_mape", "software")
"""Columns of the peak memory of a device, and rows by the level of their software."""
"""Columns of the best other predictor that answers at least half of the rows: its name, its error, and ours on its rows."""
SCALES = ((1, 8), (9, 15), (16, 16), (17, 64), (65, 256), (257, 1024), (1025, inf), (16, inf))
"""Numbers of devices, from and to; the last is that of the target on pollux_sia."""
BY_SCALE = (("mlperf", "none"), ("mlperf", "up_to=16"), ("mlperf", "one_node"), ("pollux_sia", "up_to=8"))


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}"


def line(*cells: str) -> str:
    """A row of Markdown."""
    return "| " + " | ".join(cells) + " |"


def run(folder: str, name: str, info: str) -> Validation:
    """One of ``RUNS``."""
    seen, _, without = info.partition(", ")
    hold_out: HoldOut | None = "model" if without == "model held out" else None
    return validate(name.split()[0], Path(folder) / f"{FILES[name]}.csv", Info.parse(seen), hold_out)


def row(name: str, info: str, done: Validation) -> str:
    """One line of the first table."""
    figures: Mapping[str, Any] = done.to_json()
    own, count = figures["mape_on_baseline_rows"], figures["baseline_points"]
    cells = [
        f"{baseline} {percent(error)} / {percent(own[baseline])} ({count[baseline]})"
        for baseline, error in figures["baselines"].items()
    ]
    shares = (percent(figures[key]) for key in ("coverage", "mape", "median", "p90", "interval_share"))
    wait = f"{figures['sync_share_points']:.1f}" if "sync_share_points" in figures else "-"
    nothing = done.info.kind != "none" and not done.seen  # the file has no such row: said, or one would think that it helped
    visible = f"{info} (0 rows)" if nothing else info
    return line(name, visible, str(figures["points"]), *shares, wait, ", ".join(cells) or "-")


def best_other(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``OTHER`` of a summary; empty cells without any other predictor of half of the rows."""
    common = {
        name: error for name, error in figures["baselines"].items() if 2 * figures["baseline_points"][name] >= figures["points"]
    }
    if not common:
        return dict.fromkeys(OTHER, "")
    name = min(common, key=lambda one: common[one])
    return dict(zip(OTHER, (name, round(common[name], 4), round(figures["mape_on_baseline_rows"][name], 4)), strict=True))


def more(done: Validation) -> dict[str, Any]:
    """Return ``MORE`` of a validation; empty cells without a measured memory."""
    levels = Counter(point.case.software for point in done.points)
    error = done.total.get("memory_mape")
    values = (done.total.get("memory_points", ""), "" if error is None else round(error, 4))
    return dict(zip(MORE, (*values, ", ".join(f"{level} {count}" for level, count in levels.most_common())), strict=True))


def scales(done: Validation) -> Iterator[str]:
    """Lines of the second table: the groups of single scales, averaged by their points."""
    groups = [group for group in done.groups if group["by"] == "scale" and group["points"]]
    for low, high in SCALES:
        chosen = [group for group in groups if low <= int(group["name"]) <= high]
        if points := sum(group["points"] for group in chosen):
            name = str(low) if low == high else f"{low} and more" if high == inf else f"{low} to {high}"
            means = (sum(g[key] * g["points"] for g in chosen) / points for key in ("mape", "interval_share"))
            yield line(done.name, str(done.info), name, str(points), *map(percent, means))


def main(folder: str, out: Path | None, only: str = "", leave_out: Sequence[str] = ()) -> None:
    """Print the tables as Markdown, and keep the first in ``out``. ``only``, ``leave_out``: beginnings of sets."""
    print(line(*HEAD) + "\n|" + "---|" * len(HEAD))
    by_scale: list[str] = []
    for name, info in RUNS:
        if not name.startswith(only) or name.startswith(tuple(leave_out)):
            continue
        done = run(folder, name, info)
        print(row(name, info, done), flush=True)
        if (name, info) in BY_SCALE:
            by_scale += scales(done)
        if out:
            values = {column: done.total[key] for key, column in KEPT.items()}
            figures = {column: "" if value is None else round(value, 4) for column, value in values.items()}
            columns = ("set", "seen", *KEPT.values(), *OTHER, *MORE)
            append(out, columns, {"set": name, "seen": info, **figures, **best_other(done.total), **more(done)})
    heads = ("set", "seen", "devices", "points", "MAPE", "in 80 %")
    print("\n" + line(*heads) + "\n|" + "---|" * len(heads))
    print("\n".join(by_scale))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", metavar="SET", default="", help="sets whose names begin so")
    parser.add_argument("--leave-out", metavar="SET", nargs="+", default=(), help="sets whose names do not begin so")
    main(**vars(parser.parse_args()))
