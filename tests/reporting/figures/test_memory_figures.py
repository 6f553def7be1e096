"""Figures of memory over time, on a page and as files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.reporting.figures.memory_figures import STAGES, memory_svg, write_picture
from paceline.reporting.figures.report_figures import PALETTE, light
from test_memory_timeline import tensor, timeline

GIB = 2.0**30
ONE = timeline(
    [tensor(40 * GIB, purpose="weights"), tensor(50 * GIB, 0, 6)],
    memory={"weights": 40 * GIB, "activations": 52 * GIB, "context": GIB},
    available=80 * GIB,
    span=(90 * GIB, 99 * GIB),
)


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_page_s_figure_names_purposes_with_their_bytes_and_uses_the_page_s_colours() -> None:
    svg = memory_svg([ONE], ONE, "memory")
    said = texts(svg)
    assert {"weights, 40.0 GiB", "activations, 50.0 GiB", "margin, 2.00 GiB", "context, 1.00 GiB"} <= {*said}
    assert "a device has 80.0 GiB" in said and {"forward", "backward", "optimizer"} <= {*said}
    assert "var(--run-0)" in svg and not any(stand_in in svg for stand_in in PALETTE.values())


def test_a_file_has_real_colours(tmp_path: Path) -> None:
    svg = write_picture([ONE], ONE, "a network", str(tmp_path / "deep" / "memory.svg")).read_text()
    assert light()["run-0"] in svg and "var(--" not in svg and not any(stand_in in svg for stand_in in PALETTE.values())
    assert write_picture([ONE], ONE, "a network", str(tmp_path / "memory.png")).read_bytes()[:4] == b"\x89PNG"
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in light().values())


@pytest.mark.long
def test_stages_have_small_figures_and_of_many_the_ends_are_drawn() -> None:
    stages = [replace(ONE, ranks=range(n, n + 1), stage=n, stages=20) for n in range(20)]
    drawn = [text for text in texts(memory_svg(stages, stages[3], "memory")) if text.startswith("stage ")]
    assert len(drawn) == STAGES and drawn[0].startswith("stage 1:") and drawn[-1].startswith("stage 20:")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"end its name in \.svg or \.png"):
        write_picture([ONE], ONE, "", str(tmp_path / "memory.pdf"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_picture([ONE], ONE, "", str(tmp_path / "file" / "memory.png"))
