"""``paceline serve``: the address it prints, and mistakes on one line."""

from __future__ import annotations

import pytest

from paceline.cli import main


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="the page needs paceline[serve]")
    assert main(["serve", "--port", "65536"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == "paceline: port 65536; give a number from 0 to 65535; 0 takes a free one\n"


def test_the_address_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(host: str, port: int, say: object) -> None:
        assert callable(say) and (host, port) == ("127.0.0.1", 7223)
        say("http://127.0.0.1:7223/")

    monkeypatch.setattr("paceline.cli.serve.run", run)
    assert main(["serve"]) == 0
    assert capsys.readouterr().out.startswith("Paceline: http://127.0.0.1:7223/\n")
