"""The benchmark of predicted latencies: its short form, and what it removes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")

import edge_latency  # noqa: E402
import slim_prediction  # noqa: E402
import slim_promises  # noqa: E402
from edge_int8 import TINY  # noqa: E402
from promise_tables import misses, replaced, section  # noqa: E402
from rows import read  # noqa: E402

from paceline.slimming.latency.edge_times import Machine  # noqa: E402
from paceline.slimming.latency.onnx_nodes import ConvolutionWindow, OnnxNode  # noqa: E402
from paceline.slimming.structures.tracing import structures_of  # noqa: E402
from slimming_networks import Residual, images  # noqa: E402


@pytest.mark.full
def test_short_form_writes_a_row_for_each_slimmed_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slim_prediction, "SHORT", ("tiny",))
    monkeypatch.setattr(slim_prediction, "SHARES", (0.5,))
    monkeypatch.setattr(slim_prediction, "BUDGETS", (1.2, 1e6))
    out = tmp_path / "rows.csv"
    slim_prediction.main(["--short", "--out", str(out)])
    assert "1000000.0x: a budget of" in capsys.readouterr().out
    rows = read(out)
    assert [row["removed"] for row in rows] == ["random 0.5", "1.2x", "rank"]
    assert all(row["predicted_ms"] > 0 < row["measured_ms"] for row in rows)
    assert all((row["structures"] > 0) == (row["removed"] != "rank") for row in rows)
    slim_prediction.main(["--summary", "--out", str(out)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("all")


def test_random_removals_leave_whole_eights_and_something_of_each_layer() -> None:
    found = structures_of(Residual(), images())
    removed = slim_prediction.random_removal(found, 0.7, random.Random(1))
    left = {layer: sum(each.number not in removed for each in every) for layer, every in found.layers().items()}
    assert all(count >= 1 for count in left.values()) and removed


def test_published_latencies_stand_beside_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = OnnxNode("conv", (1, 64, 28, 28), 64, ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1)))
    monkeypatch.setattr(edge_latency, "measured", lambda name: ([("first", node, 1e-3)], 1e-4))
    out = tmp_path / "e.csv"
    edge_latency.main(["--short", "--out", str(out)])
    rows = read(out)
    assert [(row["device"], row["threads"]) for row in rows][:2] == [("Raspberry Pi 4", 4), ("Snapdragon 810", 1)]
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["published_ms"] - 1, abs=0.01)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    edge_latency.main(["--new", "--only", "alexnet", "--out", str(out)])
    assert [row["device"] for row in read(out)] == [row["device"] for row in rows]


def test_published_latencies_in_int8_have_peaks_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = OnnxNode("conv", (1, 64, 28, 28), 64, ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1)))
    monkeypatch.setattr(edge_latency, "measured", lambda name: ([("first", node, 1e-3)], 1e-4))
    monkeypatch.setattr(edge_latency, "this_machine", lambda: Machine(100e9, 20e9))
    out = tmp_path / "e.csv"
    edge_latency.main(["--int8", "--out", str(out)])
    every = {(row["device"], row["source"], row["network"], row["threads"]): row["predicted_ms"] for row in read(out)}
    slow, fast = (every[device, "Paddle-Lite", "resnet-50", 1] for device in ("Snapdragon 835", "Snapdragon 855"))
    assert slow / fast == pytest.approx(45.4 * 4 / (19.6 * 2), rel=0.01)  # by products, in the longer one of two ways
    assert len(every) == 116 and {name for _, _, name, _ in every} > set(TINY)
    edge_latency.main(["--int8", "--summary", "--out", str(out)])
    assert "| nRF5340 DK | 4 | microTVM |" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "products"), [("ic", 12.5e6), ("kws", 2.66e6), ("vww", 7.49e6), ("ad", 0.264e6)])
def test_networks_of_mlperf_tiny_have_the_products_of_the_reference_models(name: str, products: float) -> None:
    make, shape = TINY[f"tiny-{name}"]
    model, found = make().eval(), []
    for layer in model.modules():
        if hasattr(layer, "weight") and layer.weight.dim() > 1:
            layer.register_forward_hook(lambda layer, given, out: found.append(out.numel() * layer.weight[0].numel()))
    model(torch.zeros(1, *shape))
    assert sum(found) == pytest.approx(products, rel=0.01)


def test_a_network_is_measured_by_layer_and_step() -> None:
    nodes, rest = edge_latency.measured("lenet5")
    assert [name for name, _, _ in nodes] == ["conv1", "conv2", "fc1", "fc2"] and rest > 0


@pytest.mark.full
def test_short_form_of_the_promises_writes_rows_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    slim_promises.main(["--short", "--out", str(out)])
    rows = read(out)
    assert [row["architecture"] for row in rows] == list(slim_promises.SHORT) and rows[0]["error"] != ""
    assert rows[0]["low"] <= rows[0]["measured"] <= rows[0]["high"] < 1.5 and rows[0]["other_clock"] > 0
    slim_promises.main(["--summary", "--out", str(out)])
    assert "| all |" in capsys.readouterr().out


def test_the_summary_counts_networks_that_became_too_small_and_names_those_without_figures() -> None:
    made = {"from": "own", "budget": "speedup=2x", "error": 0.01, "low": 0.4, "high": 0.6, "load": 3, "why": ""}
    rows = [
        *(
            {**made, "architecture": f"{number}", "over": over}
            for number, over in enumerate((0.06, 0.04, -0.04, -0.06, -0.6, ""))
        ),
        {**made, "architecture": "3", "over": -0.07},
        {**made, "architecture": "a", "error": "", "over": "", "why": "a budget of 8 µs (1.2x) cannot be met"},
        {**made, "architecture": "b", "error": "", "over": "", "why": "B cannot be exported to ONNX: [96mno[0m."},
        {**made, "architecture": "c", "error": "", "over": "", "why": "ValueError: no"},
    ]
    text = section(rows, [*"012345abc", "other"])
    assert "2 of 5 were within 5 % of the budget, and 4 at most 5 % over it: 1 missed it, 2 became smaller" in text
    assert "The median is -4.0 %." in text and "(rows without it: 1)" in text and "in 6 of 6 with figures" in text
    assert "No budget of these can be met for 1: a. No file is exported of 1: b. Other errors end 1: c." in text
    assert "| own | 9 | 3 | 1.0 % | 6 | -4.0 % | 2 of 5 | 4 of 5 |" in text and "Not run: other." in text
    token = {**made, "architecture": "gpt2 decode", "from": "tokens", "budget": "decode=1.5x", "over": -0.06}
    text = section([*rows, token], [])
    assert "9 networks of `slim_reach.py` and 1 of language models" in text and "(language models: 1.5x)" in text
    assert "- The time of a token (gpt2, with free and equal widths): predicted" in text and "0 of 1 within 5 %" in text
    assert [line[0] for line in misses(rows)] == [*"034abc"] and "b: B cannot be exported to ONNX: no." in misses(rows)


def test_the_page_has_the_part_made_from_the_rows() -> None:
    page = (BENCHMARKS.parent / "docs" / "slim.md").read_text(encoding="utf-8")
    rows = read(BENCHMARKS / "results" / "slim_promises.csv")
    assert replaced(page, section(rows, list(slim_promises.NETWORKS))) == page, "slim_promises.py --summary --page docs/slim.md"
