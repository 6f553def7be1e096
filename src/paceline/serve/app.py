"""The page over HTTP: a form that works without a script, and the parts that its script requests while a user moves sliders."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from paceline.errors import UserError, check_name
from paceline.reporting.pages.answer_page import drawn
from paceline.reporting.pages.template import filled
from paceline.serve import search
from paceline.serve.answer import FILES, PageAnswer, answered
from paceline.serve.configurations import MOST_BYTES, Configurations
from paceline.serve.controls import controls, folded
from paceline.serve.guard import Guard
from paceline.serve.hosts import LOOPBACK
from paceline.serve.live import LiveSchedule
from paceline.serve.live_queue import LiveQueue
from paceline.serve.network_text import stated
from paceline.serve.question import Question, question
from paceline.serve.selection import ControlError, Selection, selection, start
from paceline.serve.tables import FigureTable
from paceline.serve.texts import copies

KEPT = 256
"""Number of cached answers: a slider often returns to the same values."""
LONGEST_QUERY = 4000
"""Most characters of a query."""
MOST_SHOWN = 100
"""Most values that a refused form shows again."""
_SCRIPTS = {"page.js": "reporting/page.js", **{name: f"serve/{name}" for name in ("serve.js", "combobox.js", "figures.js")}}
_NAME = re.compile("`([a-z_]+)`")
"""Argument of Python in a message."""


def application(
    hosts: Collection[str] = LOOPBACK, token: str = "", schedule: Path | None = None, queue: LiveQueue | None = None
) -> Guard:
    """Return the page as an ASGI application. ``hosts`` and ``token``: as for ``Guard``.

    Args:
        schedule: journal of a live schedule, which gets a separate page. ``queue``: a live queue, which gets another.
    """
    site, live = _Site(schedule is not None, queue is not None), LiveSchedule(schedule)
    routes = [
        Route("/", site.page),
        Route("/schedule", live.page),
        Route("/schedule/now", live.now),
        *(queue or LiveQueue(None)).routes(),
        Route("/schedule.js", _static(filled("serve/schedule.js", {}), "text/javascript")),
        Route("/answer", site.answer),
        Route("/search", site.search),
        Route("/config", site.configuration, methods=["POST"]),
        Route("/page.css", _static(filled("serve/page.css.j2", {}), "text/css")),
        Route("/csv/{name}.csv", site.table),
        *(Route(f"/{name}", _static(filled(place, {}), "text/javascript")) for name, place in _SCRIPTS.items()),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={Exception: _broken}), hosts, token)


class Answer(NamedTuple):
    """Part of the page, with its summary in one line and the numbers of its figures."""

    status: str
    html: str
    tables: Mapping[str, FigureTable]


class _Site:
    """State of the page while the server runs: configurations, and the last answers."""

    def __init__(self, has_schedule: bool, has_queue: bool) -> None:
        self._has_schedule, self._has_queue = has_schedule, has_queue
        self._configurations = Configurations()
        self._answer = lru_cache(KEPT)(self._answered)
        self._searches = search.Searches(self._searched)

    async def page(self, request: Request) -> Response:
        """Return the whole page: controls, and the answer."""
        if not request.scope["query_string"]:
            return RedirectResponse(f"?{urlencode(start())}", 307)
        return await run_in_threadpool(self._page, request)

    async def answer(self, request: Request) -> Response:
        """Return the answer without the controls."""
        return await run_in_threadpool(_part, lambda: self._answer(_key(_selection(request))).html)

    async def search(self, request: Request) -> Response:
        """Return the advice, and the curve of cost against time."""
        return await run_in_threadpool(self._search, request)

    async def table(self, request: Request) -> Response:
        """Return the numbers of a figure as CSV."""
        return await run_in_threadpool(self._table, request)

    async def configuration(self, request: Request) -> Response:
        """Store a ``config.json``: the body of the script's request, or the field ``config`` of the form."""
        body = bytearray()
        form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        async for chunk in request.stream():
            body += chunk
            if len(body) > (3 * MOST_BYTES if form else MOST_BYTES):  # a form writes a quotation mark as %22
                return _message(UserError("the configuration is too large", f"give at most {MOST_BYTES // 1024} KiB"), 413)
        try:
            given = bytes(body)
            if form:
                fields = dict(parse_qsl(given.decode(errors="replace"), max_num_fields=2))
                given = fields.get("config", "").encode()
            name = await run_in_threadpool(self._configurations.keep, given)
        except (UserError, ValueError) as error:
            return _message(error if isinstance(error, UserError) else UserError(str(error)), 400)
        if form:
            return RedirectResponse(f"./?{urlencode({**start(), 'workload': name})}", 303)
        return JSONResponse({"workload": name})

    def _page(self, request: Request) -> Response:
        problem, wrong, shown, code = "", "", Answer("", "", {}), 200
        chosen: Selection = dict(parse_qsl(request.url.query[:LONGEST_QUERY])[:MOST_SHOWN])
        try:
            chosen = _selection(request)
            shown = self._answer(_key(chosen))
        except UserError as error:
            problem, wrong, code = said(error), _option(error), 400
        context = {
            "controls": [control for control in controls() if control.common],
            "folded": folded(),
            "chosen": {option: value[:100] for option, value in chosen.items()},
            "answer": shown.html,
            "status": shown.status,
            "problem": problem,
            "wrong": wrong,
            "has_schedule": self._has_schedule,
            "has_queue": self._has_queue,
        }
        return HTMLResponse(filled("serve/page.html.j2", context), code)

    def _search(self, request: Request) -> Response:
        try:
            part = _part(lambda: self._found(_selection(request)).html)
        except search.Superseded:
            return Response(status_code=204)
        if request.headers.get("sec-fetch-dest", "document") != "document":
            return part
        context = {"content": bytes(part.body).decode(), "query": request.url.query}
        return HTMLResponse(filled("serve/search.html.j2", context), part.status_code)

    def _found(self, chosen: Selection) -> Answer:
        return self._searches.answer(chosen, lambda: question(chosen, self._configurations))

    def _table(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            chosen = _selection(request)
            tables = (self._found(chosen) if name == search.FILE else self._answer(_key(chosen))).tables
            check_name("figure", name, [*FILES.values(), search.FILE])
        except search.Superseded:
            return Response(status_code=204)
        except UserError as error:
            return _message(error, 400)
        text = tables[name].csv() if name in tables else ""
        return Response(text, media_type="text/csv", headers={"Content-Disposition": f'attachment; filename="{name}.csv"'})

    def _answered(self, key: tuple[tuple[str, str], ...]) -> Answer:
        asked = question(dict(key), self._configurations)
        found = answered(asked)
        speed, transport = stated(asked.cluster)
        context = {**_shown(found), "query": urlencode(key), "copies": copies(asked), "speed": speed, "transport": transport}
        return Answer(found.status, filled("serve/answer.html.j2", context), found.tables)

    def _searched(self, asked: Question) -> Answer:
        found = search.searched(asked)
        context = {
            **vars(drawn(found.page)),
            "proposals": found.proposals,
            "file": search.FILE,
            "query": urlencode(asked.chosen),
        }
        return Answer("", filled("serve/part.html.j2", context), {search.FILE: found.table})


def _shown(found: PageAnswer) -> dict[str, Any]:
    """Return the values of the answer's template."""
    names = ("verdicts", "proposals", "assumptions", "status", "runs")
    return {**vars(drawn(found.page)), **{name: getattr(found, name) for name in names}, "files": FILES}


def _key(chosen: Selection) -> tuple[tuple[str, str], ...]:
    return tuple(chosen.items())


def _selection(request: Request) -> Selection:
    """Return the selection in the address of a request. Raises UserError."""
    query = request.url.query
    if len(query) > LONGEST_QUERY:
        raise UserError(f"an address of {len(query):,} characters", f"give at most {LONGEST_QUERY:,}")
    return selection(parse_qsl(query, keep_blank_values=True))


def _part(answer: Callable[[], str]) -> Response:
    """Return a part of the page, or the user's mistake as one."""
    try:
        return HTMLResponse(answer())
    except UserError as error:
        return _message(error, 400)


def _message(error: UserError, code: int) -> Response:
    return HTMLResponse(filled("serve/problem.html.j2", {"problem": said(error), "wrong": _option(error)}), code)


def said(error: UserError) -> str:
    """Return a message with the names of controls in place of arguments."""
    return _NAME.sub(lambda found: found[1].replace("_", " "), str(error))


def _option(error: UserError) -> str:
    """Return the control that a mistake is in; empty if it concerns several."""
    return error.option if isinstance(error, ControlError) else ""


async def _broken(request: Request, error: Exception) -> Response:
    """Answer a request after a defect of Paceline. The server shows its traceback only on the terminal."""
    return _message(UserError("Paceline made a mistake", "the terminal of the server says which"), 500)


def _static(text: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(text, media_type=kind)

    return answer
