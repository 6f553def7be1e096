"""Objects of a schedule: changes, and what other pods use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("kubernetes", reason="needs Kubernetes: pip install 'paceline[kubernetes]'")

from kubernetes_worlds import World, make_world
from live_jobs import training
from paceline.scheduling.executors.kubernetes.cluster import seconds_of

__all__ = ["make_world"]


def test_pods_of_others_take_devices_and_rights_on_their_namespaces_may_be_missing(make_world: Callable[..., World]) -> None:
    world = make_world({"a": 4})
    world.runs(training(world.base, directory=str(world.base)), {"a": 1})
    (own,) = world.store.list("pods")
    world.store.namespaces.add("theirs")
    world.store.create("pods", "theirs", {"metadata": {"name": "x"}, "spec": {**own["spec"], "nodeName": "a"}})
    assert world.again().nodes() == (("a", 3),)
    world.server.forbidden = lambda user, verb, kind: kind == "pods" and world.server.asked[-1][1] == "/api/v1/pods"
    assert world.again().nodes() == (("a", 4),)


def test_times() -> None:
    assert seconds_of("2026-01-02T03:04:05Z") == 1767323045.0
    assert seconds_of(None) is None
