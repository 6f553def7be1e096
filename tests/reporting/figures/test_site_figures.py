"""The picture of the fastest method: colours, contours and the line of an equal loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.site_map import site_map
from paceline.planning.compare.site_methods import SITE_METHODS
from paceline.planning.compare.site_table import further_by_method
from paceline.reporting.figures.site_figures import COLOURS, HATCHES, write_picture
from paceline.strategy import Strategy
from paceline.workload import Workload


def test_a_picture_names_what_it_shows(tmp_path: Path) -> None:
    gpt2, alone = Workload.named("gpt2", 128), Strategy.of(world_size=1, global_batch_size=8, precision="bf16")
    answer = site_map(gpt2, Cluster.named("1 A100"), alone, bandwidths=[1e7, 1e8, 1e9, 1e10], sites=[2, 8])
    further = {n: further_by_method(gpt2, alone, n, 30) for n in answer.sites}
    text = write_picture(answer, further, str(tmp_path / "map.svg")).read_text()
    shown = {answer.methods[k].name for k in answer.best.ravel()}
    assert all(f">{name}</" in text for name in shown) and "computing" in text and "Gb/s" in text
    assert "DiLoCo wins" not in text, "it wins on the whole map"
    costly = {8: {"diloco": replace(further[8]["diloco"], high=3.0)}}
    assert "DiLoCo wins" in write_picture(answer, costly, str(tmp_path / "map.svg")).read_text()
    with pytest.raises(UserError, match="a picture in"):
        write_picture(answer, further, "map.pdf")


def test_every_method_has_a_colour_and_a_hatch() -> None:
    assert {m.name for m in SITE_METHODS} == COLOURS.keys() == HATCHES.keys()
