"""Whether something can be predicted, and what a cluster is called."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.prediction.predictor import check_inputs, described

GOOD = Workload.named("lenet5"), Cluster.named("2x8 A100", network="100Gb/s"), Strategy.of(global_batch_size=1)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_of_another_type_is_refused(place: int) -> None:
    check_inputs(*GOOD)
    with pytest.raises(UserError, match="'bad'"):
        check_inputs(*("bad" if i == place else given for i, given in enumerate(GOOD)))


def test_a_cluster_is_described_by_names() -> None:
    assert described(GOOD[1]) == {
        "device": "A100 SXM 80GB",
        "devices_per_node": 8,
        "num_nodes": 2,
        "intra_link": GOOD[1].intra_link.name,
        "network": GOOD[1].network.name,
    }
    assert described(Cluster.named("8 A100"))["network"] == "none"
