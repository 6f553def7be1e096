"""Quotas of Kueue and Volcano as nodes of a queue."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota
from paceline.scheduling.starts.quotas import nodes_of_quotas


def test_a_flavor_has_the_quotas_of_all_queues_and_cohorts() -> None:
    queues = {
        "a": ClusterQueue(quotas={"x": Quota(nominal=8), "y": Quota(nominal=2)}, cohort="all"),
        "b": ClusterQueue(quotas={"x": Quota(nominal=4)}, cohort="all"),
    }
    cohorts = {"all": Cohort(quotas={"y": Quota(nominal=1)})}
    nodes = nodes_of_quotas(KueueSettings(queues=queues, cohorts=cohorts, flavors={"y": "A100 SXM 80GB"}))
    assert nodes.devices.tolist() == [12, 3] and nodes.types == ("", "A100 SXM 80GB") and nodes.quotas
    assert nodes.of_queue == {"a": (0, 1), "b": (0,)}
    with pytest.raises(UserError, match="no quota"):
        nodes_of_quotas(KueueSettings())
