"""``paceline slim --predict``: the answer as JSON, and devices that are refused."""

from __future__ import annotations

import json

import pytest

from paceline.cli import main
from paceline.hardware.edge import edge_devices
from paceline.slim_record import SlimPrediction
from paceline.slimming.latency.targets import SlimTarget


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "pi 4"], "--device without --predict; add --predict"),
        (["--predict", "--device", "snapdragon-801"], "did you mean Snapdragon 810?"),
        (["--predict", "--device", "list"], ", ".join(device.name for device in edge_devices())),
    ],
)
def test_devices_that_cannot_be_are_refused_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlimTarget, "check_installed", lambda self: None)
    assert main(["slim", "lenet5", "--data", "digits", *words]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_the_answer_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.slimming.latency.width_tables.seconds", lambda node, threads=1: 1e-11 * node.products)
    assert main(["slim", "lenet5", "--data", "digits", "--predict", "--device", "n100", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"version", *SlimPrediction.__dataclass_fields__} and data["version"] == 1
    row = data["rows"][0]
    assert set(row) == {"varied", "share", "layers", "latency_s", "weight_bytes", "low_s", "high_s"}
    assert row["varied"] == data["varied"] == "width" and row["low_s"] < row["latency_s"] < row["high_s"]
    assert set(data["device"]) == {"name", "cores", "one_core", "all_cores", "bandwidth", "sources"}
    assert data["device"]["name"] == "Intel N100" and data["device"]["one_core"] == 54.4e9
