"""A job in words."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.starts.new_job import parse_new
from queues import nodes, queue, waits

QUEUE = queue(waits("w", 1, queue="gpu", priority=5.0), on=nodes(8, 4))


@pytest.mark.parametrize(
    ("text", "devices", "node_count", "run_s", "words", "limit_s"),
    [
        ("8 A100 for llama-3-8b 1B tokens", 8, 0, 0.0, ("llama-3-8b", "--tokens", "1B"), 0.0),
        ("2x8 A100 for 3h, limit 12h, queue gpu", 16, 2, 10800.0, (), 43200.0),
        ("4 for 30min", 4, 0, 1800.0, (), 0.0),
    ],
)
def test_words_become_a_job(
    text: str, devices: int, node_count: int, run_s: float, words: tuple[str, ...], limit_s: float
) -> None:
    new = parse_new(text, QUEUE)
    assert (new.job.devices, new.job.nodes, new.run_s, new.words, new.job.limit_s) == (
        devices,
        node_count,
        run_s,
        words,
        limit_s,
    )
    assert (new.job.queue, new.job.priority) == ("gpu", 5.0)


WRONG = ["8 A100", "64 A100 for 3h", "8 A100 for something", "8 A100 for 3h, limt 4h", "8 A100 for 3h, limit"]


@pytest.mark.parametrize("text", WRONG)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_new(text, QUEUE)
