"""Page of a live schedule: read from its journal at every request, and never written."""

from __future__ import annotations

import time
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from paceline.errors import UserError
from paceline.reporting.pages.answer_page import drawn
from paceline.reporting.pages.live_page import live_page, live_status
from paceline.reporting.pages.template import filled
from paceline.scheduling.live.view import live_view

NONE = UserError("this server shows no live schedule", "start it with paceline serve --schedule DIR")


class LiveSchedule:
    """Request handlers for the journal at ``path``; None: the server has no journal."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    async def page(self, request: Request) -> Response:
        """Return the whole page. Without a script the browser reloads it every ten seconds."""
        content, code = await run_in_threadpool(self._current_state)
        context = {"content": content, "place": self._path or "nowhere", "title": "Live schedule", "again": "schedule/now"}
        return HTMLResponse(filled("serve/schedule.html.j2", context), code)

    async def now(self, request: Request) -> Response:
        """Return the changing part of the page."""
        return HTMLResponse(*await run_in_threadpool(self._current_state))

    def _current_state(self) -> tuple[str, int]:
        try:
            if self._path is None:
                raise NONE
            view = live_view(self._path, time.time())
        except UserError as error:
            return filled("serve/problem.html.j2", {"problem": str(error)}), 404
        return filled("serve/live.html.j2", {**vars(drawn(live_page(view))), "status": live_status(view)}), 200
