"""Blocks of each part of a pipeline: their numbers, and refused ends."""

from __future__ import annotations

import pytest

from paceline import Workload
from paceline.errors import UserError
from paceline.prediction.passes.blocks import after_blocks, block_begins, part_sizes


@pytest.mark.parametrize(
    ("count", "virtual", "ends", "sizes"),
    [
        (4, 1, (0, 0), [6, 6, 6, 6]),
        (4, 1, (3, 3), [3, 9, 9, 3]),
        (4, 1, (3, 0), [3, 7, 7, 7]),
        (4, 1, (0, 5), [6, 7, 6, 5]),
        (2, 1, (10, 14), [10, 14]),
        (2, 2, (10, 0), [5, 7, 5, 7]),
        (13, 2, (0, 0), [0, *[1] * 24, 0]),
        (25, 1, (0, 0), [*[1] * 24, 0]),
    ],
)
def test_each_part_has_equally_many_blocks_but_for_given_ends(
    count: int, virtual: int, ends: tuple[int, int], sizes: list[int]
) -> None:
    assert part_sizes(24, count, virtual, ends) == sizes


def test_modules_for_further_tokens_make_the_last_part_smaller() -> None:
    """NVIDIA's layout of DeepSeek-V3, ``Et*4|(tttt|)*14tmL`` (Megatron-Bridge): 61 blocks in 16 parts."""
    assert after_blocks(Workload.named("deepseek-v3")) == 0 and after_blocks(Workload.named("deepseek-v3-mtp")) == 2
    assert part_sizes(61, 4, 4, after=2) == [4] * 15 + [1]
    assert part_sizes(61, 4, 4, (0, 8), after=2) == part_sizes(61, 4, 4, (0, 8))  # given ends are kept
    assert part_sizes(8, 4, 1, after=3) == [2] * 4  # nothing would be left


@pytest.mark.parametrize(
    ("virtual", "ends", "words"),
    [
        (2, (3, 0), "3 layers of the first stage do not divide among its 2 parts; give a multiple of 2"),
        (1, (23, 0), "with 23 layers at their ends leave 1 of 24 blocks for 3 parts"),
    ],
)
def test_ends_that_leave_too_little_are_refused(virtual: int, ends: tuple[int, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        part_sizes(24, 4, virtual, ends)


def test_blocks_begin_at_their_first_layer() -> None:
    workload = Workload.named("bert-large")
    begins = block_begins(workload)
    assert len(begins) == 24 and list(begins.values()) == sorted(set(begins.values()))
    assert all(workload.layers[index].name.startswith(name) for name, index in begins.items())
    assert block_begins(Workload.named("tacotron2")) == {}
