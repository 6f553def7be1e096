"""The predictor as a value: what decides what, what is refused, and that all its answers come from one model."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from each_row import each_row
from paceline.calibration.constants import CATALOGUE, HIGH, LOW, TYPICAL, efficiency
from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.prediction import ORDINARY, Assumption, Calibration, Line, Observation, Prediction, Predictor, fit, predict
from paceline.prediction.passes.compute import RESOURCES
from paceline.strategy import Strategy
from paceline.units import format_seconds, format_seconds_range
from paceline.workload import Workload
from prediction_toys import IDEAL, make_cluster, make_workload

NET, PLACE = make_workload(), make_cluster(2, 2)
CALIBRATION = Calibration(
    workload="toy",
    micro_batch_size=4,
    world_size=4,
    compression="dense",
    forward_s=0.01,
    backward_s=0.02,
    optimizer_s=0.001,
    allreduce=Line(1e-4, 1e-9),
    direct=Line(1e-4, 1e-9),
    encode=Line(0.0, 1e-9),
    reduce=Line(0.0, 1e-9),
    decode=Line(0.0, 1e-9),
    overlap=True,
    spread=0.1,
    source="made up",
)


def strategy(batch: int = 16, **choices: object) -> Strategy:
    return Strategy.of(world_size=4, global_batch_size=batch, **choices)


def corrected(work: float = 1.5, wait: float = 4.0, **knowledge: object) -> Predictor:
    """By four steps that worked and waited so many times as long as predicted."""
    plain = Predictor(**knowledge)  # type: ignore[arg-type]
    seen = []
    for batch in (8, 16, 32, 64):
        p = replace(plain, loader=0.0).step(NET, PLACE, strategy(batch))
        sync = wait * p.exposed_comm_s
        step = work * (p.step_time_s - p.exposed_comm_s) + sync
        seen.append(Observation(workload=NET, cluster=PLACE, strategy=strategy(batch), step_s=step, sync_s=sync))
    return fit(seen, plain)


@pytest.mark.parametrize("network", ["10Gb/s", "25Gb/s", "100Gb/s"])
@pytest.mark.parametrize("micro", [4, 16, 64])
def test_slow_links_lengthen_a_step_by_more_than_fast_ones_shorten_it(micro: int, network: str) -> None:
    """Less of an exchange is hidden the longer it takes, so the range reaches further up than down."""
    place, chosen = cluster("V100", 8, 4, network), Strategy.of(world_size=32, global_batch_size=32 * micro, precision="fp16")
    p = predict(Workload.named("resnet-50"), place, chosen)
    assert p.high_s / p.step_time_s > p.step_time_s / p.low_s > 1


def test_software_decides_the_constants_and_the_constants_the_software() -> None:
    assert Predictor().constants == TYPICAL and Predictor().software == "ordinary"
    assert Predictor(framework="tuned").constants == efficiency("tuned")
    assert Predictor(constants=efficiency("tuned")).software == "tuned"
    assert Predictor(constants=CATALOGUE).typical == TYPICAL and Predictor(constants=IDEAL).software == "ordinary"
    assert Predictor(constants=TYPICAL, framework="ordinary") == ORDINARY


@pytest.mark.parametrize(
    ("knowledge", "message"),
    [
        ({"constants": TYPICAL, "framework": "tuned"}, "constants of ordinary software for tuned software; give one"),
        ({"framework": "tune"}, "tune"),
        ({"loader": -1.0}, "a loader of -1 samples/s"),
        ({"loader": math.nan}, "a loader of nan samples/s"),
        ({"free": frozenset({"netwrok"})}, "did you mean network"),
    ],
)
def test_what_does_not_go_together_is_refused(knowledge: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Predictor(**knowledge)  # type: ignore[arg-type]


def test_the_verb_is_the_predictors_step() -> None:
    assert predict(NET, PLACE, strategy()) == ORDINARY.step(NET, PLACE, strategy())
    ideal = Predictor(constants=IDEAL)
    assert predict(NET, PLACE, strategy(), predictor=ideal) == ideal.step(NET, PLACE, strategy())
    with pytest.raises(UserError, match="4 workers and the cluster 2 devices"):
        predict(NET, make_cluster(1, 2), strategy())


PREDICTORS = {
    "plain": ORDINARY,
    "fed": Predictor(loader=20.0),
    "serial": Predictor(overlap=False, framework="tuned"),
    "three constants": Predictor(constants=(LOW, TYPICAL, HIGH)),
    "calibrated": Predictor(calibration=CALIBRATION),
    "without a resource": ORDINARY.without("network"),
    "corrected": corrected(),
    "corrected, fed": corrected(loader=20.0),
    "corrected, without a resource": corrected().without("compute"),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_many_are_as_one_at_a_time(name: str) -> None:
    predictor = PREDICTORS[name]
    asked = [(PLACE, strategy(batch, sharding=sharding)) for batch in (4, 16, 64) for sharding in ("ddp", "zero3")]
    wrong = (PLACE, Strategy.of(world_size=2, global_batch_size=4))
    steps = predictor.many(NET, [*asked, wrong])
    for index, (place, chosen) in enumerate(asked):
        p = predictor.step(NET, place, chosen)
        assert steps.step_s[index] == pytest.approx(p.step_time_s, rel=1e-9)
        assert steps.memory_bytes[index] == pytest.approx(p.memory_bytes)
        assert steps.fits[index] == p.fits
    assert np.isnan(steps.step_s[-1]) and "2 workers" in steps.refused[len(asked)]


CHOSEN = (strategy(), strategy(sharding="zero3", grad_accum_steps=2), strategy(compression="int8"))


@cache
def chosen_step(name: str, number: int) -> Prediction:
    return PREDICTORS[name].step(NET, PLACE, CHOSEN[number])


@each_row("name", PREDICTORS)
@each_row("resource", RESOURCES)
def test_a_free_resource_is_not_waited_for_and_makes_no_step_longer(name: str, resource: str) -> None:
    predictor = PREDICTORS[name]
    for number, chosen in enumerate(CHOSEN):
        if predictor.uncorrected.calibration is not None and chosen.gradient_exchange.compression.name != "dense":
            continue
        whole = chosen_step(name, number)
        free = predictor.without(resource).step(NET, PLACE, chosen)  # type: ignore[arg-type]
        assert free.step_time_s <= whole.step_time_s * (1 + 1e-9)
        assert free.exposed[resource] == pytest.approx(0.0, abs=1e-12)
        assert sum(free.exposed.values()) == pytest.approx(free.step_time_s)
        assert free.low_s <= free.step_time_s * (1 + 1e-9) and free.step_time_s <= free.high_s * (1 + 1e-9)
        assert any(a.kind == "free resource" and resource in a for a in free.assumptions)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 4)
@given(st.floats(0.5, 3.0), st.floats(0.3, 6.0))
def test_no_correction_makes_a_step_longer_without_a_resource(work: float, wait: float) -> None:
    predictor = corrected(work, wait)
    for sharding in ("ddp", "zero3"):
        whole = predictor.step(NET, PLACE, strategy(sharding=sharding))
        for resource in RESOURCES:
            free = predictor.without(resource).step(NET, PLACE, strategy(sharding=sharding))
            assert free.step_time_s <= whole.step_time_s * (1 + 1e-9), resource


@pytest.mark.everyday("300.0", "420.0")
@pytest.mark.parametrize("loader", [1.0, 100.0, 300.0, 380.0, 420.0, 460.0, 1e6])
def test_a_corrected_and_fed_step_lies_in_its_range(loader: float) -> None:
    """A loader that is slower than the model's step and faster than the corrected one binds neither."""
    p = corrected(work=3.0, wait=1.0, loader=loader).step(NET, PLACE, strategy())
    assert p.low_s <= p.step_time_s <= p.high_s and p.step_time_s >= 16 / loader


