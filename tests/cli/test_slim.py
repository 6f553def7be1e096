"""``paceline slim --predict``: the answer as JSON, and devices that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.edge.language_settings import LanguageRun
from paceline.errors import UserError
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


def test_epochs_of_tuning_are_those_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[LanguageRun] = []

    def ends(run: LanguageRun, say: object) -> None:
        runs.append(run)
        raise UserError("enough")

    monkeypatch.setattr("paceline.edge.language_run.slim_language", ends)
    (tmp_path / "config.json").write_text("{}")
    for words, epochs in (((), 1), (("--tune-epochs", "0"), 0), (("--tune-epochs", "0.25"), 0.25), (("--predict",), 0)):
        assert main(["slim", str(tmp_path), "--text", "text.txt", *words]) == 2
        assert runs[-1].epochs == epochs
    monkeypatch.setattr(SlimTarget, "check_installed", lambda self: None)
    for option in ("--tune-epochs", "--path-epochs"):
        assert main(["slim", "lenet5", "--data", "digits", option, "0"]) == 2
        assert f"{option} 0; give 1 or more" in capsys.readouterr().err


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
