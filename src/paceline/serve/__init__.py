"""Local web page with controls and their answers: ``paceline serve``. Needs the extra ``serve`` (starlette and uvicorn)."""
