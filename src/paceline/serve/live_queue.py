"""Live queue over HTTP: a page that refreshes, the same as JSON, and a metric for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from paceline.errors import UserError
from paceline.reporting.pages.answer_page import drawn
from paceline.reporting.pages.queue_page import queue_page, queue_status
from paceline.reporting.pages.template import filled
from paceline.scheduling.starts.start_answer import StartAnswer

EVERY_S = 10.0
"""Least time between two forecasts, which is longer if one takes longer. Requests between them get the last one."""
PATIENCE = 3.0
"""Time between two forecasts over the time that one takes."""
METRICS = "text/plain; version=0.0.4; charset=utf-8"
NONE = UserError("this server shows no live queue", "start it with paceline serve --queue QUEUE")
Ask = Callable[[], StartAnswer]


class LiveQueue:
    """Request handlers for a live queue; ``ask`` forecasts it at present, None: the server has no queue."""

    def __init__(self, ask: Ask | None, place: str = "") -> None:
        self._ask, self._place = ask, place
        self._lock = threading.Lock()
        self._last: tuple[float, StartAnswer | UserError] | None = None
        self._every_s = 0.0

    def routes(self) -> list[Route]:
        """Return the addresses of the queue."""
        return [
            Route("/queue", self.page),
            Route("/queue/now", self.now),
            Route("/queue.json", self.data),
            Route("/metrics", self.metrics),
        ]

    async def page(self, request: Request) -> Response:
        """Return the whole page. Without a script the browser reloads it every ten seconds."""
        content, code = await run_in_threadpool(self._content)
        context = {"content": content, "place": self._place or "nowhere", "title": "Live queue", "again": "queue/now"}
        return HTMLResponse(filled("serve/schedule.html.j2", context), code)

    async def now(self, request: Request) -> Response:
        """Return the changing part of the page."""
        return HTMLResponse(*await run_in_threadpool(self._content))

    async def data(self, request: Request) -> Response:
        """Return the forecast as JSON."""
        found = await run_in_threadpool(self._answer)
        if isinstance(found, UserError):
            return JSONResponse({"error": str(found)}, 404)
        return JSONResponse(found.to_json())

    async def metrics(self, request: Request) -> Response:
        """Return the forecast as a metric."""
        found = await run_in_threadpool(self._answer)
        if isinstance(found, UserError):
            return PlainTextResponse(f"# {' '.join(str(found).split())}\n", 404, media_type=METRICS)
        return PlainTextResponse(found.metrics(), media_type=METRICS)

    def _content(self) -> tuple[str, int]:
        found = self._answer()
        if isinstance(found, UserError):
            return filled("serve/problem.html.j2", {"problem": str(found)}), 404
        return filled("serve/live.html.j2", {**vars(drawn(queue_page(found))), "status": queue_status(found)}), 200

    def _answer(self) -> StartAnswer | UserError:
        """Return the last forecast, or a new one if it is older than ``EVERY_S`` and than thrice the time that it took.

        One is computed at a time.
        """
        if self._ask is None:
            return NONE
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] >= max(EVERY_S, self._every_s):
                began = time.monotonic()
                try:
                    found: StartAnswer | UserError = self._ask()
                except UserError as error:
                    found = error
                self._last = time.monotonic(), found
                self._every_s = PATIENCE * (self._last[0] - began)
            return self._last[1]
