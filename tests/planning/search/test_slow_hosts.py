"""Expected steps over hosts of unknown speed: by the mean of the distribution, and for which predictions they apply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.calibration.constants import efficiency
from paceline.hardware import Cluster
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.prediction import Observation, Predictor, fit
from paceline.prediction.passes.host import host_launches, launches_of_step
from paceline.strategy import Strategy
from paceline.strategy.recompute import Recompute
from paceline.workload import TransformerShape, Workload

GPT = Workload.from_shape(TransformerShape(layers=4, hidden=1024, heads=16, vocabulary=51200), 512, name="gpt-4x1024")
PLACE = Cluster.named("1x8 A100")
HOSTS = SlowHosts.of(GPT, Predictor())


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.05, 0.5])
def test_the_expected_step_is_the_mean_over_hosts(step_s: float) -> None:
    host_s, count, micro_batches = efficiency("ordinary").host_s, 300.0, 3
    extra = np.random.default_rng(1).exponential(HOSTS.extra_s, 200_000)
    kernels = np.maximum(0.0, count * micro_batches * (host_s + extra) - max(step_s, count * micro_batches * host_s))
    found = HOSTS.expected(np.array([step_s]), PLACE.device, count, micro_batches, 1, 1)
    assert found[0] == pytest.approx(step_s + kernels.mean(), rel=0.02)


def test_an_expected_step_grows_with_the_predicted_one() -> None:
    steps = np.geomspace(1e-4, 10, 400)
    for stages in (1, 3):
        found = HOSTS.expected(steps, PLACE.device, 500.0, 6, stages, 1)
        assert (np.diff(found) > 0).all() and (found >= steps).all()


def test_more_kernels_on_a_device_cost_more() -> None:
    layouts = [
        Strategy.of(world_size=8, global_batch_size=16, precision="fp16", **sizes)
        for sizes in ({"grad_accum_steps": 2}, {"pipeline": 2, "grad_accum_steps": 2}, {"grad_accum_steps": 1})
    ]
    steps = np.full(3, 0.02)
    more = HOSTS.of_candidates([(PLACE, layout) for layout in layouts], steps) - steps
    launches = [launches_of_step(GPT, layout, efficiency("ordinary"), PLACE.device) for layout in layouts]
    assert launches[0] == 2 * launches[1] == 2 * launches[2] and more[0] > more[1] > more[2] > 0


def test_a_forward_pass_that_runs_again_launches_its_kernels_again() -> None:
    whole = [HOSTS.launches(PLACE.device, "fp16", Recompute.of(name)) for name in ("none", "selective:mlp", "full")]
    forward, backward = host_launches(GPT, efficiency("ordinary"), PLACE.device, "fp16")
    last = "mlp_drop", "mlp_sum"  # nothing reads the sum of a block that runs again
    again = np.array([layer.name.startswith("blocks.") and not layer.name.endswith(last) for layer in GPT.layers])
    assert whole[0] == (forward + backward).sum() and whole[2] == whole[0] + forward[again].sum()
    assert whole[0] < whole[1] < whole[2]
    layouts = [Strategy.of(world_size=8, global_batch_size=8, precision="fp16", recompute=name) for name in ("none", "full")]
    more = HOSTS.of_candidates([(PLACE, layout) for layout in layouts], np.full(2, 1e-4))
    assert more[1] - 1e-4 == pytest.approx((more[0] - 1e-4) * whole[2] / whole[0])


def test_known_hosts_and_replayed_graphs_add_nothing() -> None:
    layout = Strategy.of(world_size=8, global_batch_size=8, precision="fp16")
    seen = fit([Observation(workload=GPT, cluster=PLACE, strategy=layout, step_s=0.1)], Predictor())
    tuned = Predictor(constants=efficiency("tuned"))
    for predictor in (seen, tuned, Predictor(constants=replace(efficiency("ordinary"), host_s=0.0))):
        found = SlowHosts.of(GPT, predictor).of_candidates([(PLACE, layout)], np.array([0.01]))
        assert found[0] == 0.01
