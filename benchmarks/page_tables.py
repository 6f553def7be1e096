"""Write the tables of results into the pages that show them, from the last row of each result.

    python benchmarks/page_tables.py

A table of a page is found by its first line. ``tests/test_page_tables.py`` compares pages and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from held_out import ALL, OTHERS, summary
from rows import read
from validation_table import RUNS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
TITLES = {
    "llmfoundry": "MPT language models on A100, FSDP",
    "dgxc": "language models of NVIDIA's DGX Cloud, H100",
    "megatron_bridge": "language models and mixtures, Megatron-Bridge, H100",
    "mlperf": "MLPerf v0.6 to v1.1, tuned software",
    "mlperf v2.0 to v3.1": "MLPerf v2.0 to v3.1, tuned software",
    "lambda": "networks of Lambda's benchmark",
    "nvidia_dle": "NVIDIA's deep learning examples, V100 and A100",
    "neusight": "transformers in fp32, one GPU",
    "tf_benchmarks": "TensorFlow in 2017, K80 and P100",
    "vtrain": "GPT on 8 A100, tensor, data, pipeline parallel",
    "pollux_sia": "small clusters with slow networks",
    "megatron_bridge GB200": "the same on GB200",
    "mlperf v4.0 and v4.1": "MLPerf v4.0 and v4.1, tuned software",
}
"""Title of a set, by its name in ``results/validation.csv``; a set without a title is shown by its name."""
SIMULATED = {
    "simumax": "Megatron-LM on 8 B200",
    "primus": "Llama 3 and Mixtral, 64 MI325X and MI355X",
    "neusight": "fp32 transformers, A100 and V100",
    "megatron": "Megatron-LM, 8 to 512 A100",
    "vtrain": "GPT on at most 8 A100",
}


TARGETS = (
    ("dense language models on H100 (DGX Cloud)", ("dgxc", "none"), "mape", 7),
    ("language models and mixtures on H100 (Megatron-Bridge)", ("megatron_bridge", "none"), "mape", 12),
    ("language models, mixtures and hybrids on GB200", ("megatron_bridge GB200", "none"), "mape", 12),
    ("mixture on H800 (XTuner)", ("published XTuner, Qwen3 235B on H800", "none"), "mape", 12),
    ("language models on one B200 node (SimuMax)", ("published SimuMax, one node of 8 B200", "none"), "mape", 5.6),
    ("their memory", ("published SimuMax, one node of 8 B200", "none"), "memory_mape", 1),
    ("MLPerf v4", ("mlperf v4.0 and v4.1", "none"), "mape", 10),
    ("MLPerf v2 and v3", ("mlperf v2.0 to v3.1", "none"), "mape", 10),
    ("transformers in fp32", ("neusight", "none"), "mape", 10),
    ("fine-tuning of Qwen", ("published Qwen fine-tuning, A100", "none"), "mape", 12),
    ("its memory", ("published Qwen fine-tuning, A100", "none"), "memory_mape", 6),
    ("memory of LoRA (LitGPT)", ("published LitGPT, A100", "none"), "memory_mape", 6),
    ("memory of LoRA (ms-swift)", ("published ms-swift, A100", "none"), "memory_mape", 6),
    ("slow clusters, larger scales", ("pollux_sia", "up_to=8"), "mape", 14),
)
"""Targets: title, row of ``results/validation.csv``, its figure, and the largest error in %."""


def line(*cells: str) -> str:
    """A row of Markdown."""
    return "| " + " | ".join(cells) + " |"


def table(head: Sequence[str], body: Iterator[str]) -> list[str]:
    """A table of Markdown."""
    return [line(*head), "|" + "---|" * len(head), *body]


def percent(value: Any) -> str:
    """A fraction in %; ``-`` for an empty cell."""
    return "-" if value == "" else f"{100 * float(value):.1f}"


def last(rows: Sequence[Mapping[str, Any]], *keys: str) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """The last row of each combination of ``keys``."""
    return {tuple(row[key] for key in keys): row for row in rows}


def validation() -> list[str]:
    """Table of every validated set. Folds without a model are in the page's later tables."""
    found = last(read(RESULTS / "validation.csv"), "set", "seen")
    shown = [key for key in RUNS if key in found and found[key]["rows"] and "held out" not in key[1]]

    def lines() -> Iterator[str]:
        for name, seen in shown:
            row = found[name, seen]
            other = (
                f"{row['other']} {percent(row['other_mape'])} ({percent(row['mape_on_other_rows'])})" if row["other"] else "-"
            )
            figures = (percent(row[key]) for key in ("mape", "median", "inside"))
            yield line(
                TITLES.get(name, name.removeprefix("published ")),
                f"`{name.split()[0]}`",
                str(row["rows"]),
                seen,
                *figures,
                other,
            )

    return table(
        (
            "published steps",
            "set",
            "rows",
            "seen",
            "mean error, %",
            "median, %",
            "in the 80 % range, %",
            "best other, % (Paceline there)",
        ),
        lines(),
    )


