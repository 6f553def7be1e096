"""The tables of the lab on this folder's page, from the results.

    python benchmarks/lab_tables.py              prints them
    python benchmarks/lab_tables.py --write      puts them into README.md, each below the heading that it has there

Sentences beside the tables are not changed. A table whose rows are not there yet is left out.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lab_errors import table as shared
from rows import read

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Row = dict[str, Any]
FIGURE_12 = "| network | system | step, s (range) | predicted, s (range) | over WA | paper | communication cut | step cut |"
SHARES = (
    "| network | system | communication's share | step, s (range) | predicted, s (range) | over WA | paper |"
    " communication cut | step cut | paper |"
)
HOOKS = "| | step, s (range) | predicted, s (range) | MB sent | times dense | times bf16 |"
ERRORS = "| with the model of this machine | 2 hosts | 4 hosts | 8 hosts | all |"
PLAIN = "| `paceline predict` | 2 hosts | 4 hosts | 8 hosts | all |"
AUTO = "| network | link | DDP, s | auto, s | auto over DDP (range) | took |"
SHARED = "| steps | rows | median then | now | mean then | now | largest then | now |"
SPEED_UP = "| network | link | hosts | dense, s (range) | TernGrad, s (range) | speed-up | predicted |"


def seconds(row: Row, name: str = "step") -> str:
    """Median and range; one number where there is one."""
    middle, low, high = (float(row[f"{name}{end}"]) for end in ("_s", "_low_s", "_high_s"))
    return f"{middle:.3g}" if low == high else f"{middle:.3g} ({low:.3g}-{high:.3g})"


def figure_12(rows: Sequence[Row], condition: str) -> Iterator[str]:
    """INCEPTIONN's systems in one condition; rows from before there were two are in the first."""
    for r in rows:
        if (r.get("condition") or "seconds") != condition:
            continue
        known = r["published_normalised"] != ""
        paper = f"{r['published_normalised']:.3g}" if known else "-"
        cuts = f"{r['comm_cut']:.1%} | {r['step_cut']:.1%}"
        over = f"{seconds(r)} | {seconds(r, 'predicted')} | {r['normalised']:.2f} | {paper} | {cuts}"
        if condition == "seconds":
            yield f"| {r['network']} | {r['system']} | {over} |"
        else:
            cut = f"{1 - r['published_normalised']:.1%}" if known else "-"
            yield f"| {r['network']} | {r['system']} | {r['comm_share']:.1%} | {over} | {cut} |"


def speed_up(rows: Sequence[Row]) -> Iterator[str]:
    """TernGrad beside dense."""
    dense = {}
    for r in rows:
        key = f"| {r['network']} | {r['link']} | {r['hosts']} |"
        if r["compression"] == "dense":
            dense[key] = seconds(r)
        else:
            yield f"{key} {dense[key]} | {seconds(r)} | {r['speed_up']:.2f} | {r['predicted_speed_up']:.2f} |"


def auto(rows: Sequence[Row]) -> Iterator[str]:
    """auto beside DDP: medians of the runs, and what auto took in how many of them."""
    for key in dict.fromkeys((r["network"], r["link"]) for r in rows):
        own = [r for r in rows if (r["network"], r["link"]) == key]
        ratios = [r["ratio"] for r in own]
        ddp, chosen = (median(r[name] for r in own) for name in ("ddp_s", "auto_s"))
        took = ", ".join(f"{way} ({count})" for way, count in Counter(r["way"] for r in own).most_common())
        over = f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        yield f"| {key[0]} | {key[1]} | {ddp:.3g} | {chosen:.3g} | {over} | {took} |"


def hooks(rows: Sequence[Row]) -> Iterator[str]:
    """Paceline's compressions beside PyTorch's hooks. What a host sends is what its link counted, headers included."""
    for r in rows:
        name = f"auto ({r['way']})" if r["label"] == "auto" else r["label"]
        predicted = seconds(r, "predicted") if r["predicted_s"] != "" else "-"
        yield (
            f"| {name} | {seconds(r)} | {predicted} | {r['socket_mb']:.4g} | {r['times_dense']:.2f} | {r['times_bf16']:.2f} |"
        )


def errors(rows: Sequence[Row], name: str = "error") -> Iterator[str]:
    """Mean error of the predicted steps by link, by method and of all."""
    for column in ("link", "method", ""):
        for value in dict.fromkeys(r[column] for r in rows) if column else ("all",):
            own = [r for r in rows if not column or r[column] == value]
            groups = [[r for r in own if r["hosts"] == hosts] for hosts in (2, 4, 8)] + [own]
            means = (f"{fmean(100 * abs(r[name]) for r in group):.1f}" for group in groups)
            yield f"| {value} | {' | '.join(means)} |"


def tables() -> dict[str, list[str]]:
    """Heading of a table on the page: its lines, from the rows that are there."""
    inceptionn, predicted = read(RESULTS / "inceptionn_lab.csv"), read(RESULTS / "predict_lab.csv")
    found = {
        FIGURE_12: list(figure_12(inceptionn, "seconds")),
        SHARES: list(figure_12(inceptionn, "shares")),
        HOOKS: list(hooks(read(RESULTS / "against_hooks.csv"))),
        ERRORS: list(errors(predicted)),
        PLAIN: list(errors(predicted, "plain_error")),
        AUTO: list(auto(read(RESULTS / "auto_runs.csv"))),
        SPEED_UP: list(speed_up(read(RESULTS / "speedup_lab.csv"))),
        SHARED: shared(read(RESULTS / "lab_errors.csv")).splitlines()[2:],
    }
    return {heading: lines for heading, lines in found.items() if lines}


def put(page: str, heading: str, lines: Sequence[str]) -> str:
    """The page with these lines below the heading, instead of those that are there. Raises SystemExit without the heading."""
    text = page.split("\n")
    if heading not in text:
        raise SystemExit(f"no table on the page begins with {heading}")
    first = text.index(heading) + 2
    last = next((i for i in range(first, len(text)) if not text[i].startswith("|")), len(text))
    return "\n".join([*text[:first], *lines, *text[last:]])


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into README.md")
    options = parser.parse_args()
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    for heading, lines in tables().items():
        if options.write:
            page = put(page, heading, lines)
        else:
            print("\n".join([heading, "|---" * (heading.count("|") - 1) + "|", *lines, ""]))
    if options.write:
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
