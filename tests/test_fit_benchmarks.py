"""A short form of the benchmarks that fit constants and ranges to published rows, on made-up rows."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fit_prediction
import slow_clusters
import validation_table
from fit_rows import Point, kernels, steps
from held_out import Miss, Tails, all_tails, coverage, coverages, quantile, slow_host, tails, unseen
from rows import read

from measured_rows import write


def misses(link: str, scale: float, groups: int = 4, name: str = "") -> list[Miss]:
    """Groups of 21 rows that miss by -1 to 1, times ``scale``, where the model's half-widths are 0.5."""
    offs = scale * np.linspace(-1, 1, 21)
    return [Miss((name or str(group), f"{link} {group}"), link, off, 0.5, 0.5) for group in range(groups) for off in offs]


def slowed(rows: list[Miss], launch_s: float, name: str = "") -> list[Miss]:
    """The same where the host launches 100 to 10,000 kernels a second, and takes so much more for each."""
    launches = np.geomspace(1e2, 1e4, len(rows))
    group = [(name, row.group[1]) if name else row.group for row in rows]
    return [
        Miss(of, row.link, row.off + math.log1p(launch_s * rate), row.low, row.high, rate)
        for of, row, rate in zip(group, rows, launches, strict=True)
    ]


def test_a_tenth_of_the_rows_lies_beyond_each_tail() -> None:
    for scale, shift, near in ((2.0, 1.6 - 0.5, 0.21), (0.1, 0.08 - 0.5, 0.02)):  # they shrink too
        of = tails(misses("ethernet", scale))
        assert (of.low, of.high) == pytest.approx((shift, shift), abs=near)


def test_the_slow_host_is_found_in_the_upper_tail() -> None:
    rows = slowed(misses("ethernet", 0.1, groups=20), 200e-6)
    assert slow_host(rows) == pytest.approx(200e-6, abs=30e-6)
    assert slow_host(misses("ethernet", 2.0)) == 0.0  # nobody launches
    assert tails(rows, 200e-6).high == pytest.approx(tails(misses("ethernet", 0.1, groups=20)).high, abs=0.02)
    assert coverage(rows, tails(rows, 200e-6))["above"] == pytest.approx(0.1, abs=0.03)


def test_a_kind_of_few_groups_has_the_tails_of_its_software() -> None:
    kinds = {"made up software, few": misses("", 0.1, groups=2), "made up software, many": misses("", 2.0, groups=8)}
    kinds |= {"made up software, corrected by records": misses("", 0.1, groups=2), "other software, few": misses("", 9.0)}
    of = all_tails(kinds)
    assert of["made up software, few"] == tails([*kinds["made up software, few"], *kinds["made up software, many"]])
    assert of["made up software, many"] == tails(kinds["made up software, many"])
    assert "made up software, corrected by records" not in of  # another kind of knowledge: nothing is pooled


def test_a_group_of_many_rows_counts_as_much_as_one_of_few() -> None:
    groups = [("many", "a")] * 1000 + [("few", "a")]
    shifts = [5.0] * 1000 + [-5.0]
    assert quantile(shifts, groups, 0.4) == -5.0
    assert quantile(shifts, groups, 0.6) == 5.0


def test_an_unseen_link_widens_by_what_its_rows_needed() -> None:
    def more(*rows: Miss) -> float:
        return unseen({"kind": rows}, {"kind": tails(rows)})

    kind = misses("ethernet", 1.0) + misses("infiniband", 3.0)
    assert more(*kind) == pytest.approx((1.6 + 0) / 2, abs=0.2)  # one needs 1.6 more, the other 1.6 less
    assert more(*misses("ethernet", 1.0)) == 0.0
    assert more(*misses("ethernet", 1.0, groups=1), *misses("infiniband", 3.0, groups=1)) == 0.0


def test_coverage_counts_rows_on_either_side() -> None:
    shares = coverage(misses("ethernet", 2.0), Tails(0.5, 1.0))  # -2 to 2 in steps of 0.2; ends at -1 and 1.5
    assert list(shares) == ["inside", "below", "above"]
    assert list(shares.values()) == pytest.approx([13 / 21, 5 / 21, 3 / 21], abs=1e-4)
    assert coverage(misses("ethernet", 0.4), Tails(-9.0, -9.0))["inside"] > 0  # the step stays inside


def test_tails_of_the_other_sets_do_not_know_the_set() -> None:
    narrow, wide = misses("", 1.0, name="narrow"), misses("", 10.0, name="wide")
    inside = {(row["set"], row["tails_of"]): row["inside"] for row in coverages({"kind": narrow + wide})}
    assert inside["wide", "the other sets"] < 0.15 and inside["narrow", "the other sets"] == 1.0
    assert inside["wide", "all sets"] > 0.5
    assert len(coverages({"kind": narrow})) == 1  # no other set


