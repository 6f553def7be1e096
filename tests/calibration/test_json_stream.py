"""JSON read one element at a time is what the whole reader reads, and little of it is held."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.calibration.imports import json_stream
from paceline.calibration.imports.json_stream import members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(params=[1, 7, 1 << 20])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(json_stream, "PIECE", request.param)
    return int(request.param)


def gathered(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Elements of the streamed array, and the other members."""
    pairs = list(members(io.StringIO(text), "events"))
    return [v for name, v in pairs if name == "events"], {name: v for name, v in pairs if name != "events"}


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@settings(max_examples=25)
@given(
    elements=st.lists(JSON, max_size=5),
    others=st.dictionaries(st.text().filter(lambda name: name != "events"), JSON, max_size=3),
    blank=st.sampled_from([None, 2]),
)
def test_elements_and_members_are_those_of_the_whole_file(
    size: int, elements: list[Any], others: dict[str, Any], blank: int | None
) -> None:
    text = json.dumps({**others, "events": elements}, indent=blank)
    before, json_stream.PIECE = json_stream.PIECE, size
    try:
        assert gathered(text) == (elements, others)
        assert gathered(json.dumps(elements, indent=blank)) == (elements, {})
    finally:
        json_stream.PIECE = before


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": 1', '{"events": [1, 2', '{"events": [{"a": "b', '{"events": [1 2]}', "nothing", '{"a" 1}', '{"a": tru}'],
)
def test_what_is_no_whole_json_is_refused(text: str, piece: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        gathered(text)


def test_an_element_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "LARGEST", 1000)
    monkeypatch.setattr(json_stream, "PIECE", 100)
    with pytest.raises(ValueError, match="more than 1,000 characters"):
        gathered('{"events": ["' + "x" * 10_000 + '"]}')


def test_little_of_a_long_file_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "PIECE", 1 << 16)

    class Long(io.TextIOBase):
        """A million characters that are made as they are read."""

        def __init__(self) -> None:
            self.left: Iterator[str] = iter(['{"events": [0', *[', {"name": "' + "k" * 1000 + '"}'] * 1000, "]}"])
            self.ahead = ""

        def read(self, size: int | None = -1) -> str:
            while len(self.ahead) < (size or 0) and (more := next(self.left, "")):
                self.ahead += more
            taken, self.ahead = self.ahead[:size], self.ahead[size:]
            return taken

    tracemalloc.start()
    try:
        assert sum(1 for _ in members(Long(), "events")) == 1001
        assert tracemalloc.get_traced_memory()[1] < 6 * json_stream.PIECE
    finally:
        tracemalloc.stop()
