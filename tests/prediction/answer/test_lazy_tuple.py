"""A tuple that is made once, at the first look, and is then as any other."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.answer.lazy_tuple import Lazy, lazy


class Maker:
    """Counts how often it is asked."""

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values, self.calls = values, 0

    def __call__(self) -> tuple[int, ...]:
        self.calls += 1
        return self.values


@given(st.lists(st.integers(), max_size=8), st.slices(8))
def test_it_is_the_tuple(values: list[int], part: slice) -> None:
    whole = tuple(values)
    late: Lazy[int] = lazy(Maker(whole))
    assert late == whole and whole == late and late == lazy(Maker(whole)) and late != (*whole, 0)
    assert (len(late), tuple(late), late[part], repr(late), hash(late)) == (
        len(whole),
        whole,
        whole[part],
        repr(whole),
        hash(whole),
    )
    assert [*reversed(late)] == [*reversed(whole)] and (not values or (values[-1] in late and late[-1] == values[-1]))


def test_it_is_made_at_the_first_look_and_once() -> None:
    maker = Maker((1, 2))
    late = lazy(maker)
    assert maker.calls == 0
    assert late[0] == 1 and len(late) == 2 and list(late) == [1, 2]
    assert maker.calls == 1


def test_a_pickle_holds_the_tuple() -> None:
    again = pickle.loads(pickle.dumps(lazy(Maker((3, 4)))))
    assert type(again) is tuple and again == (3, 4)


def test_a_failure_is_not_kept() -> None:
    values = iter([(), (5,)])

    def make() -> tuple[int, ...]:
        return next(values) or (_ for _ in ()).throw(ValueError("not yet"))

    late = lazy(make)
    with pytest.raises(ValueError, match="not yet"):
        len(late)
    assert late[0] == 5
