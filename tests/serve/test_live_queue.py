"""The live queue over HTTP."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")
pytest.importorskip("httpx2", reason="needs httpx2: pip install httpx2")

from starlette.testclient import TestClient

from paceline.errors import UserError
from paceline.scheduling.starts.start_answer import StartAnswer
from paceline.scheduling.starts.verb import schedule_start
from paceline.serve import live_queue
from paceline.serve.app import application
from queues import queue, runs, waits

BASE = "http://127.0.0.1:7223"


def test_page_json_and_metric_are_one_forecast_that_is_made_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask() -> StartAnswer:
        asked.append(1)
        if len(asked) > 1:
            raise UserError("squeue is not here", "go there")
        return schedule_start(queue(runs("r", 8, 10.0, 3600.0), waits("<b>", 8, 3600.0)), futures=8)

    with TestClient(application(queue=live_queue.LiveQueue(ask, "slurm")), base_url=BASE) as page:
        whole, part = page.get("/queue"), page.get("/queue/now")
        assert "<html" in whole.text and "<html" not in part.text and "&lt;b&gt;" in part.text and "<b>" not in part.text
        assert 'data-again="queue/now"' in whole.text
        row = page.get("/queue.json").json()["jobs"][0]
        metrics = page.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert f'quantile="0.5"}} {row["start_median_s"]:.0f}' in metrics.text and len(asked) == 1
        monkeypatch.setattr(live_queue, "EVERY_S", 0.0)
        assert page.get("/queue").status_code == 404 and "not here" in page.get("/metrics").text


def test_without_a_queue_the_addresses_say_so() -> None:
    with TestClient(application(), base_url=BASE) as page:
        for place in ("/queue", "/queue/now", "/queue.json", "/metrics"):
            assert page.get(place).status_code == 404 and "--queue" in page.get(place).text