def simulators() -> list[str]:
    """Table of simulators on the same rows."""

    def lines() -> Iterator[str]:
        for row in last(read(RESULTS / "simulators.csv"), "set", "simulator").values():
            pairs = [(row["time"], row["time_worst"]), (row["paceline_time"], row["paceline_worst"])]
            times = [percent(mean) + (f" ({percent(worst)})" if worst != "" else "") for mean, worst in pairs]
            memory = [percent(row[key]) for key in ("memory", "paceline_memory")]
            answers = f"{row['answer']} / {row['paceline_answer']}"
            yield line(
                SIMULATED.get(row["set"], row["set"]),
                str(row["runs"]),
                row["simulator"],
                *times,
                percent(row["paceline_inside"]),
                " / ".join(memory) if row["memory"] != "" else "-",
                row["needs"],
                answers,
            )

    return table(
        (
            "runs of",
            "runs",
            "simulator",
            "its error, %",
            "Paceline's, %",
            "in the 80 % range, %",
            "memory, its / Paceline's, %",
            "it needs",
            "answer, its / Paceline's",
        ),
        lines(),
    )


def memory() -> list[str]:
    """Table of the peak memory of a device, of every set whose rows state it."""
    found = last(read(RESULTS / "validation.csv"), "set", "seen")
    rows = (row for row in found.values() if row["memory_rows"] and row["seen"] == "none")
    body = (
        line(row["set"].removeprefix("published "), str(row["memory_rows"]), percent(row["memory_mape"]))
        for row in rows
        if float(row["memory_rows"])
    )
    return table(("memory of a device, as published", "rows", "error of memory, %"), body)


def regret() -> list[str]:
    """Table of the time lost by taking the layout that is predicted to be the fastest, or that ``plan`` takes."""
    rows = (row for row in last(read(RESULTS / "plan_regret.csv"), "table").values() if row["chosen"] != "")
    body = (
        line(
            row["table"],
            str(row["choices"]),
            str(row["layouts"]),
            *(percent(row[key]) for key in ("median", "worst", "chosen", "chosen_worst", "guess")),
        )
        for row in rows
    )
    head = ("jobs with several layouts of", "jobs", "layouts")
    losses = ("fastest by prediction loses, %", "at most", "what plan takes loses, %", "at most", "by lot, %")
    return table((*head, *losses), body)


def ranges() -> list[str]:
    """Table of the shares of measured steps inside the 80 % range, over sets."""
    rows = read(RESULTS / "range_coverage.csv")
    of = {which: summary(rows, which) for which in (OTHERS, ALL)}
    body = (
        line(
            f"factors of {which}",
            f"{found['good']:.0f} of {found['sets']:.0f}",
            f"{found['near']:.0f}",
            percent(found["median"]),
            percent(found["distance"]),
            f"{found['width']:.2f}",
        )
        for which, found in of.items()
    )
    shares = ("sets of 20 rows and more", "75 to 85 % inside", "70 to 90 %", "median inside, %")
    return table((*shares, "mean distance from 80 %, points", "high / low"), body)


