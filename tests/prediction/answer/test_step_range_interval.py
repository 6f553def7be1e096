"""The interval composes as the sentences that describe it say."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline import hardware
from paceline.calibration.constants import TYPICAL, efficiency
from paceline.calibration.uncertainty import Sigmas
from paceline.prediction import Calibration, Line, Predictor, predict
from paceline.prediction.answer.step_range import interval, spread
from paceline.strategy import Strategy
from paceline.workload import Workload

Z80 = 1.2816
"""Standard deviations on either side that hold 80 % of a normal distribution: the quantile at 0.9."""
SIGMAS = Sigmas(base=0.05, device=0.12, model=0.1, kind=0.3, network=0.3, intra=0.2, other=0.3)
seconds = st.floats(1e-6, 1e3)


def test_work_alone_has_the_sigma_of_work():
    own = spread({"compute": 1.5, "memory bandwidth": 0.5}, SIGMAS, SIGMAS.work(True, True))
    low, high = interval(2.0, (2.0, 2.0), own)
    assert high == pytest.approx(1 / low) == pytest.approx(math.exp(Z80 * 0.05))


def test_shares_weigh_independent_errors_and_links_count_by_the_ends_alone():
    sigma = spread({"compute": 1.0, "codec": 2.0, "network": 1.0}, SIGMAS, 0.05)
    assert sigma == pytest.approx(math.hypot(0.25 * 0.05, 0.5 * 0.3))
    low, high = interval(4.0, (3.5, 6.0), 0.0)
    assert (4 * low, 4 * high) == (pytest.approx(3.5), pytest.approx(6.0))
    assert interval(4.0, (3.5, 6.0), sigma)[1] == pytest.approx(math.exp(math.hypot(Z80 * sigma, math.log(1.5))))


@given(seconds, seconds, seconds, seconds)
def test_the_step_lies_inside(compute, codec, faster, slower):
    step = compute + codec + faster
    low, high = interval(step, (step - faster, step + slower), spread({"compute": compute, "codec": codec}, SIGMAS, 0.05))
    assert 0 < low < 1 < high and step * low <= step - faster and step * high >= step + slower * (1 - 1e-9)


def test_nothing_has_no_spread():
    assert spread({}, SIGMAS, 0.05) == 0.0 and interval(0.0, (0.0, 0.0), 0.0) == (1.0, 1.0)


def alone(device: str, name: str = "resnet-50", precision: str = "fp32", **given) -> float:
    """One device's step over its lower end; the upper end also follows the kernels that a host launches."""
    plan = Strategy.of(world_size=1, global_batch_size=64, precision=precision)
    prediction = Predictor(**given).step(Workload.named(name), hardware.cluster(device, 1, 1), plan)
    return prediction.step_time_s / prediction.low_s


def test_a_device_that_was_never_fitted_has_a_wider_range():
    assert "Ampere GA100" in TYPICAL.seen and "CDNA 3" not in TYPICAL.seen
    assert alone("MI300X", precision="fp16") > alone("A100", precision="fp16") * 1.05
    unseen = efficiency(without="Ampere GA100")
    assert unseen.seen == TYPICAL.seen - {"Ampere GA100"}
    half = {"precision": "fp16", "constants": unseen}
    assert alone("A100", **half) == pytest.approx(alone("MI300X", **half))


@each_row("name", sorted(TYPICAL.seen))
def test_every_name_that_was_seen_can_be_left_out(name):
    without = efficiency("tuned", name)
    assert without.seen == TYPICAL.seen - {name} and replace(without, seen=TYPICAL.seen, without="") != efficiency("tuned")
    assert without.matrix_share == pytest.approx(efficiency("tuned").matrix_share, rel=0.2)


def test_a_model_that_was_never_fitted_has_a_wider_range():
    assert "hdc" not in TYPICAL.seen
    assert alone("A100", "hdc") > alone("A100", "bert-large") * 1.005


def test_a_calibration_narrows_the_range():
    measured = Calibration(
        workload="resnet-50",
        micro_batch_size=64,
        world_size=1,
        compression="dense",
        forward_s=0.05,
        backward_s=0.1,
        optimizer_s=0.001,
        **dict.fromkeys(("allreduce", "direct", "encode", "reduce", "decode"), Line(0.0, 0.0)),
        overlap=True,
        spread=0.03,
        source="made up",
    )
    assert alone("A100", calibration=measured) < alone("A100")


