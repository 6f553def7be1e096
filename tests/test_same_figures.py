"""What the commands print is what they printed before: 200 command lines, but for the defects that were mended.

The figures are of the commit that ``same_figures/figures.json`` names. A change of a figure that is meant is a case in
``EXPECTED`` with the defect; ``python -m same_figures`` writes all of them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import pytest

from same_figures import figures
from same_figures.cases import CASES, EXPECTED, PUBLISHED, SAMPLE, Mended


def check(names: Iterable[str]) -> None:
    """Every difference at once, each with its case."""
    before, problems = figures.read(), []
    for name in names:
        command = {**CASES, **PUBLISHED}[name]
        after, mended = figures.of(command), EXPECTED.get(name)
        lines = figures.differing(before[name], after)
        if mended and lines:
            lines = figures.differing(before[name], after, mended.paths) if mended.paths else []
        elif mended:
            lines.append(f"nothing differs, though it stands in EXPECTED: {mended.reason}")
        if lines:
            problems.append("\n    ".join([f"{name}: paceline {command}", *lines[:8], *(["..."] if len(lines) > 8 else [])]))
    assert not problems, f"{len(problems)} cases have other figures:\n" + "\n".join(problems)


def test_the_list() -> None:
    written = figures.read()
    assert (
        len(CASES) == 200 and list(written) == [*CASES, *PUBLISHED] and len(SAMPLE) == 40 and EXPECTED.keys() <= written.keys()
    )
    assert {name.partition("-")[0] for name in SAMPLE} == {name.partition("-")[0] for name in CASES}
    assert [name for name, case in written.items() if "exit code" in case] == [n for n in CASES if n.startswith("refused")]
    assert figures.FILE.stat().st_size < 400_000


def test_a_sample_has_the_same_figures() -> None:
    check(SAMPLE)


@pytest.mark.full
def test_the_rest_has_the_same_figures() -> None:
    check(name for name in CASES if name not in SAMPLE)


@pytest.mark.full
@pytest.mark.skipif(not figures.MEASURED.is_dir(), reason="needs the published measurements: PACELINE_SHARED names them")
def test_validation_on_published_measurements_has_the_same_figures() -> None:
    check(PUBLISHED)


BEFORE: figures.Figures = {
    "step_time_s": 0.1,
    "if_gone[0].step_time_s": 0.05,
    "bottleneck": "network",
    "fits": True,
    "usd": None,
}


@pytest.mark.parametrize(
    "after",
    [
        {"step_time_s": 0.1 * (1 + 2e-9)},
        {"if_gone[0].step_time_s": 0.06},
        {"bottleneck": "compute"},
        {"fits": 1.0},
        {"usd": 0.0},
        {"step_time_s": None},
        {"step_time_s": "0.1"},
    ],
)
def test_another_figure_differs(after: figures.Figures) -> None:
    assert len(figures.differing(BEFORE, {**BEFORE, **after})) == 1
    assert not figures.differing(BEFORE, {**BEFORE, **after}, after)


def test_a_figure_that_is_gone_differs_and_a_new_one_does_not() -> None:
    assert figures.differing(BEFORE, {}, ["if_gone"]) == [
        f"{path}: {BEFORE[path]!r} before, 'nothing' after" for path in ("step_time_s", "bottleneck", "fits", "usd")
    ]
    assert not figures.differing(BEFORE, {**BEFORE, "more": 1.0, "step_time_s": 0.1 * (1 + 1e-10)})


def test_of_a_message_the_numbers_count() -> None:
    before: figures.Figures = {"exit code": 2, "message": "paceline: 7 does not divide among 4; nearest legal: 4 or 8"}
    assert not figures.differing(before, {"exit code": 2, "message": "paceline: 4 workers cannot share 7; take 4 or 8."})
    assert figures.differing(before, {"exit code": 2, "message": "paceline: 7 does not divide among 4; nearest legal: 4"})
    assert figures.differing(before, {"exit code": 1, "message": before["message"]})


def test_what_is_expected_differs_there_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "network-08"
    before = figures.read()
    monkeypatch.setattr(figures, "read", lambda: {**before, name: {**before[name], "low_s": 1.0}})
    for paths, fails in (((), False), (("low_s",), False), (("high_s", "low"), True)):
        monkeypatch.setitem(EXPECTED, name, Mended("a defect", paths))
        with pytest.raises(AssertionError, match=r"low_s: 1\.0 before") if fails else nullcontext():
            check([name])
    monkeypatch.undo()
    monkeypatch.setitem(EXPECTED, name, Mended("a defect"))
    with pytest.raises(AssertionError, match="nothing differs, though it stands in EXPECTED: a defect"):
        check([name])
