"""Results of a value are computed once for each choice, and go with the value."""

from __future__ import annotations

import pickle
from dataclasses import replace

from paceline.workload import Workload
from paceline.workload.prepared import Prepared, once, once_by


def test_results_are_computed_once_for_each_network_and_choice() -> None:
    calls: list[tuple[str, int]] = []

    @once
    def count(network: Workload, extra: int) -> list[int]:
        calls.append((network.name, extra))
        return [len(network.layers) + extra]

    first, second = Workload.named("lenet5"), replace(Workload.named("lenet5"), name="other")
    assert count(first, 1) is count(first, 1) and count(first, 2) is not count(first, 1)
    assert count(second, 1) is not count(first, 1) and calls == [("lenet5", 1), ("lenet5", 2), ("other", 1)]
    copy = pickle.loads(pickle.dumps(first))
    assert copy == first and count(copy, 1) is not count(first, 1), "results stay behind"


def test_choices_with_an_equal_key_share_a_result_and_the_oldest_result_goes() -> None:
    calls: list[int] = []

    @once_by(lambda number, scale=1: number % 10 * scale, most=2)
    def digit(_: Prepared, number: int, scale: int = 1) -> list[int]:
        calls.append(number)
        return [number * scale]

    owner = Prepared()
    assert digit(owner, 11) is digit(owner, 21) is digit(owner, number=1) and calls == [11]
    assert digit(owner, 1, 2) == [2] and digit(owner, 11) == [11] and calls == [11, 1]
    assert digit(owner, 3) == [3] and digit(owner, 1, scale=2) == [2], "two results are kept"
    assert digit(owner, 1) == [1] and calls == [11, 1, 3, 1], "the oldest was computed again"
    assert digit(Prepared(), 3) == [3] and len(calls) == 5, "another value has its own results"