def test_without_everything_a_step_takes_no_time() -> None:
    nothing = ORDINARY
    for resource in RESOURCES:
        nothing = nothing.without(resource)
    p = nothing.step(NET, PLACE, strategy())
    assert (p.step_time_s, p.low_s, p.high_s, p.samples_per_s) == (0.0, 0.0, 0.0, math.inf)


def test_without_keeps_what_else_the_predictor_knows() -> None:
    serial = Predictor(overlap=False, constants=IDEAL)
    p, free = (x.step(NET, PLACE, strategy()) for x in (serial, serial.without("network")))
    waits = p.exposed["network"]
    assert waits > 0 and p.step_time_s - free.step_time_s == pytest.approx(waits), "nothing is hidden where nothing overlaps"


def test_an_assumption_is_its_text_with_a_kind_and_a_source() -> None:
    p = predict(Workload.named("resnet-50"), cluster("V100", 8, 2, "10Gb/s"), Strategy.of(world_size=16, global_batch_size=64))
    kinds = {a.kind for a in p.assumptions}
    assert {"uncalibrated", "device", "constants", "links", "overlap", "optimizer", "held-out error"} <= kinds
    assert all(a.source for a in p.assumptions if a.kind in ("links", "held-out error"))
    again = pickle.loads(pickle.dumps(p.assumptions[0]))
    assert (again, again.kind, again.source) == (p.assumptions[0], p.assumptions[0].kind, p.assumptions[0].source)
    data = p.to_json()
    assert data["assumptions"] == tuple(p.assumptions) and {type(text) for text in data["assumptions"]} == {str}
    back = Prediction.from_json(data)
    assert {a.kind for a in back.assumptions} == {"read back"} and back == replace(p, timeline=())
    assert isinstance(back.assumptions[0], Assumption)


