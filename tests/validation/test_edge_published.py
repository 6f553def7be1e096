"""Published figures of slimming: every row has a number and a source, and what was recalled is marked."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from paceline.hardware.edge import edge_device
from paceline.models import REGISTRY

FOLDER = Path(__file__).parents[2] / "validation" / "edge"
FILES = {
    "ssl_alexnet.csv": (
        *("method", "layer", "device", "zero_columns_percent", "zero_filters_percent", "zero_weights_percent"),
        *("speedup", "top1_error_percent"),
    ),
    **dict.fromkeys(("latencies.csv", "latencies_int8.csv"), ("device", "threads", "network", "mean_ms", "runtime")),
}
NUMBERS = ("speedup", "mean_ms", "threads")


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", FILES)
def test_every_row_has_its_columns_numbers_and_a_source(name: str) -> None:
    assert rows(name)
    for row in rows(name):
        assert tuple(row) == (*FILES[name], "source", "verified")
        assert "http" in row["source"] and row["verified"] in ("yes", "no")
        assert all(float(row[column]) > 0 for column in NUMBERS if column in row)


def test_what_nobody_read_in_the_paper_is_marked() -> None:
    by_layer = [row for row in rows("ssl_alexnet.csv") if row["layer"].startswith("conv") and row["layer"][4:].isdigit()]
    assert len(by_layer) == 20 and {row["verified"] for row in by_layer} == {"no"}
    read = [row for row in rows("iss.csv") if row["status"] == "verified" and row["source"].endswith("abstract")]
    assert [row["value"] for row in read] == ["10.59", "2.69"]


def test_zeros_and_speed_ups_of_alexnet_agree() -> None:
    """What is left of a layer's matrix product bounds its speed-up, but for the cost of finding what is left."""
    for row in rows("ssl_alexnet.csv"):
        if row["zero_columns_percent"] and row["device"] == "cpu":
            left = (1 - float(row["zero_columns_percent"]) / 100) * (1 - float(row["zero_filters_percent"]) / 100)
            assert 0.75 < float(row["speedup"]) * left < 1.1


def test_latencies_are_of_devices_and_networks_that_are_known() -> None:
    script = (FOLDER.parents[1] / "benchmarks" / "edge_latency.py").read_text()  # it builds those of timm by their names there
    for row in rows("latencies.csv"):
        assert edge_device(row["device"]).cores >= int(row["threads"])
        assert row["network"] in REGISTRY or f'    "{row["network"]}": "' in script
