"""``paceline serve``: the address it prints, and mistakes on one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_journal import written
from paceline.cli import main
from paceline.scheduling.live.journal import NAME


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")
    assert main(["serve", "--port", "65536"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == "paceline: port 65536; give a number from 0 to 65535; 0 takes a free one\n"


def test_the_address_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def run(host: str, port: int, say: object, schedule: object, queue: object) -> None:
        assert callable(say) and (host, port) == ("127.0.0.1", 7223)
        asked.append(schedule)
        say("http://127.0.0.1:7223/")

    monkeypatch.setattr("paceline.cli.commands.serve.run", run)
    assert main(["serve"]) == 0
    assert capsys.readouterr().out.startswith("Paceline: http://127.0.0.1:7223/\nCtrl-C")
    written(tmp_path, 1e6)
    for place in (tmp_path, tmp_path / NAME):
        assert main(["serve", "--schedule", str(place)]) == 0
        assert "\nLive schedule: http://127.0.0.1:7223/schedule\n" in capsys.readouterr().out
    assert asked == [None, tmp_path / NAME, tmp_path / NAME]


def test_a_place_without_a_live_schedule_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--schedule", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no live schedule; start paceline schedule live, or give the directory of its --state" in (
        capsys.readouterr().err
    )
