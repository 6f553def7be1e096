"""The table of causes: each is complete, and names only known words, conditions and resources."""

from __future__ import annotations

import re

from paceline.planning.compare.changes import parse_change
from paceline.planning.diagnose.causes import causes
from paceline.planning.diagnose.effects import SPEED_CONDITIONS
from paceline.planning.diagnose.question import CONDITIONS, VALUES
from paceline.prediction.passes.compute import RESOURCES


def test_every_cause_is_complete() -> None:
    for name, cause in causes().items():
        assert cause.sign and cause.proof and cause.fix and cause.title, name
        assert cause.tries or cause.predictor or cause.host or cause.slows or cause.delivers or cause.reading, name
        assert {*cause.usual, *cause.likelier} <= {*CONDITIONS, *SPEED_CONDITIONS}, name
        assert cause.delivers.keys() in (set(), {"images", "tokens"}), name
        assert set(cause.when) <= {*CONDITIONS, *SPEED_CONDITIONS}, name
        assert set(cause.of) <= {*RESOURCES, "step"}, name
        assert not cause.waits or cause.waits in RESOURCES, name
        assert bool(cause.slows) == bool(cause.of), name
        assert all(text.count("{") == text.count("}") for text in (cause.title, cause.proof)), name


def test_changes_are_those_of_whatif() -> None:
    for name, cause in causes().items():
        for texts in cause.tries:
            words = {word for text in texts for word in re.findall(r"\{(\w+)\}", text)}
            assert words <= VALUES.keys() and len(words) <= 1, name
            for text in texts:
                parse_change(text.format(**dict.fromkeys(words, "2")))


def test_threads_that_are_counted_are_named() -> None:
    for name, cause in causes().items():
        assumed = cause.threads == ("assumption",)
        assert assumed or all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in cause.threads), name
        assert assumed or 0 < len(cause.threads) <= cause.tokens + cause.images, name
        assert cause.seen(images=True) > 0 < cause.seen(images=False), name
