"""Running the page: its address, a port that is taken, a token beyond this machine, and Ctrl-C."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from paceline.errors import UserError
from paceline.serve.server import address, bound


def test_an_address_has_its_token_in_it() -> None:
    assert address("127.0.0.1", 80) == "http://127.0.0.1:80/"
    assert address("::1", 80, "t") == "http://[::1]:80/t/"


def test_a_port_that_is_taken_is_the_users_to_change() -> None:
    with closing(bound("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="choose another `port`"):
        bound("127.0.0.1", taken.getsockname()[1])
    for host, port in (("127.0.0.1", 65536), ("127.0.0.1", -1), ("no-such-host.invalid", 0), ("x" * 300, 0)):
        with pytest.raises(UserError):
            bound(host, port)


COMMANDS = re.findall(r"^\$ (paceline serve .*)$", (Path(__file__).parents[2] / "docs/serve.md").read_text(), re.MULTILINE)


def test_the_guide_shows_both_ways() -> None:
    assert ["--host" in command for command in COMMANDS] == [False, True]


@pytest.mark.long
@pytest.mark.everyday("paceline serve --port 0")
@pytest.mark.parametrize("command", COMMANDS)
def test_it_serves_until_ctrl_c(command: str) -> None:
    """The commands of docs/serve.md."""
    pytest.importorskip("uvicorn", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")
    words = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            line = server.stdout.readline()
            place = re.search(r"http://[^/]+(:\d+)(/\S*)", line)
            assert place, line
            here = f"http://127.0.0.1{place[1]}"
            with urlopen(f"{here}{place[2]}page.css", timeout=100) as reply:
                assert reply.status == 200
            if "--host" not in command:
                assert place[2] == "/"
            else:
                assert len(place[2]) > 20
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"{here}/page.css", timeout=100)
            server.send_signal(signal.SIGINT)
            out, err = server.communicate(timeout=100)
        finally:
            server.kill()
    assert (server.returncode, err) == (0, "") and "Traceback" not in out


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.serve import server

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=re.escape("pip install 'paceline[serve]'")):
        server.run("127.0.0.1", 0, print)
