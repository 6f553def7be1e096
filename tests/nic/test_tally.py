"""A comparison counts what ran, and says of the first frame that differs where it does."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.nic.tally import EngineTally, Wanted, first_difference
from paceline.nic.verilated import EngineFailure, ModelRun


def ran(*frames: bytes, errors: tuple[bool, ...] = ()) -> ModelRun:
    return ModelRun(frames, errors or (False,) * len(frames), np.zeros((len(frames), 4), np.int64), 10, 3, 2)


HEAD = bytes(range(32))


@pytest.mark.parametrize(
    ("wanted", "got", "error", "difference"),
    [
        (Wanted("a", b"same"), b"same", False, ""),
        (Wanted("a", b"same"), b"sane", False, "a: byte 2 is 6e65, expected 6d65 (4 and 4 bytes)"),
        (Wanted("a", b"same"), b"same", True, "a: error is True"),
        (Wanted("a", b"same", refused=True), b"same", False, "a: error is False"),
        (Wanted("a", b"same", refused=True), b"else", True, ""),
        (Wanted("a", b"same", refused=True), b"short", True, "a: 5 bytes, expected 4"),
        (Wanted("a", HEAD + b"same", True, 1), HEAD + b"else", True, ""),
        (Wanted("a", HEAD + b"same", True, 1), b"x" * 36, True, "a: 36 bytes, expected 36 behind the same header"),
    ],
)
def test_a_refused_frame_counts_by_its_length_and_header_any_other_by_every_byte(
    wanted: Wanted, got: bytes, error: bool, difference: str
) -> None:
    assert wanted.difference(got, error) == difference


def test_it_adds_up_batches_with_stalls_of_their_own_until_one_differs() -> None:
    tally, seeds = EngineTally(7), []
    for content in (b"one", b"two", b"tow"):
        run = tally.run(lambda seed, content=content: seeds.append(seed) or ran(content), "first")
        assert run is not None
        if not tally.agree(run, [Wanted("frame", b"two" if content == b"tow" else content)]):
            break
    assert len(set(seeds)) == 3 and (tally.cycles, tally.beats, tally.batches) == (30, 15, 3)
    result = tally.result("words", 3)
    assert (
        not result.agreed and result.difference.startswith("frame: byte 1 is") and (result.what, result.cases) == ("words", 3)
    )
    assert EngineTally(1).result("nothing", 0).agreed


def test_an_engine_that_fails_is_a_difference() -> None:
    def broken(seed: int) -> ModelRun:
        raise EngineFailure("no output for 4,000 cycles")

    tally = EngineTally(1)
    assert tally.run(broken, "values 0 on") is None
    assert tally.result("words", 0).difference == "no output for 4,000 cycles (frames from values 0 on)"


def test_what_is_missing_differs_where_it_ends() -> None:
    assert first_difference(b"ab", b"abcd") == "byte 2 is missing, expected 6364 (2 and 4 bytes)"