def test_a_correction_and_a_calibration_take_their_assumption_away() -> None:
    assert "uncalibrated" in {a.kind for a in predict(NET, PLACE, strategy()).assumptions}
    for predictor, kind in ((PREDICTORS["corrected"], "corrected"), (PREDICTORS["calibrated"], "calibrated")):
        kinds = [a.kind for a in predictor.step(NET, PLACE, strategy()).assumptions]
        assert "uncalibrated" not in kinds and kind in kinds


def test_equal_predictors_are_one_key() -> None:
    assert hash(Predictor()) == hash(Predictor(constants=efficiency("ordinary"))) == hash(ORDINARY)
    calibration = Calibration.from_json(CALIBRATION.to_json())
    distinct = [
        Predictor(),
        Predictor(framework="tuned"),
        Predictor(loader=5.0),
        Predictor(constants=(LOW, TYPICAL, HIGH)),
        Predictor(calibration=calibration),
        fit([]),
        Predictor().without("network"),
    ]
    assert len({*distinct, replace(distinct[4], calibration=CALIBRATION), replace(distinct[3])}) == len(distinct)


@pytest.mark.parametrize(
    ("cluster", "choices", "line"),
    [
        (
            "2x8 A100",
            {"compression": "terngrad"},
            "'bert-large' on 2 x 8 A100 SXM 80GB: batch 64, bf16, adam, terngrad, sharded",
        ),
        ("A100", {"precision": "bf16"}, "'bert-large' on 1 A100 SXM 80GB: batch 64, bf16, adam"),
        ("8 A100", {"sharding": "zero3"}, "'bert-large' on 8 A100 SXM 80GB: batch 64, bf16, adam, zero3"),
    ],
)
def test_a_prediction_shows_itself_in_one_line(cluster: str, choices: dict[str, str], line: str) -> None:
    prediction = paceline.predict("bert-large", cluster, network="100Gb/s", global_batch_size=64, **choices)
    span = format_seconds_range(prediction.low_s, prediction.high_s, prediction.step_time_s)
    assert repr(prediction) == f"Prediction({line}, {format_seconds(prediction.step_time_s)} a step ({span}))"
    read = Prediction.from_json(prediction.to_json())
    assert repr(read) == repr(prediction)


def test_the_kernel_of_attention_is_a_choice() -> None:
    workload, strategy = Workload.named("llama-3-8b", 16384), Strategy.of(global_batch_size=1, precision="bf16")
    hopper, ampere = paceline.Cluster.named("H100"), paceline.Cluster.named("A100")
    usual, sdpa, fa2, fa3 = (
        Predictor(attention=name).step(workload, hopper, strategy).step_time_s for name in ("", "sdpa", "fa2", "fa3")
    )
    assert fa2 > usual == sdpa > fa3  # ordinary software
    tuned, cudnn = (Predictor(framework="tuned", attention=name).step(workload, hopper, strategy) for name in ("", "cudnn"))
    assert tuned.step_time_s == cudnn.step_time_s
    assert any("Attention runs as cudnn" in text for text in tuned.assumptions)
    plain = Predictor().step(workload, ampere, strategy)
    assert plain.step_time_s == Predictor(attention="fa2").step(workload, ampere, strategy).step_time_s
    assert not any("Attention runs" in text for text in plain.assumptions)
    with pytest.raises(UserError, match="attention kernel fa3 does not run on A100 SXM 80GB"):
        Predictor(attention="fa3").step(workload, ampere, strategy)
    with pytest.raises(UserError, match="attention kernel fa2 computes in 16 bits, not in fp32"):
        Predictor(attention="fa2").step(workload, ampere, strategy.changed(precision="fp32"))
    with pytest.raises(UserError, match="unknown attention kernel 'flash'"):
        Predictor(attention="flash")
    with pytest.raises(UserError, match="attention=3; give one of sdpa, fa2, cudnn, fa3"):
        Predictor(attention=3)  # type: ignore[arg-type]