def test_the_range_widens_with_every_doubling_of_the_nodes() -> None:
    sigmas = Sigmas(base=0.1, doubling=0.05)
    sigma = [spread({"compute": 1.0}, sigmas, sigmas.base, nodes=n) for n in (1, 2, 8)]
    assert sigma == pytest.approx([0.1, math.hypot(0.1, 0.05), math.hypot(0.1, 0.15)])


def test_ordinary_software_is_less_certain_than_tuned() -> None:
    assert efficiency("ordinary").sigmas.base > efficiency("tuned").sigmas.base


def several(network: str, level: str = "ordinary", nodes: int = 2, batch: int = 64):
    place = hardware.cluster("V100", 8, nodes, network)
    plan = Strategy.of(world_size=8 * nodes, global_batch_size=8 * nodes * batch, precision="fp16")
    return Predictor(constants=efficiency(level)).step(Workload.named("vgg-16"), place, plan)  # type: ignore[arg-type]


def test_tcp_may_get_all_of_a_fast_ethernet_or_one_flow_of_it():
    fast, ten = hardware.network("100Gb/s"), hardware.network("10Gb/s")
    assert fast.carried and ten.carried is None and hardware.network("30Gb/s").carried
    line, tuned = 0.94 * 12.5e9, efficiency("tuned")
    assert TYPICAL.bandwidth(ten) == 0.94 * 1.25e9 and tuned.bandwidth(fast) == line
    got, off = TYPICAL.bandwidth(fast), math.exp(Z80 * TYPICAL.link_sigma(fast, 0.0))
    assert got * off == pytest.approx(line) and got / off == pytest.approx(0.94 * 10e9 / 8, rel=0.01)
    named = hardware.network("100Gb/s TCP")
    assert TYPICAL.link_sigma(named, 0.0) == pytest.approx(TYPICAL.link_sigma(hardware.network("100Gb/s"), 0.0) / 2)
    for reached in (4.0e9, 6.0e9):  # NVIDIA/nccl issue 450, 100 Gb/s, eight V100 a node
        assert abs(math.log(reached / (named.bandwidth.value * named.carried.value))) < Z80 * TYPICAL.link_sigma(named, 0.0)
    assert (tuned.link_sigma(fast, 0.35), TYPICAL.link_sigma(ten, 0.35)) == (0.35, 0.35)
    assert tuned.link_sigma(hardware.link("PCIe 4.0 x16 via host"), 0.3) > 3 * tuned.link_sigma(hardware.link("PCIe 4"), 0.3)
    speeds = (9, 10, 11, 15, 25, 30, 50, 99, 100, 101, 140, 199, 200, 201)
    got = [TYPICAL.bandwidth(hardware.network(f"{speed}Gb/s")) for speed in speeds]
    assert got == sorted(got) and all(b < 1.7 * a for a, b in pairwise(got[:10]))  # no step in it
    assert [got[7], got[9], got[11]] == pytest.approx([got[8], got[8], got[12]], rel=0.03)
    assert several("100Gb/s").high_s / several("100Gb/s").low_s > 1.2 * several("10Gb/s").high_s / several("10Gb/s").low_s


def test_an_exchange_that_is_hidden_now_widens_the_upper_end_where_a_slower_link_would_show_it():
    slow, quick = several("InfiniBand EDR", "tuned"), several("8x InfiniBand HDR", "tuned")
    assert slow.high_s / slow.step_time_s > quick.high_s / quick.step_time_s


@pytest.mark.parametrize("device", ["TPU v4", "Xeon"])
def test_what_is_no_gpu_has_a_wider_range(device):
    precision = "bf16" if device == "TPU v4" else "fp32"
    plan = Strategy.of(world_size=1, global_batch_size=64, precision=precision)
    prediction = predict(Workload.named("bert-large"), hardware.cluster(device, 1, 1), plan)
    assert prediction.high_s / prediction.low_s > alone("B200", "bert-large")


def test_convolutions_on_ordinary_cores_have_a_wider_range():
    assert alone("V100") > 1.1 * alone("V100", precision="fp16")
    assert alone("V100", "bert-large") == pytest.approx(alone("V100", "bert-large", precision="fp16"))


def test_another_size_of_a_design_that_was_fitted_is_known():
    assert TYPICAL.knows("mpt-70b") and efficiency(without="mpt-7b").knows("mpt-7b") and not TYPICAL.knows("hdc")
