"""The time in which a host launches kernels, found again in steps that were made with a known one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL
from paceline.calibration.observation import Observation
from paceline.prediction import Predictor, fit
from paceline.prediction.correction.host_fit import TRIED, ObservedHost
from paceline.prediction.passes.host import LOOP_S
from traced_layers import launched

CLUSTER = Cluster.named("2 A100")
PLAIN = Predictor()


def observed(
    host_s: float, factor: float = 1.0, noise: float = 0.0, name: str = "gpt2", cluster: Cluster = CLUSTER
) -> list[Observation]:
    """Steps of growing micro batches by a machine whose host takes ``host_s`` a kernel and that is ``factor`` slower."""
    rng, slow = np.random.default_rng(3), PLAIN.changed(constants=replace(PLAIN.typical, host_s=host_s))
    workload = Workload.named(name)
    steps = []
    for micro in (1, 2, 4, 8, 16, 32):
        strategy = Strategy.of(world_size=cluster.world_size, global_batch_size=micro * cluster.world_size, precision="bf16")
        seconds = slow.step(workload, cluster, strategy).step_time_s * factor * float(np.exp(rng.normal(0.0, noise)))
        steps.append(Observation(workload=workload, cluster=cluster, strategy=strategy, step_s=seconds))
    return steps


@pytest.mark.everyday("1.0-0.0-0.0001", "1.4-0.0-7e-05")
@pytest.mark.parametrize("host_s", [4e-5, 7e-5, 1e-4])
@pytest.mark.parametrize(("factor", "noise"), [(1.0, 0.0), (1.4, 0.0), (0.8, 0.03)])
def test_a_slow_host_is_found(host_s: float, factor: float, noise: float) -> None:
    steps = observed(host_s, factor, noise)
    assert fit(steps, PLAIN).correction.host_s(CLUSTER.device) == pytest.approx(host_s, rel=0.3)


def test_steps_that_show_none_have_a_fast_one_and_one_step_says_nothing() -> None:
    assert fit(observed(0.0, 1.3, 0.02), PLAIN).correction.host_s(CLUSTER.device) < TYPICAL.host_s / 2
    alone = observed(5e-5)[:1]  # one micro batch says nothing of it
    assert fit(alone, PLAIN).correction.host_s(CLUSTER.device) == 0.0


def test_tuned_software_launches_graphs() -> None:
    tuned = Predictor(framework="tuned")
    assert fit(observed(5e-5), tuned).correction.host_s(CLUSTER.device) == 0.0


def test_a_host_is_that_of_its_device() -> None:
    other = Cluster.named("2 H100")
    correction = fit([*observed(6e-5), *observed(0.0, cluster=other)], PLAIN).correction
    assert correction.host_s(CLUSTER.device) > 3e-5
    assert correction.host_s(other.device) < 3e-5


def test_what_was_learned_of_small_batches_of_one_network_holds_for_another() -> None:
    corrected = fit(observed(1.6e-4), PLAIN)
    for step in observed(1.6e-4, name="bert-large")[:2]:
        errors = [
            abs(p.step(step.workload, step.cluster, step.strategy).step_time_s / step.step_s - 1) for p in (corrected, PLAIN)
        ]
        assert errors[0] < 0.2 < errors[1]


def test_a_host_bounds_the_pass_and_not_each_kernel() -> None:
    strategy = Strategy.of(world_size=2, global_batch_size=2, precision="bf16")
    workload = Workload.named("gpt2")
    worked = PLAIN.changed(constants=replace(PLAIN.typical, host_s=0.0)).step(workload, CLUSTER, strategy)
    host_s = 1e-4
    calls = sum(launched(layer, LOOP_S / host_s) for layer in workload.layers)
    slow = PLAIN.changed(constants=replace(PLAIN.typical, host_s=host_s)).step(workload, CLUSTER, strategy)
    update = sum(event.duration_s for event in slow.timeline if event.name == "optimizer")
    assert slow.compute_s - update == pytest.approx(calls * host_s, rel=0.05)
    fast = PLAIN.changed(constants=replace(PLAIN.typical, host_s=1e-7)).step(workload, CLUSTER, strategy)
    assert fast.step_time_s == pytest.approx(worked.step_time_s)


def test_an_outlier_does_not_rule() -> None:
    steps = observed(5e-5)
    steps[2] = replace(steps[2], step_s=steps[2].step_s * 20)
    host = ObservedHost(
        steps,
        lambda seen, h: (
            PLAIN.changed(constants=replace(PLAIN.typical, host_s=h))
            .step(seen.workload, seen.cluster, seen.strategy)
            .step_time_s
        ),
        PLAIN.typical.host_s,
    )
    assert host.of(CLUSTER.device.name) == pytest.approx(5e-5, rel=0.4)
    assert min(TRIED) < 5e-5 < max(TRIED)


def test_the_ends_of_the_range_have_the_same_host() -> None:
    corrected = fit(observed(1e-4), PLAIN)
    strategy = Strategy.of(world_size=2, global_batch_size=2, precision="bf16", compression="inceptionn")
    p = corrected.step(Workload.named("gpt2"), CLUSTER, strategy)
    assert p.low_s < p.step_time_s < p.high_s
