"""Templates of the package, filled with escaped values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_NUMBER = re.compile(r"(?<![\w&#;.-])\$?[0-9][0-9.,]*(?: ?[-–] ?[0-9][0-9.,]*)?x?(?: [a-zA-Zµ%][a-zA-Z0-9/]*)?(?=[\s.,;:)(]|$)")
"""A number or a range of numbers, with the word after it: its unit."""


def filled(template: str, context: Mapping[str, Any]) -> str:
    """Fill a template of the package, such as ``reporting/answer.html.j2``, with escaped values for all its names."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> Environment:
    """Return the environment of the templates, which are read once because the page of ``serve`` fills them at every change."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[2]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["unbroken"] = unbroken
    return environment


def unbroken(text: object) -> Markup:
    """Escape the text so that no line breaks inside a number, inside a range, or between a number and its unit."""
    from markupsafe import Markup, escape

    return Markup(_NUMBER.sub(r'<span class="n">\g<0></span>', str(escape(text))))
