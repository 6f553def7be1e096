"""A local page of controls and their answers: ``paceline serve``. Needs the extra ``serve`` (starlette and uvicorn)."""
