"""How a metric is written: with its unit and its range, and unknown where there is no number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from paceline.reporting import values
from paceline.reporting.values import HEADLINE, UNKNOWN, clean, relative_error, strategy_text, time_range, unusual_choices

WRITERS = (values.number, values.seconds, values.percent, values.size, values.memory, values.ratio, values.rate)

NUMBERS = st.floats(1e-9) | st.sampled_from((0.0, math.nan, -math.inf))
"""As large as floats are, and as small as what is measured."""


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@given(value=NUMBERS)
def test_any_number_is_short_and_never_nan(write, value):
    text = write(value)
    assert 0 < len(text) <= 20 and "nan" not in text and "inf" not in text
    assert (text == UNKNOWN) == (not math.isfinite(value))


@given(st.text(), st.integers(2, 40))
def test_a_name_is_one_printable_line(text, limit):
    line = clean(text, limit)
    assert len(line) <= limit and line.isprintable() and "  " not in line and line == line.strip()
    assert clean(line, limit) == line


@given(st.floats(1e-7, 1e3), st.floats(1, 3))
def test_a_range_has_the_unit_of_its_value(middle, factor):
    text = time_range(middle / factor, middle * factor, middle)
    assert text.count("-") >= 1 and text != "range unknown"
    assert text.rpartition(" ")[2] == values.seconds(middle).split()[1]
    assert time_range(math.nan, middle, middle) == "range unknown"


@given(st.floats(1e-6, 1e6), st.floats(-0.9, 10))
def test_an_error_is_relative_to_what_was_measured(measured, error):
    assert relative_error(measured * (1 + error), measured) == pytest.approx(error, abs=1e-9)
    assert math.isnan(relative_error(measured, 0.0)) and math.isnan(relative_error(math.inf, measured))


@pytest.mark.parametrize(
    ("share", "signed", "text"),
    [
        (0.967, False, "96.7 %"),
        (0.042, True, "+4.2 %"),
        (-0.5, True, "-50.0 %"),
        (1e6, True, "+100000000 %"),
        (math.nan, True, UNKNOWN),
    ],
)
def test_shares_in_percent(share, signed, text):
    assert values.percent(share, signed).replace(",", "") == text


def test_what_is_unknown_has_no_range():
    known, run = samples.metrics("dense"), samples.record("dense", step_time_s=math.nan)
    step = HEADLINE[0]
    assert step.text(run) == (UNKNOWN, "") and step.text(known)[1]
    assert HEADLINE[-1].text(known) == (UNKNOWN, ""), "a prediction does not know its accuracy"


def test_only_choices_that_were_made_are_shown():
    assert strategy_text({"compression": "terngrad", "servers": 1, "world_size": 4, "recompute": False, "options": {}}) == (
        "compression terngrad, world size 4"
    )
    assert strategy_text({"bucket_bytes": 26214400, "servers": 2}) == "bucket 26.2 MB, servers 2"
    assert strategy_text({"options": {"density": 0.01}, "clip": None}) == "density 0.01"


def test_choices_are_listed_by_name_and_value():
    at = {"offload": "optimizer", "grad_accum_steps": 2, "shard_devices": 8, "first_stage_layers": 3, "last_stage_layers": 4}
    bits = {"gather_bits": 8, "gradient_bits": 16, "residual_bits": 16, "dense_bits": 16}
    given = {
        **at,
        **bits,
        "codec_at": "nic",
        "residuals_at": "host",
        "context": 2,
        "schedule": "zero_bubble",
        "recompute": "full",
    }
    assert strategy_text(given) == ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())


def test_a_title_leaves_sizes_and_defaults_out():
    usual = {"world_size": 8, "global_batch_size": 64, "bucket_bytes": 1, "precision": "bf16", "compression": "dense"}
    assert not unusual_choices({**usual, "exchange": "allreduce", "sharding": "ddp"})
    assert unusual_choices({**usual, "exchange": "ring", "clip": 2.5}) == ["exchange ring", "clip 2.5"]
