"""What is left out adds up by reason."""

from __future__ import annotations

from paceline.planning.search.tally import Excluded, Exclusions


def test_a_tally_adds_up_and_keeps_the_first_example() -> None:
    tally = Exclusions()
    for reason, count, example in (("few", 1, "a"), ("many", 3, ""), ("many", 4, "b"), ("none", 0, "c"), ("few", 1, "d")):
        tally.add(reason, count, example)
    assert tally.excluded() == [Excluded(7, "many", ""), Excluded(2, "few", "a")]
