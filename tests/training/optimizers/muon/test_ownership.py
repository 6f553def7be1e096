"""Shares of matrices: the FLOPs of each rank, and of each round."""

from __future__ import annotations

import pytest

from paceline.training.optimizers.muon.newton_schulz import PRECISIONS, NewtonSchulz
from paceline.training.optimizers.muon.ownership import owners, rounds

GPT2 = [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 12
LLAMA = [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048), (8192, 2048), (8192, 2048), (2048, 8192)] * 16


@pytest.mark.parametrize("shapes", [GPT2, LLAMA], ids=["gpt2", "llama-3.2-1b"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_no_rank_works_fifteen_percent_above_its_share(shapes: list[tuple[int, int]], ranks: int, precision: str) -> None:
    costs = [NewtonSchulz(PRECISIONS[precision]).flops(*shape) for shape in shapes]
    loads: dict[int, int] = {}
    owned = owners(costs, shapes, range(ranks), loads)
    assert sum(loads.values()) == sum(costs) and set(owned) == set(range(ranks))
    assert max(loads.values()) <= (1.15 if ranks == 8 else 1.03) * sum(costs) / ranks


def test_loads_carry_over() -> None:
    loads = {0: 5}
    assert owners([3, 2, 1], [(1, 1)] * 3, [0, 1], loads) == [1, 1, 0] and loads == {0: 6, 1: 5}


def test_rounds_divide_each_rank_evenly() -> None:
    found = rounds([4] * 12, [0, 1, 2] * 4, bucket=24)
    assert found == [list(range(6)), list(range(6, 12))]
    assert rounds([4] * 12, [0] * 12, bucket=1000) == [list(range(12))]
    assert sorted(i for members in rounds([100, 1], [0, 1], bucket=10) for i in members) == [0, 1]
