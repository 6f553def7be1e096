"""The chart of the terminal: its areas, its passes and its width."""

from __future__ import annotations

import pytest

import paceline
from paceline.memory_timeline import CONTEXT, MARGIN
from paceline.reporting.text.memory_text import ROWS, chart, marks_of, memory_screen, pass_line, peak_text, stacked
from paceline.reporting.text.screen import plain
from test_memory_timeline import tensor, timeline

GIB = 2.0**30


def hill(size: float = 60 * GIB):
    """Half of the device is held, and the rest is there in the forward pass alone."""
    tensors = [tensor(40 * GIB, purpose="weights"), tensor(size, 0, 6)]
    sizes = {"weights": 40 * GIB, "activations": size, "context": 0.0}
    return timeline(tensors, memory=sizes, available=100 * GIB, span=(90 * GIB, 110 * GIB))


@pytest.mark.parametrize("width", [40, 80, 131])
def test_the_areas_are_as_high_as_the_bytes(width: int) -> None:
    lines = [plain(line) for line in chart(hill(), width)]
    assert all(len(line) <= width for line in lines)
    rows = [line.partition("|")[2] for line in lines if "|" in line]
    assert len(rows) == ROWS and [row[0] for row in rows[-6:]] == ["#", *"WWWWW"]
    first = "".join(row[:1] for row in rows)
    assert (first.count("W"), first.count("#")) == (5, 8)  # of 14 rows over 104 GiB: 40 and 60 GiB
    last = "".join(row[-1:] if len(row) == max(map(len, rows)) else " " for row in rows)
    assert last.count("W") == 5 and "#" not in last


def test_a_device_s_memory_is_a_line_that_crosses_what_does_not_fit() -> None:
    lines = [plain(line).partition("|")[2] for line in chart(hill(90 * GIB), 60) if "|" in plain(line)]
    (line,) = [row for row in lines if "-" in row]
    assert line.startswith("#-#-#-") and lines.index(line) > 0 and line.endswith("-")


def test_the_passes_are_below_the_areas() -> None:
    assert pass_line(hill(), 10) == "ffffffbbbo"


def test_margin_and_context_are_on_top() -> None:
    t = timeline([tensor(50, 0, 10)], memory={"activations": 60.0, "context": 7.0})
    assert stacked(t, 4).tolist() == [[50, 60, 67]] * 4
    assert [*marks_of(t)] == ["activations", MARGIN, CONTEXT]


def test_marks_are_unlike() -> None:
    names = ["weights", "gradients", "activations", "one", "other"]
    marks = marks_of(timeline([tensor(1.0, purpose=name) for name in names]))
    assert len({mark for mark, _ in marks.values()}) == len(marks) == 7


def test_the_peak_is_said_in_words() -> None:
    assert peak_text(timeline([tensor(100, 6, 7)])) == "in the backward pass, at 6.00 s of 10.0 s"
    assert peak_text(timeline([tensor(100, 9, 10)])) == "in the update, at 9.00 s of 10.0 s"


def test_the_screen_has_the_peak_its_parts_and_the_stages() -> None:
    p = paceline.predict("gpt2", "4 A100", pipeline=2, global_batch_size=16, micro_batches=4)
    text = memory_screen(p, p.memory_timelines, p.memory_timeline()).text(100, why=True)
    assert "shown  ranks " in text and ", the fullest" in text
    for name in p.memory_timeline().at_peak:
        assert f"\n  {name} " in text
    assert "stage  ranks" in text and "It rests on:" in text
    one = paceline.predict("gpt2", "1 A100", global_batch_size=16)
    brief = memory_screen(one, one.memory_timelines, one.memory_timeline()).brief_line()
    assert "of 80.0 GiB a device at the peak, in the forward pass" in brief and brief.endswith("most of it activations")


def test_the_fullest_of_many_stages_are_listed_and_the_others_with_why() -> None:
    p = paceline.predict("gpt2", "6 A100", pipeline=6, global_batch_size=16, micro_batches=8)
    screen = memory_screen(p, p.memory_timelines, p.memory_timeline())
    brief, whole = (screen.text(100, why=why).splitlines() for why in (False, True))
    rows = [line.split()[0] for line in brief if line.startswith("    ") and line.split()[1:2] and line.split()[1].isdigit()]
    fullest = sorted(p.memory_timelines, key=lambda t: -t.peak_bytes)[:4]
    assert rows == sorted(str(t.stage + 1) for t in fullest)
    assert any(line.startswith("2 more of 6 stages, up to ") for line in brief)
    assert len([line for line in whole if line.startswith("stage  ranks")]) == 2