def test_eager_attention_writes_its_scores() -> None:
    workload, strategy = Workload.named("gpt2-xl"), Strategy.of(global_batch_size=8, precision="bf16")
    cluster = paceline.Cluster.named("A100")
    usual, written = (Predictor(attention=name).step(workload, cluster, strategy) for name in ("", "eager"))
    assert (usual.attention, written.attention) == ("fa2", "eager")
    assert Predictor().step(Workload.named("resnet-50"), cluster, strategy).attention == ""
    assert written.step_time_s > usual.step_time_s and written.memory["activations"] > usual.memory["activations"]
    named = Workload.named("gpt2-xl", fused_attention=False)
    apart = Predictor().step(named, cluster, strategy)
    assert (apart.step_time_s, apart.memory) == (written.step_time_s, written.memory)
    assert any("Attention is not fused" in text for text in written.assumptions)
    many = Predictor(attention="eager").many(workload, [(cluster, strategy)])
    assert many.step_s[0] == pytest.approx(written.step_time_s) and many.memory_bytes[0] == pytest.approx(written.memory_bytes)
    older, newer = (Predictor(framework="tuned", year=year).step(workload, cluster, strategy) for year in (2021.4, 2021.5))
    assert older.memory["activations"] > newer.memory["activations"] and older.step_time_s > newer.step_time_s
    with pytest.raises(UserError, match="attention kernel eager: resnet-50 has no attention"):
        Predictor(attention="eager").step(Workload.named("resnet-50"), cluster, strategy)


def test_where_a_kernel_does_not_run_a_candidate_is_left_out_and_not_all() -> None:
    workload, fa3 = Workload.named("gpt2"), Predictor(attention="fa3")
    bf16, fp32 = (Strategy.of(global_batch_size=8, precision=p) for p in ("bf16", "fp32"))
    ampere, hopper = paceline.Cluster.named("A100"), paceline.Cluster.named("H100")
    steps = fa3.many(workload, [(ampere, bf16), (hopper, bf16), (hopper, fp32)])
    assert steps.step_s[1] == pytest.approx(fa3.step(workload, hopper, bf16).step_time_s)
    assert steps.refused == {
        0: "attention kernel fa3 does not run on A100 SXM 80GB",
        2: "attention kernel fa3 computes in 16 bits, not in fp32",
    }
    with pytest.raises(UserError, match="fa3 does not run on A100"):
        fa3.many(workload, [(ampere, bf16), (ampere, fp32)])


def test_compiling_fuses_element_wise_kernels_and_nothing_else() -> None:
    net, on = Workload.named("gpt2"), cluster("A100", 1, 1)
    chosen = Strategy.of(world_size=1, global_batch_size=8, precision="bf16")
    plain, fused = (Predictor(compile=on_).step(net, on, chosen) for on_ in (False, True))
    assert fused.step_time_s < plain.step_time_s
    assert {name for name, size in plain.memory.items() if fused.memory[name] != size} == {"activations"}
    assert fused.memory["activations"] < plain.memory["activations"]  # pointwise kernels save their inputs once
    assert fused.exposed["compute"] == plain.exposed["compute"]
    kept = efficiency("tuned").kept_share
    assert kept * plain.exposed["memory bandwidth"] < fused.exposed["memory bandwidth"] < plain.exposed["memory bandwidth"]
    assert any(f"Compiled: {kept:.0%} of element-wise bytes and launches stay" in line for line in fused.assumptions)
    assert Predictor(framework="tuned", compile=True) == replace(Predictor(framework="tuned"), compile=True)
    tuned = Predictor(framework="tuned", compile=True).constants
    assert replace(tuned, framework=efficiency("tuned").framework) == efficiency("tuned")  # a compiler saves less
    with pytest.raises(UserError, match="compile='yes'; give True, False or None"):
        Predictor(compile="yes")  # type: ignore[arg-type]
