"""State-space blocks: the FLOPs of a chunked scan that computes the recurrence, and the parameters of a block."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.workload.builders.layer_builders import LayerSpec
from paceline.workload.builders.state_space import Mamba, Mamba2

HEADS, WIDTH, STATE, CHUNK, TOKENS = 3, 5, 4, 6, 18


class Counter:
    """Matrix products that count their multiply-adds, twice."""

    flops = 0.0

    def __call__(self, a: np.ndarray, b: np.ndarray, share: float = 1.0) -> np.ndarray:
        self.flops += share * 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def scan(parts: list[LayerSpec]) -> LayerSpec:
    return next(part for part in parts if part.name == "scan")


def flops(spec: LayerSpec, backward: bool) -> float:
    return sum(o.flops for o in spec.operations if o.backward == backward)


def test_flops_are_those_of_a_chunked_scan_that_equals_the_recurrence() -> None:
    rng = np.random.default_rng(5)
    decay = rng.uniform(0.5, 1.0, (TOKENS, HEADS))
    x = rng.normal(size=(HEADS, TOKENS, WIDTH))
    b, c = rng.normal(size=(2, TOKENS, STATE))
    multiply = Counter()
    result = np.zeros_like(x)
    scores = {first: multiply(c[first : first + CHUNK], b[first : first + CHUNK].T) for first in range(0, TOKENS, CHUNK)}
    for head in range(HEADS):
        state, expected = np.zeros((STATE, WIDTH)), np.zeros((STATE, WIDTH))
        for first, own in scores.items():
            at = slice(first, first + CHUNK)
            sums = np.cumsum(np.log(decay[at, head]))
            mask = np.tril(np.exp(sums[:, None] - sums[None, :]))
            result[head, at] = multiply(own * mask, x[head, at], 0.5)  # half of the scores are zero
            result[head, at] += multiply(c[at] * np.exp(sums)[:, None], state)
            kept = np.exp(sums[-1] - sums)
            state = np.exp(sums[-1]) * state + multiply((b[at] * kept[:, None]).T, x[head, at])
        for t in range(TOKENS):
            expected = decay[t, head] * expected + np.outer(b[t], x[head, t])
            assert result[head, t] == pytest.approx(c[t] @ expected)
    block = Mamba2(heads=HEADS, head_dim=WIDTH, state=STATE, chunk=CHUNK)
    assert flops(scan(block.layers(TOKENS, 16)), False) == pytest.approx(multiply.flops)


@pytest.mark.parametrize("bias", [False, True])
def test_parameters_of_a_block_are_those_of_its_products_and_vectors(bias: bool) -> None:
    block = Mamba2(heads=6, head_dim=5, state=7, groups=3, bias=bias)
    sizes = {part.name: sum(int(np.prod(shape)) for _, shape in part.weights) for part in block.layers(12, 16)}
    d, mixed = 30, 30 + 2 * 3 * 7
    assert sizes == {
        "in": 16 * (d + mixed + 6) + bias * (d + mixed + 6),
        "conv": 5 * mixed,
        "scan": 18,
        "norm": d,
        "out": 16 * d + bias * 16,
    }
    older = Mamba(inner=32, state=4, rank=3, normalised=True)
    assert sum(int(np.prod(shape)) for part in older.layers(12, 16) for _, shape in part.weights) == (
        16 * 64 + 32 * 5 + 32 * (3 + 8) + 3 * 32 + 32 + 32 * 5 + 32 * 16 + 3 + 8
    )


def test_longer_sequences_cost_in_proportion_from_a_chunk_on() -> None:
    block = Mamba2(heads=4, head_dim=8, state=16, groups=2, chunk=32)
    once, thrice = (scan(block.layers(s, 16)) for s in (64, 192))
    for a, b in zip(once.operations, thrice.operations, strict=True):
        assert (b.flops, b.bytes, b.batch) == pytest.approx((3 * a.flops, 3 * a.bytes, 3 * a.batch))
    short = scan(block.layers(8, 16))
    assert flops(short, False) < flops(once, False) / 8  # no chunk is longer than the sequence


@pytest.mark.parametrize("change", [{"heads": 0}, {"groups": 3}, {"chunk": 0}, {"conv": 0}])
def test_impossible_blocks_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UserError):
        Mamba2(**{"heads": 4, "head_dim": 8, "state": 16, **change})
