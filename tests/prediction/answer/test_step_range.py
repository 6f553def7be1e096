"""The 80 % interval of a step: wider for what is unknown, and as wide as held-out runs of the kind ask for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import efficiency
from paceline.prediction import Predictor
from paceline.prediction.answer import step_range
from paceline.prediction.answer.held_out_error import HeldOut
from paceline.prediction.answer.step_range import fitted_factors, held_out_range, missed_by, reported_spread, widened
from paceline.prediction.passes.host import host_launches
from paceline.prediction.step.step_inputs import StepInputs

TUNED = efficiency("tuned")
ONE, TWO = Cluster.named("8 A100"), Cluster.named("2x8 A100", network="25Gb/s")
ENDS = (0.8, 1.25)
NET = Workload.named("gpt2")


def strategy(cluster: Cluster, **choices: object) -> Strategy:
    return Strategy.of(world_size=cluster.world_size, global_batch_size=64 * cluster.world_size, precision="bf16", **choices)


def kind(links: tuple[str, ...], low: float = 2.0, high: float = 0.5) -> HeldOut:
    return HeldOut("made up", {"a": 0.1}, 10, "2026-01-01", "0000000", low, high, links)


def test_each_end_has_its_own_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_range, "held_out", lambda *_: kind(("nvlink",)))
    low, high = held_out_range(TUNED, StepInputs(NET, ONE, strategy(ONE)), 1.0, ENDS, known=False)
    assert (low, high) == (pytest.approx(0.8**2), pytest.approx(1.25**0.5))


def test_links_that_limited_no_held_out_run_make_it_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_range, "held_out", lambda *_: kind(("infiniband",)))
    monkeypatch.setattr(step_range, "unseen_shift", lambda: 0.2)
    ends = 0.8**2 * math.exp(-0.2), 1.25**0.5 * math.exp(0.2)
    assert held_out_range(TUNED, StepInputs(NET, TWO, strategy(TWO)), 1.0, ENDS, known=False) == pytest.approx(ends)
    alone, ends = Cluster.named("A100"), (0.8**2, 1.25**0.5)
    assert held_out_range(TUNED, StepInputs(NET, alone, strategy(alone)), 1.0, ENDS, known=False) == pytest.approx(ends)


def test_devices_without_measured_products_are_less_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_range, "held_out", lambda *_: replace(kind(("nvlink",)), unmeasured=1.5))
    measured, old = (Cluster.named(name) for name in ("A100", "V100"))
    for cluster, factor in ((measured, 1.0), (old, 1.5)):
        of = Strategy.of(world_size=1, global_batch_size=64, precision="bf16" if cluster is measured else "fp16")
        ends = held_out_range(TUNED, StepInputs(NET, cluster, of), 1.0, ENDS, known=False)
        assert ends == pytest.approx((0.8 ** (2 * factor), 1.25 ** (0.5 * factor)))


def test_no_range_is_absurd() -> None:
    cluster = Cluster.named("2x8 A100", network="100Gb/s")
    choices = {"sharding": "zero3", "precision": "bf16"}
    p = Predictor().step(Workload.named("llama-3-8b"), cluster, Strategy.of(world_size=16, global_batch_size=16, **choices))
    assert p.high_s / p.low_s < 50


def test_without_a_held_out_run_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_range, "held_out", lambda *_: None)
    assert held_out_range(TUNED, StepInputs(NET, TWO, strategy(TWO)), 1.0, ENDS, known=False) == ENDS


def test_a_slow_host_may_lengthen_steps_of_short_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = efficiency("ordinary")
    monkeypatch.setattr(step_range, "held_out", lambda *_: replace(kind(("nvlink",), 1.0, 1.0), launch_s=100e-6))
    monkeypatch.setattr(step_range, "unseen_shift", lambda: 0.0)

    def slower(step_s: float, cluster: Cluster = ONE, **choices: object) -> float:
        """Logarithm of the slow host's part of the upper end, whose square adds to the model's own."""
        ends = 0.8 * step_s, 1.25 * step_s
        low, high = held_out_range(ordinary, StepInputs(NET, cluster, strategy(cluster, **choices)), step_s, ends, known=False)
        assert low == pytest.approx(ends[0])
        return math.sqrt(max(0.0, math.log(high / step_s) ** 2 - math.log(1.25) ** 2))

    launches_s = 100e-6 * float(host_launches(NET, ordinary, ONE.device, "fp32").sum())
    assert slower(1.0) == pytest.approx(math.log1p(launches_s)) and launches_s > 0.01
    assert slower(1.0, micro_batches=2) == pytest.approx(math.log1p(2 * launches_s))
    assert slower(1.0, pipeline=2, micro_batches=2) == pytest.approx(math.log1p(launches_s))
    assert slower(1e-4) == pytest.approx(math.log1p(100e-6 / ordinary.host_s))  # the host launches no more than it can
    assert slower(1.0, Cluster.named("8 TPU v4")) == pytest.approx(0.0, abs=1e-6)  # it runs compiled programs


def test_a_large_network_on_several_nodes_has_a_range_to_act_on() -> None:
    """Its kernels are long: what made small networks on slow hosts four times as slow is nothing to it."""
    cluster = Cluster.named("2x8 A100", network="400Gb/s RoCE")
    large, small = Workload.named("llama-3-8b"), Workload.named("ncf")
    choices = {"world_size": 16, "precision": "bf16"}
    p = Predictor().step(large, cluster, Strategy.of(global_batch_size=16, sharding="zero3", **choices))
    q = Predictor().step(small, cluster, Strategy.of(global_batch_size=16384, **choices))
    assert p.high_s / p.step_time_s < 2.5 < q.high_s / q.step_time_s


def test_predictions_that_records_correct_are_another_kind() -> None:
    inputs = StepInputs(NET, ONE, strategy(ONE))
    kinds = [missed_by(TUNED, inputs, known=known) for known in (False, True)]
    assert [missed.kind for missed in kinds if missed] == ["tuned software", "tuned software, corrected by records"]


def test_a_chip_and_a_network_that_no_constant_was_fitted_on_are_less_certain() -> None:
    net = Workload.named("resnet-50")
    step = Predictor(framework="tuned").model(net).step(ONE, strategy(ONE).settled(net, ONE))
    known, unknown = (
        fitted_factors(e, StepInputs(net, ONE, strategy(ONE)), step) for e in (TUNED, replace(TUNED, seen=frozenset()))
    )
    assert unknown[0] < known[0] < 1 < known[1] < unknown[1]


def test_the_step_stays_inside() -> None:
    net = Workload.named("gpt2")
    for cluster in (ONE, TWO):
        for choices in ({}, {"tensor": 2}, {"sharding": "zero3"}):
            p = Predictor().step(net, cluster, strategy(cluster, **choices))
            assert p.low_s < p.step_time_s < p.high_s


def test_software_after_the_newest_may_be_faster_the_later_it_is() -> None:
    """A year after the newest measured one widens the fast side alone; other years do not."""
    ends = [Predictor(framework="tuned", year=year).step(NET, ONE, strategy(ONE)) for year in (0.0, 2026.0, 2027.0, 2028.0)]
    lows, highs, steps = ([getattr(one, name) for one in ends] for name in ("low_s", "high_s", "step_time_s"))
    assert steps == pytest.approx([steps[0]] * 4) and highs == pytest.approx([highs[0]] * 4)
    assert lows[0] == pytest.approx(lows[1]) and lows[1] > 1.05 * lows[2] and lows[2] > 1.05 * lows[3]


def test_independent_errors_add_in_squares() -> None:
    low, high = widened((math.exp(-0.3), math.exp(0.5)), (0.4, 0.0))
    assert (math.log(low), math.log(high)) == pytest.approx((-0.5, 0.5))


def test_a_named_framework_has_the_spread_of_reports() -> None:
    plain, named, levels = (Predictor(framework=f).step(NET, ONE, strategy(ONE)) for f in ("ordinary", "hf-trainer-4", "tuned"))
    assert named.high_s / named.step_time_s > plain.high_s / plain.step_time_s
    assert named.step_time_s / named.low_s > plain.step_time_s / plain.low_s > 1
    assert reported_spread(efficiency("tuned")) == (0.0, 0.0) and levels.framework == "tuned"
    assert "nine of ten" in named.explain() and "80 % of" in plain.explain()
