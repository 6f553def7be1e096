"""What the terminal shows of a slimmed network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.reporting.screen import NARROWEST, WIDEST
from paceline.reporting.slim_text import LAYERS, predicted_screen, slim_screen
from paceline.slim_record import SlimPrediction, WidthPrediction
from slim_records import deep, record

PREDICTION = SlimPrediction(
    model="lenet5",
    method="auto",
    target="onnxruntime",
    budget="speedup=3x",
    threads=1,
    latency_s=4e-3,
    widths=(WidthPrediction(0.5, 2e-3, 1e6), WidthPrediction(0.25, 1e-3, 3e5)),
    layers={**{f"layer {number}": 1e-4 for number in range(20)}, "slow": 2e-3},
    budget_share=0.34375,
    kept={"fc2": "the output of the network"},
)


@pytest.mark.parametrize("width", range(NARROWEST, WIDEST + 1))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for screen in (slim_screen(record()), slim_screen(deep()), predicted_screen(PREDICTION)):
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


def test_widths_that_meet_the_budget() -> None:
    text = " ".join(predicted_screen(PREDICTION).text(120).split())
    assert "takes 4.00 ms, measured on this machine; 34% of all structures meet speedup=3x, predicted." in text
    assert "0.25 1.00 ms 4.00x 300 kB" in text and "slow" in text
    without = predicted_screen(replace(PREDICTION, budget_share=None))
    assert "no equal share meets speedup=3x" in without.brief
