"""Every row is run, the one that fails is named, and other parameters stay pytest's."""

from __future__ import annotations

import inspect

import pytest

from each_row import each_row


def test_every_row_is_run_and_the_one_that_fails_is_named() -> None:
    seen: list[tuple[int, int, str]] = []

    @each_row(("a", "b"), [(1, 2), (3, 4), (5, 5), (6, 7)])
    @each_row("c", "xy")
    def case(a: int, b: int, c: str, tmp: int) -> None:
        assert tmp == 9
        seen.append((a, b, c))
        assert a != b

    assert list(inspect.signature(case).parameters) == ["tmp"]
    with pytest.raises(AssertionError) as failure:
        case(tmp=9)
    assert seen == [(1, 2, "x"), (1, 2, "y"), (3, 4, "x"), (3, 4, "y"), (5, 5, "x")]
    assert failure.value.__notes__ == ["row 0 of 2: {'c': 'x'}", "row 2 of 4: {'a': 5, 'b': 5}"]


def test_a_test_has_rows_and_takes_them() -> None:
    with pytest.raises(AssertionError, match="no rows"):
        each_row("a", [])
    with pytest.raises(AssertionError, match="takes no b"):
        each_row("b", [1])(lambda a: None)
