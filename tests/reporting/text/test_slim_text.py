"""What the terminal shows of a slimmed network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.reporting.text.screen import NARROWEST, WIDEST
from paceline.reporting.text.slim_text import LAYERS, predicted_screen, slim_screen
from paceline.slim_record import PredictedForm, PredictedRow, PublishedDevice, SlimPrediction
from slim_records import deep, record

PREDICTION = SlimPrediction(
    model="lenet5",
    method="auto",
    target="onnxruntime",
    budget="speedup=3x",
    threads=1,
    latency_s=4e-3,
    varied="width",
    rows=(PredictedRow("width", 0.5, 4, 2e-3, 1e6), PredictedRow("width", 0.25, 4, 1e-3, 3e5)),
    layers={**{f"layer {number}": 1e-4 for number in range(20)}, "slow": 2e-3},
    goal=4e-3 / 3,
    meets=PredictedRow("width", 0.34375, 4, 1.3e-3, 5e5),
    kept={"fc2": "the output of the network"},
)
ELSEWHERE = replace(
    PREDICTION,
    threads=6,
    rows=(PredictedRow("width", 0.5, 4, 2e-3, 1e6, 1e-3, 4e-3),),
    device=PublishedDevice(
        "A board", 4, 1e10, 4e10, 5e9, {name: f"{name}, read" for name in ("one_core", "all_cores", "bandwidth")}
    ),
    low_s=2e-3,
    high_s=8e-3,
)


@pytest.mark.parametrize("width", range(NARROWEST, WIDEST + 1))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for screen in (slim_screen(record()), slim_screen(deep()), predicted_screen(PREDICTION), predicted_screen(ELSEWHERE)):
        assert max(map(len, screen.text(width, why=True).splitlines())) <= width


def test_before_after_and_predicted_stand_beside_each_other() -> None:
    text = " ".join(slim_screen(record()).text(120).split())
    for words in (
        "lenet5 slimmed to speedup=3x (auto)",
        "3.20x faster on onnxruntime: 4.00 ms before, 1.25 ms after; accuracy 98.10 % before, 97.80 % after.",
        "latency 4.00 ms 1.25 ms",
        "predicted 1.20 ms (-4%)",
        "quartiles 1.20 ms to 1.40 ms; 1 thread, in alternation",
        "90 of 500",
        "a note",
        "fc2 the output of the network",
        "in int8: file 230 kB",
    ):
        assert words in text
    assert slim_screen(record()).brief == "lenet5: 3.20x faster, accuracy 98.10 % before, 97.80 % after"


def test_layers_that_stay_whole_for_one_reason_are_one_line() -> None:
    kept = {"b": "cumsum needs it whole", **{f"block {number}": "layer_norm averages over it" for number in range(12)}}
    lines = [" ".join(line.split()) for line in slim_screen(record(kept=kept)).text(120).splitlines()]
    assert "b cumsum needs it whole" in lines and "12 layers layer_norm averages over it" in lines
    assert not any("block" in line for line in lines)


def test_what_is_not_known_is_said() -> None:
    made = record(predicted_s=0.0, whole=replace(record().whole, accuracy=None, loss=None), quantised=None)
    text = slim_screen(made).text(100)
    assert "accuracy unknown before" in text and "held-out loss" not in text and "int8" not in text
    assert "unknown" in next(line for line in text.splitlines() if line.startswith("predicted"))


def test_many_layers_are_cut_to_those_that_changed_most() -> None:
    text = slim_screen(deep(60)).text(100)
    assert f"{60 - LAYERS} layers that changed less are in slim.json." in text and text.count("#") > 0


def test_a_prediction_is_not_a_slimmed_network() -> None:
    with pytest.raises(ValueError, match="was measured"):
        slim_screen(record(slimmed=None))


def words_of(prediction: SlimPrediction) -> str:
    return " ".join(predicted_screen(prediction).text(120).split())


def test_widths_that_meet_the_budget() -> None:
    text = words_of(PREDICTION)
    assert "lenet5 on onnxruntime: what other widths would take" in text
    unmeasured = words_of(replace(PREDICTION, target="tensorrt"))
    assert "lenet5 for tensorrt, timed on onnxruntime: what other widths would take" in unmeasured
    assert "takes 4.00 ms, measured on this machine; 34.4 % of all structures meet speedup=3x, predicted." in text
    assert "25 % 1.00 ms 4.00x 4 300 kB" in text and "slow" in text and "range" not in text
    assert "no equal share meets speedup=3x" in predicted_screen(replace(PREDICTION, meets=None)).brief
    form = PredictedForm(
        weights="int8",
        ratio=0.3,
        low=0.3,
        high=0.3,
        file_bytes=1,
        predicted_bytes=1.0,
        accuracy=None,
        alone="yes",
        share=None,
        text="",
    )
    assert "4.00 ms; int8 alone meets speedup=3x; 34.4 %" in predicted_screen(replace(PREDICTION, forms=(form,))).brief
    slower = replace(PREDICTION, forms=(replace(form, alone="no"),))
    assert predicted_screen(slower).brief == predicted_screen(PREDICTION).brief


@pytest.mark.parametrize(
    ("varied", "words"),
    [
        ("rank", ("what other ranks would take", "share of the full rank", "12.5 % of the full ranks meet")),
        ("sparsity", ("what other sparsities would take", "zeros latency", "12.5 % zeros meet")),
    ],
)
def test_what_is_varied_is_said(varied: str, words: tuple[str, ...]) -> None:
    row = PredictedRow(varied, 0.125, 2, 1e-3, 3e5)
    text = words_of(replace(PREDICTION, varied=varied, rows=(row,), meets=row))
    assert all(each in text for each in words) and "structures" not in text


def test_a_loss_of_accuracy_is_not_predicted() -> None:
    text = words_of(replace(PREDICTION, budget="accuracy=-1pt", goal=None, meets=None))
    assert "whether widths meet accuracy=-1pt is not known." in text


def test_a_published_device_has_ranges_and_sources() -> None:
    text = words_of(ELSEWHERE)
    for words in (
        "lenet5 on A board: what other widths would take",
        "takes 4.00 ms (2.00-8.00 ms) on 4 cores of A board, predicted; 34.4 %",
        "50 % 2.00 ms 1.00-4.00 ms 2.00x",
        "one core 10.0 GFLOP/s: one_core, read",
        "all cores 40.0 GFLOP/s: all_cores, read",
        "memory 5.00 GB/s: bandwidth, read",
    ):
        assert words in text
    assert "measured on this machine" not in text


def test_how_it_was_trained_and_how_sure_the_accuracy_is() -> None:
    text = " ".join(slim_screen(record()).text(160).split())
    for words in (
        "of 360 labels, 95 % 96.1 to 99.1 % 95.7 to 98.9 %",
        "trained data digits, 360 labels held out; epochs whole network 10, path 5, slimmed network 5;",
        "optimizer momentum, rate 0.05, batches of 64; workers 2, gradients terngrad; distillation share 0.5; seed 7",
    ):
        assert words in text
    before = " ".join(slim_screen(record(training=None, held_out=0)).text(160).split())
    assert "trained data digits" in before and "95 %" not in before and "seed" not in before
