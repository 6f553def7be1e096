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
from held_out import ALL, OTHERS, Rows, coverages, fit, source, summary, unseen
from rows import read

from measured_rows import write


def missed(*sets: tuple[str, str, float], launch_s: float = 0.0, bias: float = 0.0) -> Rows:
    """Sets of 41 rows each, by source, link and the largest miss, where the model's half-widths are 0.5.

    The host launches 100 to 10,000 kernels a second, and takes ``launch_s`` more for each.
    """
    offs = np.concatenate([bias + largest * np.linspace(-1, 1, 41) for _, _, largest in sets])
    launches = np.geomspace(1e2, 1e4, len(offs)) if launch_s else np.zeros(len(offs))
    half = np.full(len(offs), 0.5)
    return Rows(
        lines=tuple((name, "none") for name, _, _ in sets),
        line=np.repeat(np.arange(len(sets)), 41),
        source=np.repeat([name for name, _, _ in sets], 41),
        link=np.repeat([link for _, link, _ in sets], 41),
        off=offs + np.log1p(launch_s * launches),
        low=half,
        high=half,
        launches=launches,
        measured=np.arange(len(offs)) % 2 == 0,
    )


def inside(rows: Rows, factors: dict[str, float]) -> float:
    """Share of the rows inside."""
    low, high = rows.half_widths(factors)
    return float(np.mean((-low <= rows.off) & (rows.off <= high)))


def test_the_factor_brings_four_fifths_inside() -> None:
    for largest in (0.2, 1.0, 2.0):  # it narrows too
        rows = missed(("a", "", largest))
        width = fit(rows, {"width": 1.0})
        assert math.exp(width["width"]) == pytest.approx(0.8 * largest / 0.5, rel=0.1)
        assert inside(rows, width) == pytest.approx(0.8, abs=0.05)


def test_each_end_has_its_own_factor() -> None:
    ends = fit(missed(("a", "", 0.5), bias=0.4), {"low": 1.0, "high": 1.0})
    assert ends["low"] < -0.4 < 0 < ends["high"]


def test_one_wide_set_does_not_widen_the_others() -> None:
    rows = missed(*((name, "", 0.1) for name in "abcdefghi"), ("wide", "", 2.0))
    assert math.exp(fit(rows, {"width": 1.0})["width"]) < 0.7


def test_the_slow_host_is_found_at_the_upper_end() -> None:
    rows = missed(*((name, "", 0.1) for name in "abcd"), launch_s=200e-6)
    found = fit(rows, {"width": 1.0, "launch_s": 100e-6})
    assert 100e-6 < math.exp(found["launch_s"]) < 400e-6
    low, high = rows.half_widths(found)
    assert high[-1] > high[0] and low[-1] == low[0]


def test_unmeasured_products_widen_both_ends() -> None:
    low, high = missed(("a", "", 1.0)).half_widths({"unmeasured": math.log(2)})
    assert low[:2].tolist() == high[:2].tolist() == pytest.approx([0.5, 1.0])


def test_an_unseen_link_widens_by_what_its_rows_needed() -> None:
    kind = "tuned software, corrected by records"
    others = [(name, "ethernet", 0.5) for name in "ab"]
    more = unseen({kind: missed(*others, ("c", "infiniband", 1.5))})
    assert more == pytest.approx(1.2 - 0.4, abs=0.1)
    assert unseen({kind: missed(*others)}) == 0.0
    assert unseen({kind: missed(("a", "ethernet", 0.5), ("c", "infiniband", 1.5))}) == 0.0  # one source is no kind


def test_factors_of_the_other_sources_do_not_know_the_source() -> None:
    kind = "tuned software, corrected by records"
    rows = missed(("narrow", "", 0.1), ("wide", "", 2.0))
    found = coverages({kind: rows}, {kind: {"width": math.log(4.0)}})
    shares = {(row["set"], row["factors_of"]): row["inside"] for row in found}
    assert shares["wide", OTHERS] < 0.15 and shares["narrow", OTHERS] == shares["narrow", ALL] == shares["wide", ALL] == 1.0
    assert all(row["below"] == row["above"] for row in found)
    assert summary(found, ALL) == {
        "sets": 2,
        "good": 0,
        "near": 0,
        "median": 1.0,
        "distance": pytest.approx(0.2),
        "width": pytest.approx(math.exp(4.0), rel=1e-4),
    }


def test_a_source_is_named_without_its_devices() -> None:
    names = ("mlperf v2.0 to v3.1", "published NeMo AutoModel, H100", "published NeMo Megatron launcher, A100")
    assert [source(name) for name in names] == ["mlperf", "NeMo AutoModel", "NeMo Megatron launcher"]


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
    others = [replace(point, measured=share * seconds, model=name) for share, name in ((1.4, "one"), (1.2, "two"), (1.3, ""))]
    whole = fit_prediction.neighbour(others, fit_prediction.fit_constants(others))
    without = fit_prediction.fit_constants([p for p in others if p.model != "one"])
    assert whole.without("one") == pytest.approx(without, rel=0.03)  # with the derivatives of all rows
    assert abs(np.log(whole.values / without)).max() > 0.03


def test_a_device_gets_a_factor_from_several_sources_without_its_chip() -> None:
    values = np.array([constant.prior for constant in fit_prediction.FITTED])

    def point(source: str, device: str, seconds: float) -> Point:
        group = (source, "model", device)
        return Point(group, "tuned", lambda levels: np.ones(2), np.full(2, seconds), f"chip of {device}", "model")

    several = [point("mlperf v4", "fast", 0.8), point("published other", "fast", 0.8)]
    one = [point("mlperf v2", "slow", 1.5), point("mlperf v4", "slow", 1.5)]
    rows = fit_prediction.missed([*several, *one], {"chip of fast": values, "chip of slow": values, "model": values})
    sigma = {"base": 0.1, "device": 0.1}
    factors = fit_prediction.device_effects(rows, "", values, "tuned", sigma)
    assert factors == {"fast": pytest.approx(math.exp(2 * math.log(0.8) / 3))}  # two sources and a prior as strong as one
    assert fit_prediction.device_effects(rows, "chip of fast", values, "tuned", sigma) == {}
