"""Published figures of slimming: every row has a number and a source, and what was recalled is marked."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from paceline.hardware.edge import edge_device
from paceline.models import REGISTRY

FOLDER = Path(__file__).parents[2] / "validation" / "edge"
FILES = {
    "ssl_alexnet.csv": ("method", "layer", "device", "speedup", "top1_error_percent"),
    "iss_sizes.csv": ("network", "hidden_1", "hidden_2", "quantity", "value"),
    "latencies.csv": ("device", "threads", "network", "mean_ms", "runtime"),
}
NUMBERS = ("speedup", "value", "mean_ms", "threads", "hidden_1", "hidden_2")


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
    read = [row for row in rows("iss_sizes.csv") if row["verified"] == "yes"]
    assert [(row["quantity"], row["value"]) for row in read] == [("speedup", "10.59")], "the abstract's"


def test_latencies_are_of_devices_and_networks_that_are_known() -> None:
    for row in rows("latencies.csv"):
        assert edge_device(row["device"]).cores >= int(row["threads"]) and row["network"] in REGISTRY
