"""Console text: never wider than asked for, every number with its unit, and unknown where there is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import paceline
import samples
from paceline.record import Metrics
from paceline.reporting import prediction_screen, render
from paceline.reporting.text.screen import NARROWEST, WIDEST
from paceline.reporting.text.table import step_time_error
from paceline.reporting.values import memory, seconds, step_range

RUNS = ("dense", "terngrad")
PREDICTIONS = {k: samples.metrics(k) for k in RUNS}
RECORDS = {k: samples.record(k) for k in RUNS}


def test_table_of_the_demonstration() -> None:
    text = render(PREDICTIONS, RECORDS)
    for part in ("step time", "samples/s", "wire bytes", "compression", "final accuracy", "step time", "terngrad"):
        assert part in text
    row = next(line for line in text.splitlines() if "final accuracy" in line)
    assert row.split() == ["final", "accuracy", "unknown", "97.8", "%", "unknown", "97.4", "%"]
    assert "12.9 ms" in text
    assert "(11.0-15.5)" in text
    assert "2.59 MB" in text
    assert "14.3x" in text
    assert "+7.5 %" in text
    assert "ok" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_prediction_error_and_its_verdict() -> None:
    measured = RECORDS["dense"]
    for factor, verdict in ((1.0, "ok"), (1.25, "ok"), (0.75, "ok"), (1.3, "off"), (0.5, "off")):
        base = samples.metrics("dense", step_time_s=measured.step_time_s * factor)
        error, said = step_time_error(base, measured)
        assert error == pytest.approx(factor - 1)
        assert said == verdict or factor in (1.25, 0.75)  # rounding decides at the very edge
    assert step_time_error(None, measured)[1] == "unknown"
    assert step_time_error(samples.metrics("dense", step_time_s=math.nan), measured)[1] == "unknown"


def test_missing_side_is_unknown() -> None:
    assert render({}, RECORDS).count("unknown") == 12  # five metrics and the error, twice
    assert "unknown" in render(PREDICTIONS, {})
    assert render({}, {}).strip()


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_any_number_of_runs_fits(n: int) -> None:
    runs = {f"run {k} with a long name": samples.metrics("terngrad") for k in range(n)}
    text = render(runs, {k: samples.record("terngrad") for k in runs})
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"run {k}" in text for k in range(n))


nasty = st.floats() | st.sampled_from([0.0, 1e-300, 1e300, -1.0, math.nan, math.inf, 119.9996, 7199.9])


@st.composite
def odd_metrics(draw: st.DrawFn) -> Metrics:
    names = ("step_time_s", "low_s", "high_s", "samples_per_s", "compute_s", "comm_s", "codec_s", "exposed_comm_s")
    change = {name: draw(nasty) for name in (*names, "compression_ratio", "memory_bytes")}
    return samples.metrics(
        "terngrad",
        **change,
        workload=draw(st.text()),
        bottleneck=draw(st.text()),
        wire_bytes_per_device=draw(st.integers(0, 10**30)),
        assumptions=(draw(st.text()), "x" * 300),
        strategy={"compression": draw(st.text()), "exchange": None},
    )


@pytest.mark.long
@settings(max_examples=30)
@given(odd_metrics(), st.text(max_size=60), st.integers(1, 4), st.integers(NARROWEST, WIDEST))
def test_no_line_is_wider_than_asked(run: Metrics, label: str, runs: int, width: int) -> None:
    records = {f"{label}{n}": samples.record("dense") for n in range(runs)}
    compared = render({f"{label}{n}": run for n in range(runs)}, records, width)
    for text in (compared, prediction_screen(run).text(width, why=True)):
        assert max((cell_len(line) for line in text.split("\n")), default=0) <= width
        assert "\x1b" not in text
    assert "\n" not in prediction_screen(run).brief_line()


def test_wide_characters_are_counted_as_columns() -> None:
    run = samples.metrics("dense", workload="網路" * 40, assumptions=("訓練" * 60,))
    assert max(cell_len(line) for line in prediction_screen(run).text(why=True).splitlines()) <= 80


def test_a_prediction_answers_first_and_says_why_when_asked() -> None:
    run = samples.metrics("terngrad")
    text, more = prediction_screen(run).text(), prediction_screen(run).text(why=True)
    assert text.startswith("mnist-mlp, batch 256, float32, sgd, compression terngrad") and "predicted\n" in text
    for part in ("5.12 ms (4.35-6.14 ms)", "samples/s", "181 kB per step per worker, 14.3x less than dense", "MiB a device"):
        assert part in " ".join(text.split())
    assert "waits for   compute" in text and "exposed comm." in text and text.splitlines()[-1].startswith("Why: add --why (")
    assumption = "  - the network link gives 1 Gb/s per direction"
    assert assumption in more and assumption not in text and "add --why" not in more


def test_what_says_nothing_is_not_printed() -> None:
    p = paceline.predict("resnet-50", "2x8 A100", network="100Gb/s", global_batch_size=512)
    text = prediction_screen(p).text(why=True)
    assert p.compression_ratio == 1 and p.codec_s == 0
    assert "1.00x" not in text and "codec" not in text and "network, busy" in text
    alone = prediction_screen(paceline.predict("resnet-50", "1 A100", global_batch_size=64)).text()
    assert "exchange" not in alone and "network" not in alone


def test_an_answer_is_about_fifteen_lines_and_names_memory_and_money() -> None:
    p = paceline.predict("resnet-50", "2x8 A100", network="100Gb/s", global_batch_size=512, compression="terngrad")
    screen = prediction_screen(p)
    dense = paceline.predict("resnet-50", "2x8 A100", network="100Gb/s RoCE", global_batch_size=512)
    assert len(prediction_screen(dense).text(100).splitlines()) <= 18  # with every bar that a dense step has
    assert "of 80.0 GiB a device" in screen.text() and "an hour for 16 devices (CoreWeave" in screen.text()
    assert screen.brief_line() == (
        f"{screen.title.removesuffix(', predicted')}: {seconds(p.step_time_s)} a step ({step_range(p)}), "
        f"{memory(p.memory_bytes)} of 80.0 GiB a device, waits for {p.bottleneck}"
    )
    assert all(" ".join(a.split()) in " ".join(screen.text(200, why=True).split()) for a in p.assumptions)


def test_the_bubble_of_a_pipeline_is_no_compute_and_no_exchange() -> None:
    p = paceline.predict(
        "gpt2", "8 A100", paceline.Strategy.of(world_size=8, pipeline=8, micro_batches=8, global_batch_size=64)
    )
    text = prediction_screen(p).text()
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ") and line.endswith("%")}
    shares = [float(lines[name].split()[-2]) for name in ("compute", "bubble", "exposed")]
    assert sum(shares) == pytest.approx(100, abs=0.3) and shares[1] > 15
    assert "compute, bubble and exposed communication add up to it" in text