def products() -> list[str]:
    """Table of matrix products by chip and precision, with shapes, the chip or its whole family left out of the fit."""
    found = last(read(RESULTS / "product_fit.csv"), "device", "precision", "held_out")
    pairs = dict.fromkeys((device, precision) for device, precision, _ in found)

    def errors(device: str, precision: str, held_out: str) -> str:
        row = found.get((device, precision, held_out))
        return f"{percent(row['median_error'])} / {percent(row['p90_error'])}" if row else "-"

    kinds = ("families of n, k", "chip", "family")
    body = (line(*pair, *(errors(*pair, kind) for kind in kinds)) for pair in pairs)
    return table(("matrix products on", "precision", "shapes left out, %", "chip left out, %", "its family left out, %"), body)


def collectives() -> list[str]:
    """Table of collectives inside a node by link."""
    rows = last(read(RESULTS / "collective_fit.csv"), "held_out", "link", "operation").values()
    body = (
        line(row["link"], row["held_out"], str(row["rows"]), percent(row["median"]), percent(row["p90"]))
        for row in rows
        if row["operation"] == "all"
    )
    return table(("collectives over", "fit", "rows", "median error, %", "90th percentile, %"), body)


def targets() -> list[str]:
    """Table of the targets of the project and what was reached."""
    found = last(read(RESULTS / "validation.csv"), "set", "seen")

    def lines() -> Iterator[str]:
        for title, key, figure, target in TARGETS:
            if key in found and found[key][figure] != "":
                reached = 100 * float(found[key][figure])
                missed = "" if reached <= target else ": missed"
                yield line(title, key[1], f"{target:g}", f"{reached:.1f}{missed}")

    return table(("target on", "seen", "error at most, %", "reached, %"), lines())


def unseen() -> list[str]:
    """Table of published runs that nothing was fitted to."""
    body = (
        line(
            str(row["run"]).replace("examples/", ""),
            f"{float(row['published_s']):.3g}",
            f"{float(row['predicted_s']):.3g}",
            f"{100 * float(row['error']):+.0f} %",
            "yes" if str(row["inside"]) == "True" else "no",
        )
        for row in read(RESULTS / "unseen_runs.csv")
    )
    return table(("run", "published, s", "predicted, s", "error", "inside"), body)


IN_BRIEF = (
    ("megatron_bridge", "language models and mixtures, Megatron-Bridge, H100"),
    ("megatron_bridge GB200", "the same on GB200"),
    ("mlperf v4.0 and v4.1", "MLPerf v4, tuned software"),
    ("published NeMo AutoModel, H100", "fine-tuning, NeMo AutoModel, H100"),
    ("published Qwen fine-tuning, A100", "fine-tuning, Hugging Face and DeepSpeed, A100"),
    ("lambda", "networks in PyTorch, one to eight V100, A100, RTX 3090, A6000"),
)
"""Sets of the README, with their titles there."""


def in_brief() -> list[str]:
    """Table of the README."""
    found = last(read(RESULTS / "validation.csv"), "set", "seen")
    rows = ((title, found[name, "none"]) for name, title in IN_BRIEF)
    body = (line(title, str(row["rows"]), percent(row["median"]), percent(row["inside"])) for title, row in rows)
    return table(("published steps, none of their chip seen", "rows", "error, median, %", "in the 80 % range, %"), body)


PAGES: Mapping[str, Sequence[Callable[[], list[str]]]] = {
    "docs/validation.md": (validation, memory, regret, ranges, products, collectives, unseen, targets),
    "docs/compare.md": (simulators,),
    "README.md": (in_brief,),
}
"""Tables of a page."""


def written(page: str, text: str) -> str:
    """The text of a page with its tables from the results."""
    for make in PAGES[page]:
        text = replaced(text, make())
    return text


def replaced(page: str, lines: Sequence[str]) -> str:
    """The page with the table that has the same head. Raises ValueError if there is none."""
    old = page.split("\n")
    if lines[0] not in old:
        raise ValueError(f"no table with the head {lines[0]}")
    start = old.index(lines[0])
    end = next((i for i in range(start, len(old)) if not old[i].startswith("|")), len(old))
    return "\n".join([*old[:start], *lines, *old[end:]])


def main() -> None:
    """Write the tables of every page."""
    for name in PAGES:
        path = ROOT / name
        path.write_text(written(name, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
