"""Records of slimming as JSON: they come back as they were, and what is damaged is refused in one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.slim_record import SlimRecord, accuracy_range
from slim_records import SLIMMED, WHOLE, record


@pytest.mark.parametrize(
    "changed", [{}, {"slimmed": None, "quantised": None}, {"training": None}, {"layers": (), "widths": (), "curve": ()}]
)
def test_a_record_comes_back(changed: dict[str, Any]) -> None:
    made = record(**changed)
    assert SlimRecord.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_record_of_before_is_read() -> None:
    """It did not say how it was trained."""
    data = record().to_json()
    del data["training"], data["held_out"]
    made = SlimRecord.from_json(data)
    assert (made.training, made.held_out) == (None, 0) and made.whole == WHOLE


@pytest.mark.parametrize(("right", "labels"), [(0, 7), (1, 1), (328, 360), (360, 360), (9123, 10_000)])
def test_the_range_of_an_accuracy_is_wilsons(right: int, labels: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs scipy: pip install paceline")
    theirs = stats.binomtest(right, labels).proportion_ci(0.95, method="wilson")
    assert accuracy_range(right / labels, labels) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_the_speed_up_is_predicted_where_nothing_was_measured() -> None:
    assert record().speedup == pytest.approx(WHOLE.latency_s / SLIMMED.latency_s)
    assert record(slimmed=None).speedup == pytest.approx(WHOLE.latency_s / 1.2e-3)
    assert record(slimmed=None, predicted_s=0.0).speedup == 1.0


def test_another_version_is_refused() -> None:
    with pytest.raises(UserError, match=r"of version 99.*reads version 1"):
        SlimRecord.from_json({**record().to_json(), "version": 99})


def damaged(*path: str | int) -> list[tuple[dict[str, Any], str]]:
    """The record without what is at a path, and with other things there."""
    found = []
    for other in (None, "", "x", -1, True, [], [[]], {}, {"a": 1}, float("nan"), float("inf"), 10**400):
        data = json.loads(json.dumps(record().to_json()))
        place = data
        for key in path[:-1]:
            place = place[key]
        less = copy.deepcopy(data)
        place[path[-1]] = other
        found.append((data, f"{path} is {str(other)[:20]}"))
        inside: Any = less
        for key in path[:-1]:
            inside = inside[key]
        del inside[path[-1]]
        found.append((less, f"{path} is gone"))
    return found


PLACES: list[tuple[str | int, ...]] = [
    *((name,) for name in record().to_json()),
    *(("whole", name) for name in record().to_json()["whole"]),
    *(("training", name) for name in record().to_json()["training"]),
    ("training", "epochs", "path"),
    *(("layers", 0, name) for name in ("layer", "before_s", "after_s", "predicted_s")),
    *(("widths", 1, name) for name in ("layer", "before", "after")),
    *(("curve", 2, name) for name in ("name", "latency_s", "accuracy")),
]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_damaged_records_are_read_whole_or_refused_in_one_line(path: tuple[str | int, ...]) -> None:
    read = 0
    for data, what in damaged(*path):
        try:
            made = SlimRecord.from_json(data)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 400, what
        else:
            read += 1
            assert SlimRecord.from_json(json.loads(json.dumps(made.to_json()))) == made, what
            assert made.speedup > 0 or path[0] in ("whole", "predicted_s"), what
    assert read < len(damaged(*path)), "a damaged record was refused"


@pytest.mark.parametrize("data", [[], None, 7, "text", [["version", 1]], {"version": 1}, {}])
def test_other_data_are_no_record(data: Any) -> None:
    with pytest.raises(UserError, match="this is no record of slimming"):
        SlimRecord.from_json(data)


CHANGES: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("latency_s is 'fast'", lambda data: data["whole"].update(latency_s="fast")),
    ("latency_s is nan", lambda data: data["whole"].update(latency_s=float("nan"))),
    ("before is 2.5", lambda data: data["widths"][0].update(before=2.5)),
    ("workers is 'two'", lambda data: data["training"].update(workers="two")),
    ("epochs are {'path': 'x'}", lambda data: data["training"].update(epochs={"path": "x"})),
    ("threads is True", lambda data: data.update(threads=True)),
    ("layer is 3", lambda data: data["layers"][0].update(layer=3)),
    ("unexpected keyword argument 'more'", lambda data: data["curve"][0].update(more=1)),
]


@pytest.mark.parametrize(("words", "change"), CHANGES, ids=[words for words, _ in CHANGES])
def test_what_is_wrong_is_named(words: str, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(json.dumps(record().to_json()))
    change(data)
    with pytest.raises(UserError, match=words):
        SlimRecord.from_json(data)
