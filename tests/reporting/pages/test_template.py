"""Numbers in templates: no line breaks inside one, and nothing is taken for HTML."""

from __future__ import annotations

import pytest

from paceline.reporting.pages.template import unbroken


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("takes 12.3 ms a step", ["12.3 ms"]),
        ("10.1-15.2 ms", ["10.1-15.2 ms"]),
        ("$1,234 to $2,000", ["$1,234 to", "$2,000"]),
        ("53 %, 1.8x", ["53 %", "1.8x"]),
        ("resnet-50 on A100", []),
        ("4 < 5", ["4", "5"]),
        ("it&#39;s", []),
    ],
)
def test_a_number_stays_whole(text: str, whole: list[str]) -> None:
    html = str(unbroken(text))
    parts = [part.partition("</span>")[0] for part in html.split('<span class="n">')[1:]]
    assert parts == whole


def test_text_is_escaped() -> None:
    assert str(unbroken("<b>7 GiB</b>")) == "&lt;b&gt;7 GiB&lt;/b&gt;"
