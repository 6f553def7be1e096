"""Agreement of ranks on scales and fitness: on a GPU, where the host asks once, the same as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.codecs.reference.integer import Int8
from paceline.codecs.reference.ternary import Ternary
from paceline.training.exchanges.gradients.agreement import Agreement, Shared, agree
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from queued_kernels import play

BAD = {"none": 1.0, "nan": float("nan"), "infinity": float("inf"), "too large": 2.0**101}


def agreements(codec: Any, bad: float, in_kept: bool) -> list[Agreement]:
    def work(wire: LocalWire) -> Agreement:
        rng = np.random.default_rng(wire.rank)
        parts = [torch.from_numpy(rng.standard_t(3, n).astype(np.float32)) for n in (5000, 1, 33)] + [torch.ones(64)]
        kept = torch.ones(3)
        if wire.rank == 1:
            (kept if in_kept else parts[0])[2] = bad
        shared = Shared(1, 6) if codec.agrees else Shared(0, 0)
        return agree(codec, wire, parts, shared, kept, dense=False)

    return LocalGroup(2).run(work)


@pytest.mark.everyday("Ternary(clip=2.5, scale=None)", others="long")
@pytest.mark.parametrize("codec", [Int8(), Ternary(), Ternary(clip=2.5)], ids=str)
def test_a_gpu_agrees_as_the_host_does(codec, monkeypatch):
    cases = [(bad, kept) for bad in BAD.values() for kept in (False, True)]
    on_host = [agreements(codec, *case) for case in cases]
    waits = play(monkeypatch)
    for case, wanted in zip(cases, on_host, strict=True):
        waits.clear()
        found = agreements(codec, *case)
        assert waits.total() == 2, "once a rank"
        assert [a.fit for a in found] == [a.fit for a in wanted]
        assert wanted[0].fit == (case[0] == 1.0 or (case[0] == 2.0**101 and case[1])), case
        if wanted[0].fit:
            assert found == wanted
            assert len(found[0].agreed) == (4 if codec.agrees else 0)
