"""The table by number of devices: the best of each, and the best of all in its own place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.search.ranking import RankedTable, by_devices, ranked
from paceline.planning.search.tally import Exclusions
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload
from prediction_toys import PRICES, make_cluster


def test_the_best_of_all_stands_for_its_number_of_devices(toy: Workload, space: Space) -> None:
    """One on as many devices is cheaper; of all, only the best is near enough to the fastest."""
    two, four = space.clusters[1], space.clusters[2]
    candidates = [
        (place, Strategy.of(world_size=place.world_size, global_batch_size=256, bucket_bytes=25 << 20))
        for place in (two, four, four)
    ]
    time_s, usd = np.array([1.0, 1.005, 1.2]), np.array([10.0, 5.0, 4.0])
    table = RankedTable(
        toy, TrainingTarget(total=1e7), Goal("fastest"), {}, candidates, time_s, time_s, usd, np.ones(3, bool), Predictor()
    )
    best = ranked(Goal("fastest"), table, Exclusions()).best
    assert best == 1
    assert by_devices(table, best) == [0, 1]


def test_rows_are_sorted_by_devices_whatever_the_order_of_the_candidates(toy: Workload, space: Space) -> None:
    places = [space.clusters[i] for i in (2, 0, 1)]
    candidates = [(place, Strategy.of(world_size=place.world_size, global_batch_size=256)) for place in places]
    time_s = np.array([1.0, 4.0, 2.0])
    table = RankedTable(
        toy, TrainingTarget(total=1e7), Goal("fastest"), {}, candidates, time_s, time_s, time_s, np.ones(3, bool), Predictor()
    )
    rows = by_devices(table, 0)
    counts = [candidates[i][0].world_size for i in rows]
    assert counts == sorted(counts) and set(rows) == {0, 1, 2}


@pytest.mark.long
def test_no_number_of_devices_is_left_out_and_the_front_is_of_these_rows(toy: Workload, space: Space) -> None:
    clusters = tuple(make_cluster(1, n, network=1e9) for n in range(1, 21))
    answer = plan(toy, replace(space, clusters=clusters, batches=(5040 * 2,)), Goal("fastest"), prices=PRICES)
    rows = [choice.cluster.world_size for choice in answer.by_devices]
    assert rows == [n for n in range(1, 21) if 10080 % n == 0] and len(rows) > 12
    assert {id(choice) for choice in answer.front} <= {id(choice) for choice in answer.by_devices}