def test_the_table_of_a_fit_holds_out_the_chip_the_model_and_the_scale() -> None:
    values = np.array([constant.prior for constant in fit_prediction.FITTED])
    point = Point(
        group=("made up",),
        level="tuned",
        work=lambda levels: np.array([1.0, 1.0]),
        measured=np.array([0.5, 2.0]),
        chip="chip",
        model="model",
        scales=("scale",),
    )
    row = fit_prediction.table([point], {"chip": values, "scale": values}, values).splitlines()[1].split()
    # steps of 1 s, measured as 0.5 and 2 s: errors of +100 % and -50 %; no constants without the model
    assert row == ["made", "up", "2", "75.0%", "75.0%", "+25.0%", "nan%", "+nan%", "75.0%", "+25.0%"]


def test_the_validation_table_keeps_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "lambda_single_node.csv", "lambda", [{}, {"throughput": "500"}])
    monkeypatch.setattr(validation_table, "RUNS", (("lambda", "none"),))
    out = tmp_path / "validation.csv"
    validation_table.main(str(tmp_path), out)
    (kept,) = read(out)
    assert kept["rows"] == 2 and kept["mape"] > 0 and (kept["set"], kept["seen"]) == ("lambda", "none")
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].startswith(f"| lambda | none | 2 | 100.0 | {100 * kept['mape']:.1f} |")


def test_the_variant_of_a_cluster_is_chosen_on_the_others() -> None:
    def scored(mape: float) -> slow_clusters.Score:
        return slow_clusters.Score((mape,), (True,), ())

    first, second = [*slow_clusters.VARIANTS][:2]
    errors = {"a": (0.1, 0.9), "b": (0.5, 0.2), "c": (0.5, 0.3)}
    found = {(c, "noisy", v): scored(9.0) for c in errors for v in slow_clusters.VARIANTS}
    found |= {(c, "noisy", v): scored(e) for c, both in errors.items() for v, e in zip((first, second), both, strict=True)}
    best = {cluster: one.mape for (cluster, *_), one in slow_clusters.chosen(found).items()}
    assert best == {"a": 0.9, "b": 0.5, "c": 0.5}  # on b and c the second is better, on a and another the first


def test_the_best_other_predictor_answers_half_of_the_rows() -> None:
    figures = {
        "points": 10,
        "baselines": {"linear scaling": 0.3, "Pollux form": 0.01, "constant MFU": 0.2},
        "baseline_points": {"linear scaling": 10, "Pollux form": 4, "constant MFU": 5},
        "mape_on_baseline_rows": {"linear scaling": 0.1, "Pollux form": 0.2, "constant MFU": 0.15},
    }
    assert list(validation_table.best_other(figures).values()) == ["constant MFU", 0.2, 0.15]
    assert set(validation_table.best_other({**figures, "baselines": {}}).values()) == {""}


def test_single_kernels_are_read_and_predicted(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    columns = "op,gpu,latency_ms,B,M,N,K,H,conv_in,conv_out,conv_kernel,conv_input_hw"
    rows = [
        "linear,NVIDIA A100-PCIE-40GB,1.5,1,4096,4096,1024,,,,,",
        "conv,NVIDIA A100-PCIE-40GB,1.0,16,,,,,64,64,3,56",
        "softmax,NVIDIA A100-PCIE-40GB,0.5,4096,,,,4096,,,,",
        "softmax,NVIDIA A100-PCIE-40GB,0.01,8,,,,8,,,,",  # shorter than a launch
    ]
    path.write_text("\n".join([columns, *rows]) + "\n")
    levels = fit_prediction.applied(np.array([constant.prior for constant in fit_prediction.FITTED]))
    predicted = {point.group[1]: point.predict(levels) for point in kernels(path)}
    assert {kind: len(seconds) for kind, seconds in predicted.items()} == {"linear": 1, "conv": 1, "softmax": 1}
    least = 2 * 4096 * 4096 * 1024 / 19.5e12
    assert least < predicted["linear"][0] < 3 * least


def test_rows_in_which_a_device_works_are_read_and_predicted(tmp_path: Path) -> None:
    path = write(tmp_path / "lambda_single_node.csv", "lambda", [{"num_gpus": "1"}, {"num_gpus": "8"}])
    (point,) = steps("lambda", path)
    values = np.array([constant.prior for constant in fit_prediction.FITTED])
    levels = fit_prediction.applied(values)
    seconds = point.at(levels).predict(levels)
    assert len(seconds) == 1 and 0 < seconds[0] < 10  # the row of one device
    names = [constant.name for constant in fit_prediction.FITTED]
    fitted = fit_prediction.fit_constants([replace(point, measured=2 * seconds)])
    assert fitted[names.index("memory_share")] < values[names.index("memory_share")]  # a step twice as long: slower memory
