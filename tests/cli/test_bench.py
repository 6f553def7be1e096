"""``paceline bench codec``: one object a codec and direction, a table that fits, a size that this machine can hold."""

from __future__ import annotations

import pytest

from command import objects, run
from paceline.cli.commands.bench import codec_screen
from paceline.codecs import bench


def test_bench_codec_json_is_one_object_per_codec_and_direction(capsys: pytest.CaptureFixture[str]) -> None:
    command = "bench codec --size 40kB --codec ternary bf16 --codec fp32 --threads 1 --json"
    code, out, err = run(capsys, command)
    assert (code, err) == (0, "")
    found = objects(out)
    directions = ("encode", "decode", "decode_add")
    assert [(f["codec"], f["direction"]) for f in found] == [(c, d) for c in ("ternary", "bf16", "fp32") for d in directions]
    for speed in found:
        assert speed["gb_per_s"] > 0 and speed["memcpy_gb_per_s"] > 0 and speed["elements"] == 10_000
        assert speed["low_gb_per_s"] <= speed["gb_per_s"] <= speed["high_gb_per_s"]
        assert speed["gb_per_s_per_core"] == speed["gb_per_s"] / speed["threads"]
    assert found[0]["ratio"] == 40_000 / (32 + 2500)


def test_bench_codec_takes_the_backend_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench codec --size 4kB --codec int8 --backend reference --json")
    assert (code, err) == (0, "") and {speed["backend"] for speed in objects(out)} == {"reference"}
    with pytest.raises(SystemExit):
        run(capsys, "bench codec --help")
    assert "one JSON object a line" in " ".join(capsys.readouterr().out.split())


def test_bench_codec_text_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench codec --size 4kB")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    assert "decode_add" in out and "memcpy" in out


@pytest.mark.parametrize("rate", [3e-6, 0.00497, 0.0265, 1.234, 98765.4])
def test_rates_of_any_size_fit_the_terminal(rate: float) -> None:
    speed = bench.CodecSpeed(
        codec="inceptionn-scaled",
        direction="decode_add",
        backend="reference",
        threads=1,
        elements=1000,
        ratio=12.34,
        repetitions=15,
        gb_per_s=rate,
        low_gb_per_s=rate,
        high_gb_per_s=rate,
        gb_per_s_per_core=rate,
        memcpy_threads=1,
        memcpy_gb_per_s=rate,
        memcpy_gb_per_s_per_core=rate,
        relative_to_memcpy=1.0,
    )
    assert max(map(len, codec_screen([speed]).text().splitlines())) <= 80


@pytest.mark.parametrize("size", ["10PB", "10EB", "1e300B"])
def test_a_tensor_beyond_this_machines_memory_is_one_line(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"bench codec --codec fp32 --size {size}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert len(err) < 160 and err.startswith("paceline: a tensor of ") and "does not fit" in err and "give at most" in err
