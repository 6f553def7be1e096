"""Text in, SI floats inside, three significant digits out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline import units
from paceline.errors import UserError
from paceline.units import parse_bandwidth, parse_bytes, parse_count, parse_seconds, parse_tokens


@each_row(
    ("text", "bytes_per_s"),
    [
        ("10Gb/s", 1.25e9),
        ("10Gbps", 1.25e9),
        ("10Gbit/s", 1.25e9),
        ("10 Gb/s", 1.25e9),
        (" 10Gb/s ", 1.25e9),
        ("1.25GB/s", 1.25e9),
        ("1.25GBps", 1.25e9),
        ("1250MB/s", 1.25e9),
        ("0.4Tb/s", 5e10),
        (".5Gb/s", 6.25e7),
        ("1e9B/s", 1e9),
        ("8b/s", 1.0),
        ("1kB/s", 1e3),
        ("1KB/s", 1e3),
        ("1KiB/s", 1024.0),
        ("5GiB/s", 5 * 2.0**30),
    ],
)
def test_parse_bandwidth(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s, rel=1e-12)


@each_row(
    ("text", "size"),
    [
        ("25MiB", 25 * 2.0**20),
        ("1.7MB", 1.7e6),
        ("80GiB", 80 * 2.0**30),
        ("1TiB", 2.0**40),
        ("1PB", 1e15),
        ("1EB", 1e18),
        ("1e3B", 1e3),
        ("2E+3 B", 2e3),
        ("8b", 1.0),
        ("1Kib", 128.0),
        ("512B", 512.0),
    ],
)
def test_parse_bytes(text: str, size: float) -> None:
    assert parse_bytes(text) == pytest.approx(size, rel=1e-12)


def test_a_small_b_is_a_bit_and_a_capital_one_a_byte() -> None:
    assert parse_bandwidth("1GB/s") == 8 * parse_bandwidth("1Gb/s")
    assert parse_bytes("1MB") == 8 * parse_bytes("1Mb")


@each_row(
    "text",
    ["", "10", "10G", "10Gb", "10GB", "Gb/s", "10gb/s", "10 Gb / s", "-10Gb/s", "ten Gb/s", "1,5Gb/s", "1 0Gb/s"],
)
def test_what_is_not_a_bandwidth(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a bandwidth; write it as 10Gb/s \(bits\) or 1.25GB/s \(bytes\)"):
        parse_bandwidth(text)


@each_row("text", ["", "25", "25M", "25MiB/s", "25mB", "25 Mi", "-1B", "0x10B", "nanB", "infB", "１B"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a size; write it as 25MiB or 26\.2MB"):
        parse_bytes(text)


@each_row("text", ["0B", "0.0GB", "1e400B", "1e-400B"])
def test_a_size_is_positive_and_finite(text: str) -> None:
    with pytest.raises(UserError, match="is not a positive size"):
        parse_bytes(text)


def test_a_bandwidth_is_positive() -> None:
    with pytest.raises(UserError, match="is not a positive bandwidth"):
        parse_bandwidth("0Gb/s")


positive = st.floats(1e-3, 1e20)


@given(positive)
def test_bandwidth_round_trip(value: float) -> None:
    assert parse_bandwidth(units.format_bandwidth(value)) == pytest.approx(value, rel=5.001e-3)


@given(positive)
def test_byte_rate_round_trip(value: float) -> None:
    assert parse_bandwidth(units.format_byte_rate(value)) == pytest.approx(value, rel=5.001e-3)


@given(positive)
def test_bytes_round_trip(value: float) -> None:
    assert parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=5.001e-3)


@given(positive)
def test_memory_round_trip(value: float) -> None:
    assert parse_bytes(units.format_memory(value)) == pytest.approx(value, rel=5.001e-3)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-12, max_value=1e30))
def test_three_digits_are_three_and_never_an_exponent(value: float) -> None:
    text = units.digits3(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=5.001e-3)
    assert float(text) == float(f"{value:.3g}")
    assert units.digits3(-value) == "-" + text


@each_row(
    ("value", "text"),
    [
        (0.0123, "0.0123"),
        (1.2345, "1.23"),
        (1, "1.00"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234, "1230"),
        (9.999, "10.0"),
        (999.5, "1000"),
        (0, "0"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_digits3(value: float, text: str) -> None:
    assert units.digits3(value) == text


@each_row(
    ("text", "expected"),
    [
        (units.format_bytes(1.72e6), "1.72 MB"),
        (units.format_bytes(999.6e6), "1.00 GB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(-5e9), "-5.00 GB"),
        (units.format_memory(80 * 2**30), "80.0 GiB"),
        (units.format_memory(1.57 * 2**40), "1610 GiB"),
        (units.format_gib(2**28), "0.250 GiB"),
        (units.format_memory(1000), "1000 B"),
        (units.format_bandwidth(1.25e9), "10.0 Gb/s"),
        (units.format_byte_rate(3e11), "300 GB/s"),
        (units.format_flops(312e12), "312 TFLOP/s"),
        (units.format_flops(math.inf), "inf FLOP/s"),
        (units.format_count(431080), "431 k"),
        (units.format_count(25.6e6), "25.6 M"),
        (units.format_count(0), "0"),
        (units.format_count(8), "8"),
        (units.format_count(-12), "-12"),
        (units.format_count(999), "999"),
        (units.format_count(1000), "1.00 k"),
        (units.format_count(2.5), "2.50"),
    ],
)
def test_format(text: str, expected: str) -> None:
    assert text == expected


@each_row(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-12, "0.00100 ns"),
        (3.4e-6, "3.40 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (1.5, "1.50 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (125.9, "2.1 min"),
        (46 * 60 + 33, "47 min"),
        (7169, "119 min"),
        (7199.9, "2 h"),
        (7200, "2 h"),
        (2 * 3600 + 3 * 60 + 59, "2 h 4 min"),
        (46 * 3600, "46 h"),
        (2 * 86400 - 1, "2 d"),
        (98 * 3600 + 1799, "4 d 2 h"),
        (75 * 86400, "75 d"),
        (700 * 86400 + 7199, "700 d"),
        (1e9, "31.7 years"),
        (-0.5, "-500 ms"),
        (math.inf, "inf s"),
        (-math.inf, "-inf s"),
        (math.nan, "nan s"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


TIMES = [("100us", 1e-4), ("1.5ms", 1.5e-3), ("2 s", 2.0), ("50ns", 5e-8), ("90min", 5400.0), ("6h", 21600.0), ("2d", 172800.0)]


@each_row(("text", "seconds"), TIMES)
def test_times(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)


@each_row("text", ["100", "us", "-1ms", "0s", "1w", "1e400s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UserError, match=r"100us, 1\.5ms or 6h"):
        units.parse_seconds(text)


@each_row(
    ("text", "seconds"),
    [
        ("100us", 1e-4),
        ("100 µs", 1e-4),
        ("1.5ms", 1.5e-3),
        ("90min", 5400.0),
        ("90m", 5400.0),
        ("2 hours", 7200.0),
        ("2 Hours", 7200.0),
        ("1 hr", 3600.0),
        ("3d", 3 * 86400.0),
        ("2 days 4 hours", 52 * 3600.0),
        ("1h30m", 5400.0),
        ("2 h, 03 min", 7380.0),
        ("1e3s", 1000.0),
        ("1ks", 1000.0),
    ],
)
def test_durations_in_words(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@each_row("text", ["", "2", "hours", "-2 hours", "2 fortnights", "2h 3", "1..5h", "nan h", "2 hoursx"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a time; write it as 100us, 1\.5ms or 6h"):
        parse_seconds(text)


@each_row("text", ["0h", "0 min 0 s", "1e400 d"])
def test_a_time_is_positive(text: str) -> None:
    with pytest.raises(UserError, match="is not a positive time"):
        parse_seconds(text)


@given(st.floats(1e-9, 1e12))
def test_seconds_round_trip(value: float) -> None:
    error = 0.005 if value < 119 or value >= 7200 else 0.025 if value < 590 else 0.05
    assert parse_seconds(units.format_seconds(value)) == pytest.approx(value, rel=error)


@given(st.floats(1e-9, 1e12), st.floats(1, 20))
def test_both_ends_of_a_range_are_read_in_its_unit(value: float, factor: float) -> None:
    ends, unit = units.format_seconds_range(value / factor, value * factor, value).split(" ")
    for end, seconds in zip(ends.split("-"), (value / factor, value * factor), strict=True):
        assert parse_seconds(f"{end} {unit}") == pytest.approx(seconds, rel=0.051)
    assert unit == units.format_seconds(value).split()[1]


def test_ranges() -> None:
    assert units.format_seconds_range(8.5e-3, 12e-3, 10e-3) == "8.50-12.0 ms"
    assert units.format_seconds_range(36.4 * 60, 92.4 * 60, 46 * 60) == "36-92 min"
    assert units.format_seconds_range(1.24 * 3600, 30 * 3600, 3.4 * 3600) == "1.2-30 h"
    assert units.format_seconds_range(3 * 86400, 4.26 * 86400, 4 * 86400) == "3-4.3 d"


@each_row(
    ("text", "count"),
    [
        ("15T", 15e12),
        ("1.2M", 1.2e6),
        ("1.2m", 1.2e6),
        ("15B", 15e9),
        ("300 billion", 300e9),
        ("15 trillion", 15e12),
        ("1,281,167", 1281167),
        ("1_000", 1000),
        ("2e6", 2e6),
        ("64k", 64000),
        ("0", 0),
        (".5M", 5e5),
        ("7", 7),
    ],
)
def test_counts(text: str, count: float) -> None:
    assert parse_count(text) == pytest.approx(count)


@each_row("text", ["", "M", "- 1M", "1.2MB", "1.2 M/s", "1..2M", "many", "inf", "nan", "1e999", "0x10", "1Ki"])
def test_what_is_not_a_count(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a count; write it as 1200000, 1\.2M or 15T"):
        parse_count(text)


@given(st.floats(0, 1e18))
def test_counts_round_trip(value: float) -> None:
    text = units.format_count(value)
    if text[-1:] not in "PE":
        assert parse_count(text) == pytest.approx(value, rel=5.001e-3)


def test_tokens_of_a_sequence() -> None:
    lengths = {"512": 512, "4k": 4096, "128K": 131072, "8 Ki": 8192, "4,096": 4096, "512 tokens": 512, "1M": 1 << 20}
    assert {text: parse_tokens(text) for text in lengths} == lengths
    for text in ("", "0", "4.5k", "-4", "4kb", "k", "1e3"):
        with pytest.raises(UserError, match="is not a length of a sequence; write it as 512, 4096 or 4k"):
            parse_tokens(text)


@each_row("text", ["50", "$50", "50 dollars", "50USD", "usd 50", "0.05k $"])
def test_a_budget_is_dollars_as_they_are_written(text: str) -> None:
    assert units.parse_dollars(text) == 50


@pytest.mark.parametrize("text", ["0s", "0 ms", "0h", "0min 0s", "0.0s"])
def test_no_time_where_it_is_legal(text: str) -> None:
    assert parse_seconds(text, zero=True) == 0
    with pytest.raises(UserError, match="is not a positive time"):
        parse_seconds(text)
    with pytest.raises(UserError, match="is not a time"):
        parse_seconds(f"-{text}", zero=True)


@pytest.mark.parametrize("text", ["0B", "0 GB", "0MiB", "0b"])
def test_no_bytes_where_that_is_legal(text: str) -> None:
    assert parse_bytes(text, zero=True) == 0
    with pytest.raises(UserError, match="is not a positive size"):
        parse_bytes(text)
    with pytest.raises(UserError, match="'0s' is not a size"):
        parse_bytes("0s", zero=True)
