"""Chunks that share calls: each gets its own messages, in the order of the ranks."""

from __future__ import annotations

from typing import Any

import torch

from paceline.training.exchanges.pipeline import pipeline
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from paceline.training.exchanges.wires.joined_calls import joined


def message(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.uint8)


def test_every_chunk_gets_its_own_messages():
    def work(wire: LocalWire) -> tuple[int, list[list[list[int]]]]:
        n, me = wire.world_size, wire.rank
        seen: dict[int, list[list[int]]] = {}

        def chunk(number: int) -> Any:
            same = message(*[10 * number + me] * (number + 1))
            out = [same if rank != me else message() for rank in range(n)]
            lengths = [number + 1 if rank != me else 0 for rank in range(n)]
            arrived = yield from wire.deliver(out, lengths, [number + 1] * n, "push")
            seen[number] = [m.tolist() for m in arrived]
            passed = yield from wire.pass_on(same, number + 1, number + 1, "hop")
            seen[number].append(passed.tolist())
            passed = yield from wire.pass_on(message(me), None, 1, "told")
            seen[number].append(passed.tolist())

        with joined(wire):
            pipeline(map(chunk, range(3)), 3)
        assert wire.joint is None
        return wire.calls, [seen[number] for number in range(3)]

    for me, (calls, seen) in enumerate(LocalGroup(3).run(work)):
        assert calls == 4, "one each: push, hop, sizes, and what they announce"
        for number, (*pushed, hop, told) in enumerate(seen):
            assert pushed == [[10 * number + rank] * (number + 1) if rank != me else [] for rank in range(3)]
            assert hop == [10 * number + (me - 1) % 3] * (number + 1) and told == [(me - 1) % 3]
