"""The page of a live schedule over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")
pytest.importorskip("httpx2", reason="needs httpx2: pip install httpx2")

from starlette.testclient import TestClient

from live_journal import written
from paceline.scheduling.live.journal import Journal
from paceline.serve.app import application

BASE = "http://127.0.0.1:7223"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return written(tmp_path, time.time())


@pytest.fixture
def page(journal: Path) -> Iterator[TestClient]:
    with TestClient(application(schedule=journal), base_url=BASE, raise_server_exceptions=False) as opened:
        yield opened


def test_the_page_has_what_it_asks_for_again(page: TestClient) -> None:
    whole, part = page.get("/schedule"), page.get("/schedule/now")
    assert (whole.status_code, part.status_code) == (200, 200) and "<html" not in part.text
    for text in (whole.text, part.text):
        assert "7 jobs under las" in text and "<h2>Nodes over time</h2>" in text and "<h2>Queue</h2>" in text
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in whole.text
    assert '<a href="schedule">' in page.get("/?workload=lenet5&device=A100+SXM+80GB").text


def test_it_follows_the_runner_and_stays_where_the_journal_goes(page: TestClient, journal: Path) -> None:
    with Journal(journal) as open_journal:
        open_journal.remember(policy="fifo")
        assert "7 jobs under fifo" in page.get("/schedule/now").text
    journal.unlink()
    for place in ("/schedule", "/schedule/now"):
        reply = page.get(place)
        assert reply.status_code == 404 and "there is no journal" in reply.text and 'role="alert"' in reply.text


def test_names_are_text_and_nothing_is_inline(page: TestClient, journal: Path) -> None:
    with Journal(journal) as open_journal:
        open_journal.save([], [("digits", "<script>alert()</script>")])
    text = page.get("/schedule").text
    assert "<script>alert" not in text and "&lt;script&gt;alert()" in text
    assert re.findall(r"<script[^>]*>", text) == ['<script src="page.js" defer>', '<script src="schedule.js" defer>']
    assert "style=" not in text and not re.findall(r"\son\w+=", text)
    assert page.get("/schedule.js").headers["content-type"].startswith("text/javascript")


def test_it_can_only_be_read(page: TestClient, journal: Path) -> None:
    before = journal.read_bytes()
    assert page.post("/schedule").status_code == 405 and page.post("/schedule/now").status_code == 405
    page.get("/schedule")
    assert journal.read_bytes() == before


def test_a_server_without_a_schedule_says_how_to_get_one() -> None:
    with TestClient(application(), base_url=BASE) as page:
        reply = page.get("/schedule")
        assert reply.status_code == 404 and "start it with paceline serve --schedule DIR" in reply.text
        assert 'href="schedule"' not in page.get("/?workload=lenet5&device=A100+SXM+80GB").text
