"""The interval composes as the sentences that describe it say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import hardware
from paceline.prediction import Calibration, Line, predict
from paceline.prediction.efficiency import TYPICAL, efficiency
from paceline.prediction.uncertainty import Z80, Sigmas, interval, spread
from paceline.strategy import Strategy
from paceline.workload import workload

SIGMAS = Sigmas(base=0.05, device=0.12, model=0.1, network=0.3, intra=0.2, other=0.3)
SEEN = {"device_seen": True, "model_seen": True}
seconds = st.floats(1e-6, 1e3)


def test_work_alone_has_the_sigma_of_work():
    low, high = interval(2.0, {"compute": 1.5, "memory bandwidth": 0.5}, SIGMAS, **SEEN)
    assert high / 2.0 == pytest.approx(2.0 / low) == pytest.approx(math.exp(Z80 * 0.05))


def test_shares_weigh_independent_errors():
    found = spread({"compute": 1.0, "network": 3.0}, SIGMAS, **SEEN)
    assert found == pytest.approx(math.hypot(0.25 * 0.05, 0.75 * 0.3))


@given(seconds, seconds, seconds)
def test_the_step_lies_inside_and_what_was_not_seen_is_wider(compute, network, intra):
    exposed = {"compute": compute, "network": network, "intra-node link": intra}
    step = sum(exposed.values())
    widths = []
    for device, model in ((True, True), (True, False), (False, True), (False, False)):
        low, high = interval(step, exposed, SIGMAS, device_seen=device, model_seen=model)
        assert 0 < low < step < high
        widths.append(high / low)
    assert widths[0] < min(widths[1:3]) * (1 + 1e-9) and max(widths[1:3]) < widths[3] * (1 + 1e-9)


@given(seconds, st.floats(0.0, 10.0), st.floats(0.01, 10.0))
def test_a_larger_share_of_the_least_known_part_is_wider(compute, network, more):
    less = spread({"compute": compute, "network": network * compute}, SIGMAS, **SEEN)
    wide = spread({"compute": compute, "network": (network + more) * compute}, SIGMAS, **SEEN)
    # below the share at which two errors cancel best, more of the other part is narrower
    if network > SIGMAS.base**2 / SIGMAS.network**2:
        assert wide >= less * (1 - 1e-9)


def test_nothing_has_no_spread():
    assert spread({}, SIGMAS, **SEEN) == 0.0


def alone(device: str, name: str = "resnet-50", **given) -> float:
    """Upper by lower end of one device's step."""
    made = predict(workload(name), hardware.cluster(device, 1, 1), Strategy(world_size=1, global_batch_size=64), **given)
    return made.high_s / made.low_s


def test_a_device_that_was_never_fitted_has_a_wider_range():
    assert "Ampere GA100" in TYPICAL.seen and "Blackwell" not in TYPICAL.seen
    assert alone("B200") > alone("A100") * 1.05
    unseen = efficiency(without="Ampere GA100")
    assert unseen.seen == TYPICAL.seen - {"Ampere GA100"}
    assert alone("A100", efficiency=unseen) == pytest.approx(alone("B200", efficiency=unseen))


@pytest.mark.parametrize("name", sorted(TYPICAL.seen))
def test_every_name_that_was_seen_can_be_left_out(name):
    without = efficiency("tuned", name)
    assert without.seen == TYPICAL.seen - {name} and without.sigmas != efficiency("tuned").sigmas
    assert without.matrix_share == pytest.approx(efficiency("tuned").matrix_share, rel=0.2)


def test_a_model_that_was_never_fitted_has_a_wider_range():
    assert "hdc" not in TYPICAL.seen
    assert alone("A100", "hdc") > alone("A100") * 1.01


def test_a_calibration_narrows_the_range():
    measured = Calibration(
        workload="resnet-50", micro_batch_size=64, world_size=1, compression="dense", forward_s=0.05, backward_s=0.1,
        optimizer_s=0.001, **dict.fromkeys(("allreduce", "direct", "encode", "reduce", "decode"), Line(0.0, 0.0)),
        overlap=True, spread=0.03, source="made up",
    )  # fmt: skip
    assert alone("A100", calibration=measured) < alone("A100")


def test_the_range_widens_with_every_doubling_of_the_nodes() -> None:
    sigmas = Sigmas(base=0.1, doubling=0.05)
    found = [spread({"compute": 1.0}, sigmas, device_seen=True, model_seen=True, nodes=n) for n in (1, 2, 8)]
    assert found == pytest.approx([0.1, math.hypot(0.1, 0.05), math.hypot(0.1, 0.15)])


def test_ordinary_software_is_less_certain_than_tuned() -> None:
    assert efficiency("ordinary").sigmas.base > efficiency("tuned").sigmas.base
