"""What benchmarks/README.md shows is what the results say: tables that are not drawn by a summary."""

from __future__ import annotations

import csv
from itertools import groupby
from math import prod
from pathlib import Path

import pytest

from paceline.workload import Workload

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_steps_of_lars_and_lamb_and_how_much_faster_they_are_than_others() -> None:
    times, floors, count = [], [], 0
    runs: dict[tuple[str, str], int] = {}
    for (optimizer, threads, _), own in groupby(
        rows("optimizer_speed.csv"), lambda r: (r["optimizer"], r["threads"], r["commit"])
    ):
        group = list(own)
        ms = {row["contender"]: float(row["ms"]) for row in group}
        peers = {row["contender"]: float(row["ms"]) for row in group if row["kind"] == "peer"}
        del peers["paceline foreach"]  # ours, for what the kernels do not serve
        best, ours, head = min(peers, key=lambda name: peers[name]), ms["paceline"], group[0]
        floor = float(head["floor_ms"])
        in_place = floor * float(head["memcpy_gb_per_s"]) / float(head["in_place_gb_per_s"])
        run = runs[optimizer, threads] = runs.get((optimizer, threads), 0) + 1
        plain = ms["plain foreach"]
        line = (
            f"| {optimizer.upper()} | {threads} | {run} | {ours:.3g} | {peers[best]:.3g}, {best} ({peers[best] / ours:.2f}x) |"
            f" {plain:.3g} ({plain / ours:.2f}x) | {ms['fused AdamW']:.3g} | {floor:.3g} ({ours / floor:.2f}x) |"
            f" {in_place:.3g} ({ours / in_place:.2f}x) |"
        )
        assert line in PAGE.splitlines(), line
        times.append(peers[best] / ours)
        floors.append(ours / floor)
        count += 1
    assert count >= 4
    said = f"{min(times):.1f} to {max(times):.1f} times as fast as any peer (target 2"
    assert said in PAGE and f"{min(floors):.1f} to {max(floors):.1f} times the floor of bandwidth" in PAGE


@pytest.mark.parametrize("name", ["accuracy_cifar10.csv", "accuracy_fashion-mnist.csv"])
def test_powersgd_sends_two_factors_of_each_matrix_and_the_rest_dense(name: str) -> None:
    """Vogels et al. 2019: r (a + b) values of an a x b matrix where that is less than half, over a ring all-reduce; 1 flag."""
    checked = 0
    for row in rows(name):
        if row["compression"] != "powersgd":
            continue
        values = 1
        for shape in (p.shape for p in Workload.named(row["network"]).parameters):
            a, b = shape[0], prod(shape[1:])
            r = min(2, a, b)
            values += r * (a + b) if len(shape) > 1 and 2 * r * (a + b) < a * b else a * b
        workers = int(row["workers"])
        assert int(row["sent_bytes"]) == pytest.approx(4 * values * 2 * (workers - 1) / workers, rel=0.01)
        checked += 1
    assert checked == 10
