"""A whole step: identities, order of events, ranges, memory, calibration, errors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.calibration.constants import TYPICAL
from paceline.errors import UserError
from paceline.hardware import cluster as named_cluster
from paceline.prediction import Line, Prediction, Predictor, predict
from paceline.prediction.answer import step_range
from paceline.prediction.exchange.exchange_seconds import ExchangeCost, ExchangeStage, codec_seconds
from paceline.prediction.passes.compute import RESOURCES
from paceline.prediction.step.costs import slowest
from paceline.prediction.step.timeline import StepDurations, _placed_stages, schedule_step
from paceline.strategy import COMPRESSIONS, SHARDINGS, Strategy
from paceline.workload import Workload
from prediction_toys import FAST_HOST, IDEAL, fact, make_calibration, make_cluster, make_workload, strategy
from strategy_toys import exchanges_of
from traced_layers import launched, work

TIGHT = 1e-12  # seconds that floating point may lose in sums of a step


COMBINATIONS = st.sampled_from(
    [(c.name, exchange, "ddp") for c in COMPRESSIONS.values() for exchange in exchanges_of(c)]
    + [("dense", "allreduce", zero) for zero in SHARDINGS] * 8
)
STEPS = st.tuples(
    st.integers(1, 3),
    st.integers(1, 4),
    COMBINATIONS,
    st.floats(1e7, 1e11),
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
)
UNEVEN = replace(TYPICAL, overlap_penalty=0.2, straggler_spread=0.02)


def step_of(drawn, constants=None, **knowledge) -> Prediction:
    per_node, nodes, (compression, exchange, sharding), network, layers, times, recompute = drawn
    return Predictor(constants=(constants,) * 3 if constants else None, **knowledge).step(
        make_workload(layers, blocks=2),
        make_cluster(per_node, nodes, network=network),
        strategy(
            per_node * nodes,
            micro=12,
            compression=compression,
            exchange=exchange,
            sharding=sharding,
            grad_accum_steps=times,
            recompute=recompute,
            bucket_bytes=4_000_000,
        ),
    )


@given(STEPS)
def test_identities(drawn):
    hold_together(step_of(drawn))
    hold_together(step_of(drawn, UNEVEN, loader=1000))


def hold_together(p: Prediction) -> None:
    assert p.step_time_s == pytest.approx(p.compute_s + p.exposed_comm_s, abs=TIGHT, rel=1e-12)
    assert p.step_time_s == pytest.approx(max(event.end_s for event in p.timeline), rel=1e-12)
    assert p.low_s <= p.step_time_s <= p.high_s
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s, rel=1e-9)
    assert set(p.exposed) == set(RESOURCES)
    assert p.exposed[p.bottleneck] == max(p.exposed.values())
    assert sum(p.memory.values()) == p.memory_bytes
    assert p.compression_ratio >= 1
    assert p.exposed_comm_s <= p.comm_s + p.codec_s + TIGHT


@given(STEPS, st.sampled_from([None, UNEVEN]))
def test_events_of_a_lane_never_overlap(drawn, efficiency):
    p = step_of(drawn, efficiency)
    for lane in ("compute", "codec", "network"):
        events = sorted((e for e in p.timeline if e.lane == lane), key=lambda e: e.start_s)
        assert all(a.end_s <= b.start_s + TIGHT for a, b in itertools.pairwise(events))
    for lane, seconds in (("compute", p.compute_s), ("codec", p.codec_s), ("network", p.comm_s)):
        assert sum(e.duration_s for e in p.timeline if e.lane == lane) == pytest.approx(seconds, abs=TIGHT, rel=1e-9)


@given(st.integers(1, 6), COMBINATIONS)
def test_an_exchange_waits_for_its_gradients(layers, how):
    if how[2] != "ddp":
        return
    # Each layer's 4.41 MB closes the first bucket and fills a group; the 25 MiB of the second hold the rest.
    toy = make_workload(layers, width=1050)
    p = predict(toy, make_cluster(2, 2), strategy(4, compression=how[0], exchange=how[1]))
    ends = {e.name: e.end_s for e in p.timeline}
    first = [e for e in p.timeline if e.name.endswith("bucket 0")]
    assert min(e.start_s for e in first) >= ends[f"backward fc{layers - 1}"] - TIGHT
    if layers > 1:
        second = [e for e in p.timeline if e.name.endswith("bucket 1")]
        assert min(e.start_s for e in second) >= max(ends["backward fc0"], max(e.end_s for e in first)) - TIGHT
    assert p.timeline[-1].name == "optimizer"
    assert p.timeline[-1].start_s >= max(e.end_s for e in p.timeline[:-1]) - TIGHT


@given(STEPS, st.floats(1, 100))
def test_a_faster_network_never_slows_the_step(drawn, factor):
    per_node, nodes, how, network, *rest = drawn
    with pytest.MonkeyPatch.context() as patch:  # the model's own range: tails of held-out runs stretch each by its width
        patch.setattr(step_range, "held_out", lambda *_: None)
        fast, slow = step_of((per_node, nodes, how, network * factor, *rest)), step_of(drawn)
    assert fast.step_time_s <= slow.step_time_s + TIGHT
    assert fast.high_s <= slow.high_s + TIGHT


DURATIONS = st.floats(0, 10)


@st.composite
def durations(draw):
    """The pieces of a step of FSDP, or of DDP, with two micro steps."""
    n = draw(st.integers(1, 5))
    column = st.lists(DURATIONS, min_size=n, max_size=n)
    forward, backward = draw(column), draw(column)
    backs = draw(st.sampled_from(["zero2", "zero3", ""]))
    return {
        "micro_steps": draw(st.integers(1, 3)),
        "forward_units": forward,
        "backward_units": backward,
        "exchange": draw(column),
        "gather_forward": draw(column) if backs else [],
        "gather_backward": draw(column) if backs == "zero3" else [],
        "after": draw(DURATIONS),
        "update": draw(DURATIONS),
        "feed": draw(st.floats(0, 100)),
        "penalty": draw(st.floats(0, 1)),
    }


def end_of(d, overlap) -> float:
    forward, backward = sum(d["forward_units"]), sum(d["backward_units"])
    ready = list(itertools.accumulate(reversed(d["backward_units"])))
    return schedule_step(
        StepDurations(forward=forward, backward=backward, ready=ready, **d), overlap, bool(d["gather_forward"])
    ).step


@settings(max_examples=3 * settings.default.max_examples)
@given(durations(), st.data())
def test_no_cost_that_shrinks_lengthens_the_step(before, data):
    name = data.draw(st.sampled_from([k for k in before if k not in ("micro_steps", "penalty") and before[k] != []]))
    factor, overlap = data.draw(st.floats(0, 1)), data.draw(st.booleans())
    old = before[name]
    if isinstance(old, list):
        at = data.draw(st.integers(0, len(old) - 1))
        less = {**before, name: [x * (factor if i == at else 1) for i, x in enumerate(old)]}
    else:
        less = {**before, name: old * factor}
    assert end_of(less, overlap) <= end_of(before, overlap) + 1e-9
    assert end_of(before, True) <= end_of(before, False) + 1e-9


@given(durations())
def test_everything_in_turn_without_overlap(d):
    times = d["micro_steps"]
    compute = times * (sum(d["forward_units"]) + sum(d["backward_units"]))
    moved = sum(d["exchange"]) + sum(d["gather_forward"]) + sum(d["gather_backward"])
    serial = compute + moved * (times if d["gather_forward"] else 1) + d["update"] + d["after"]
    assert end_of(d, False) == pytest.approx(max(serial, d["feed"]))


def test_fsdp_hides_a_gather_behind_the_unit_before_it():
    # Two units: gather 3, 3; forward 4, 4; backward 5, 5; scatter 2, 2. Forward: 3 + max(4, 3) + 4 = 11. Backward, zero2:
    # 5 and 5, of which the first scatter hides; the second is waited for. zero3 waits 3 for its first gather too.
    d = {
        "micro_steps": 1,
        "forward_units": [4, 4],
        "backward_units": [5, 5],
        "exchange": [2, 2],
        "gather_forward": [3, 3],
        "gather_backward": [],
        "after": 0,
        "update": 1,
        "feed": 0,
    }
    assert end_of(d, True) == 11 + 10 + 2 + 1
    assert end_of({**d, "gather_backward": [3, 3]}, True) == 11 + 3 + 10 + 2 + 1
    assert end_of({**d, "micro_steps": 2}, True) == 2 * (11 + 10 + 2) + 1


def test_micro_steps_exchange_once_under_ddp_and_each_time_under_fsdp():
    place, net = make_cluster(1, 4), make_workload()
    single = predict(net, place, strategy(4, micro=4))
    two = predict(net, place, strategy(4, micro=8, grad_accum_steps=2))
    assert two.step_time_s == pytest.approx(2 * single.compute_s - single.timeline[-1].duration_s + single.exposed_comm_s)
    assert two.wire_bytes_per_device == single.wire_bytes_per_device
    first, second = (predict(net, place, strategy(4, micro=4 * n, grad_accum_steps=n, sharding="zero3")) for n in (1, 2))
    assert second.wire_bytes_per_device == 2 * first.wire_bytes_per_device
    assert second.comm_s == pytest.approx(2 * first.comm_s)


def test_recomputation_runs_the_blocks_again_and_keeps_their_inputs():
    net, place = make_workload(6, blocks=2), make_cluster(1, 1)
    plain, again = (predict(net, place, strategy(1, micro=8, recompute=x)) for x in (False, True))
    forward = sum(e.duration_s for e in plain.timeline if e.name.startswith("forward"))
    assert again.step_time_s == pytest.approx(plain.step_time_s + forward / 2)  # a block's last layer kept only its input
    events = [e.name for e in again.timeline if e.name.startswith("recompute")]
    assert events == ["recompute b.2", "recompute b.1", "recompute b.0"]
    assert plain.memory["activations"] == 8 * 6 * 4000
    assert again.memory["activations"] == 8 * (3 * 4000 + 2 * 4000)  # three inputs, and one block of two layers


def test_stragglers_grow_with_the_number_of_workers():
    # The expected largest of 2, 10 and 100 standard normal values: 0.564, 1.539 and 2.508 (Harter 1961, table 1).
    uneven = replace(IDEAL, straggler_spread=0.01)
    for workers, largest in ((2, 0.564), (10, 1.539), (100, 2.508)):
        assert slowest(workers, uneven) - 1 == pytest.approx(0.01 * largest, rel=0.05)
    p = Predictor(constants=(uneven,) * 3).step(make_workload(), make_cluster(1, 4), strategy(4))
    even = Predictor(constants=(IDEAL,) * 3).step(make_workload(), make_cluster(1, 4), strategy(4))
    assert p.exposed["stragglers"] > 0 == even.exposed["stragglers"]
    assert p.step_time_s > even.step_time_s


def test_a_slow_loader_sets_the_step():
    free = predict(make_workload(), make_cluster(1, 1), strategy(1, micro=8))
    p = Predictor(loader=8).step(make_workload(), make_cluster(1, 1), strategy(1, micro=8))
    assert p.step_time_s == 1 and p.bottleneck == "input pipeline"
    assert p.exposed["input pipeline"] == pytest.approx(1 - free.step_time_s)
    assert any("8 samples/s" in a for a in p.assumptions) and any("its speed is unknown" in a for a in free.assumptions)
    fast = Predictor(loader=1e9).step(make_workload(), make_cluster(1, 1), strategy(1, micro=8))
    assert fast.step_time_s == free.step_time_s
    with pytest.raises(UserError, match="a loader of -1 samples/s"):
        Predictor(loader=-1).step(make_workload(), make_cluster(1, 1), strategy(1))


def test_one_worker_exchanges_nothing():
    for compression in ("dense", "terngrad"):
        p = predict(make_workload(), make_cluster(1, 1), strategy(1, compression=compression))
        assert (p.comm_s, p.codec_s, p.exposed_comm_s, p.wire_bytes_per_device) == (0, 0, 0, 0)
        assert p.compression_ratio == 1
        assert p.step_time_s == p.compute_s
        assert "nothing is exchanged" in p.explain()


def test_without_overlap_the_exchange_starts_after_the_backward_pass():
    serial = Predictor(overlap=False).step(make_workload(), make_cluster(1, 4), strategy(4))
    overlapped = predict(make_workload(), make_cluster(1, 4), strategy(4))
    assert serial.exposed_comm_s == pytest.approx(serial.comm_s)
    assert overlapped.step_time_s < serial.step_time_s


def test_wire_bytes_and_ratio_are_those_of_the_strategy():
    net, n = Workload.named("lenet5"), 4
    plan = strategy(n, compression="terngrad")
    p = predict(net, make_cluster(2, 2), plan)
    assert p.wire_bytes_per_device == plan.wire_bytes_per_device(net.parameters, net.ready_order)
    dense = strategy(n, exchange="sharded").wire_bytes_per_device(net.parameters, net.ready_order)
    assert p.compression_ratio == pytest.approx(dense / p.wire_bytes_per_device)


def test_sixteen_bits_halve_activations_and_copy_the_weights():
    toy = make_cluster(1, 1)
    both = replace(toy, device=replace(toy.device, peak_flops={name: fact(1e13) for name in ("fp32", "bf16")}))
    full, half = (predict(make_workload(), both, strategy(1, precision=name)).memory for name in ("fp32", "bf16"))
    assert half["activations"] == full["activations"] / 2
    assert half["weights"] == full["weights"] * 1.5


def test_codec_buffers_hold_messages_and_the_sum():
    # One group of one chunk: two workers push fp32 halves (500032 and 499968 elements) and pull them, a header each.
    p = predict(make_workload(1), make_cluster(1, 2), strategy(2, exchange="sharded"))
    assert p.memory["codec buffers"] == 2 * (4_000_000 + 2 * 32) + 4_000_000
    # Of the four chunks of 4e6 elements two are on their way; INCEPTIONN's have room for 34 bits an element.
    plan = strategy(2, compression="inceptionn", exchange="sharded")
    p = predict(make_workload(4), make_cluster(1, 2), plan)
    kept = sum(plan.description.dense(make_workload(4).parameters)[n] == "last layer" for n in ["fc3.weight"])
    assert kept == 1
    worst = 2 * (3e6 * 34 / 8 + 1e6 * 4)
    assert p.memory["codec buffers"] == pytest.approx(4 * 4e6 + worst / 2, rel=1e-3)


def test_error_feedback_keeps_a_residual():
    for name, kept in (("sign", 4), ("topk", 4), ("inceptionn-scaled", 4), ("powersgd", 4), ("int8", 0), ("inceptionn", 0)):
        p = predict(make_workload(), make_cluster(1, 2), strategy(2, compression=name))
        again = 4 * 1_000_000 if name == "powersgd" else 0  # it is not fused: all groups but the last have a second copy
        assert p.memory["error feedback"] == kept * 4_000_000 + again, name
    # Of 12 layers one fills DDP's first bucket and seven the next, which are fused: groups of 8 and of 4.
    p = predict(make_workload(12), make_cluster(1, 2), strategy(2, compression="sign"))
    assert p.memory["error feedback"] == 4 * 12_000_000 + 4 * 8_000_000
    alone = predict(make_workload(), make_cluster(1, 1), strategy(1, compression="sign"))
    assert alone.memory["error feedback"] == 0
    # Of all units of a sharded model: every owner's rows, and those from before the step.
    shared = predict(
        make_workload(12), make_cluster(1, 2), strategy(2, compression="sign", exchange="sharded", sharding="zero3")
    )
    assert shared.memory["error feedback"] == 2 * 4 * 12_000_000


def test_codecs_run_at_memory_bandwidth():
    # bf16 moves 6 bytes an element to encode and 6 to decode, at 500 GB/s.
    levels = (IDEAL, IDEAL, IDEAL)
    p = Predictor(constants=levels).step(make_workload(1), make_cluster(1, 2), strategy(2, compression="bf16"))
    assert p.codec_s == pytest.approx(12e6 / 5e11)


def test_a_cpus_codec_is_bound_by_its_cores():
    toy = make_cluster(1, 2)
    cpu = replace(toy, device=replace(toy.device, kind="cpu"))
    rate = COMPRESSIONS["terngrad"].cpu_rate.encode.value
    for cores in (1, 4):
        constants = replace(IDEAL, codec_cores=cores)
        seconds = codec_seconds(COMPRESSIONS["terngrad"], "encode", 10**6, cpu.device, constants)
        assert seconds == pytest.approx(max(4e6 / (rate * cores), 8.25e6 / 5e11))
        assert codec_seconds(COMPRESSIONS["terngrad"], "encode", 10**6, toy.device, constants) == pytest.approx(8.25e6 / 5e11)


def stages(codec: list[float], network: list[float]) -> tuple[ExchangeStage, ...]:
    """Encode, push, reduce, pull, decode."""
    names = ("encode", "push", "reduce", "pull", "decode")
    seconds = [codec[0], network[0], codec[1], network[1], codec[2]]
    return tuple(
        ExchangeStage(n, "network" if n in ("push", "pull") else "codec", s, "network" if n in ("push", "pull") else "codec")
        for n, s in zip(names, seconds, strict=True)
    )


COSTS = st.lists(st.floats(0, 10), min_size=3, max_size=3), st.lists(st.floats(0, 10), min_size=2, max_size=2)


@given(*COSTS, st.integers(1, 50))
def test_a_pipeline_takes_the_slower_side_and_the_first_chunk(codec, network, chunks):
    cost = ExchangeCost((), stages(codec, network), (), 1 / chunks)
    k, w = sum(codec), sum(network)
    assert cost.seconds == pytest.approx(max(k, w) + min(k, w) / chunks)
    assert (cost.busy("codec"), cost.busy("network")) == (pytest.approx(k), pytest.approx(w))


@given(*COSTS, st.integers(1, 50), st.integers(0, 4), st.floats(0, 1))
def test_a_cheaper_stage_never_slows_an_exchange(codec, network, chunks, which, factor):
    before = stages(codec, network)
    after = tuple(replace(x, seconds=x.seconds * (factor if i == which else 1)) for i, x in enumerate(before))
    slow, fast = (ExchangeCost((), x, (), 1 / chunks).seconds for x in (before, after))
    assert fast <= slow + TIGHT


@given(*COSTS, st.integers(1, 50))
def test_bars_of_a_pipeline_fit_into_its_time(codec, network, chunks):
    cost = ExchangeCost((), stages(codec, network), (), 1 / chunks)
    bars = [(stage.lane, at, at + stage.seconds) for stage, at in _placed_stages(1.0, cost)]
    assert all(start >= 1 - 1e-9 and end <= 1 + cost.seconds + 1e-9 for _, start, end in bars)
    for lane in ("codec", "network"):
        spans = sorted((start, end) for own, start, end in bars if own == lane and end > start + 1e-9)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))


def test_the_range_covers_what_the_gradients_decide():
    plan, net, place = strategy(4, compression="inceptionn", exchange="ring"), Workload.named("alexnet"), make_cluster(1, 4)
    p = predict(net, place, plan)
    assert any("depends on the gradients" in a and "Table III" in a for a in p.assumptions)
    assert "payload" in " ".join(p.explain().split("Range:")[1].split())
    for ratio in (5.6, 8, 11.6):
        assert p.low_s <= predict(net, place, plan.changed(options={"ratio": ratio})).step_time_s <= p.high_s
    levels = (IDEAL, IDEAL, IDEAL)
    p = Predictor(constants=levels).step(net, place, plan)
    ends = [Predictor(constants=levels).step(net, place, plan.changed(options={"ratio": r})).step_time_s for r in (11.6, 5.6)]
    assert (p.low_s, p.high_s) == (pytest.approx(ends[0]), pytest.approx(ends[1]))


def test_the_cluster_says_how_many_ranks_a_node_has():
    given, filled = (strategy(8, compression="int8", exchange="hierarchical", ranks_per_node=r) for r in (4, 1))
    place = make_cluster(4, 2)
    assert predict(make_workload(), place, given) == predict(make_workload(), place, filled)
    assert predict(make_workload(), place, filled).strategy["ranks_per_node"] == 4
    flat = predict(make_workload(), place, strategy(8, compression="int8", exchange="sharded"))
    assert predict(make_workload(), place, filled).comm_s < flat.comm_s


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_pair_is_predicted_and_explained(compression):
    net = Workload.named("resnet-50")
    for exchange in exchanges_of(COMPRESSIONS[compression]):
        for device in ("V100", "Xeon"):
            p = predict(net, named_cluster(device, 4, 2, "10Gb/s"), strategy(8, compression=compression, exchange=exchange))
            assert p.low_s <= p.step_time_s <= p.high_s
            assert p.wire_bytes_per_device > 0 and p.compression_ratio >= 1
            assert max(map(len, p.explain().splitlines())) <= 80


def test_what_does_not_fit_is_predicted_and_said():
    p = predict(make_workload(), make_cluster(1, 1, memory=2**20), strategy(1))
    assert not p.fits
    assert p.step_time_s > 0 and p.missing_bytes == p.memory_bytes - 2**20 > p.memory["context"]
    assert p.explain().startswith("DOES NOT FIT: ") and p.to_json()["missing_bytes"] == p.missing_bytes
    roomy = predict(make_workload(), make_cluster(1, 1), strategy(1))
    assert roomy.fits and roomy.missing_bytes == 0 and not roomy.headline
    assert any("Does not fit" in a and "GiB are missing" in a for a in p.assumptions)


def test_a_cpu_keeps_no_memory_back():
    toy = make_cluster(1, 1)
    host = replace(toy, device=replace(toy.device, kind="cpu"))
    assert not {"context", "communicators", "fragments"} & set(predict(make_workload(), host, strategy(1)).memory)


def test_calibration_reproduces_what_was_measured():
    calibration = make_calibration()
    plan = strategy(4, compression="terngrad")
    p = Predictor(calibration=calibration).step(make_workload(), make_cluster(4, 1), plan)
    assert p.compute_s == pytest.approx(0.038)
    assert sum(e.duration_s for e in p.timeline if e.name.startswith("forward")) == pytest.approx(0.010)
    assert p.exposed_comm_s == pytest.approx(p.comm_s + p.codec_s)
    assert (p.low_s, p.high_s) == (pytest.approx(p.step_time_s / 1.1), pytest.approx(1.1 * p.step_time_s))
    (group,) = plan.groups(make_workload().parameters, make_workload().ready_order)
    scales, push, pull = group.traffic.phases
    assert group.traffic.chunks == 3  # two of 3e6 ternary elements, one of 1e6 dense ones
    lines = [3 * 2e-4 + 2e-9 * max(f.sent(r) for r in range(4)) for f in (push, pull)]
    assert p.comm_s == pytest.approx(sum(lines) + calibration.allreduce(max(scales.sent(r) for r in range(4))))
    assert "spread" in p.explain()


def test_calibrated_codec_follows_elements():
    calibration = make_calibration(encode=Line(0, 1e-9), reduce=Line(0, 0), decode=Line(0, 0))
    p = Predictor(calibration=calibration).step(make_workload(), make_cluster(4, 1), strategy(4, compression="terngrad"))
    assert p.codec_s == pytest.approx(4e6 * 1e-9)


def test_calibrated_sum_follows_the_own_shard_of_every_worker():
    calibration = make_calibration(compression="dense", encode=Line(0, 0), reduce=Line(0, 1e-9), decode=Line(0, 0))
    p = Predictor(calibration=calibration).step(make_workload(1), make_cluster(4, 1), strategy(4, exchange="sharded"))
    assert p.codec_s == pytest.approx(4 * 250_048 * 1e-9)  # a quarter of 1e6 elements in blocks of 64


def test_calibration_scales_with_the_micro_batch_and_says_so():
    p = Predictor(calibration=make_calibration()).step(
        make_workload(), make_cluster(4, 1), strategy(4, micro=8, compression="terngrad")
    )
    assert p.compute_s == pytest.approx(2 * 0.035 + 0.003)
    assert any("measured at 4, predicted at 8" in a for a in p.assumptions)


@pytest.mark.parametrize(("changes", "word"), [({"workload": "other"}, "workload"), ({"compression": "dense"}, "compression")])
def test_a_calibration_of_something_else_is_an_error(changes, word):
    with pytest.raises(UserError, match=f"calibration is of {word}"):
        Predictor(calibration=make_calibration(**changes)).step(
            make_workload(), make_cluster(4, 1), strategy(4, compression="terngrad")
        )


def test_a_calibrated_pipeline_needs_resources_of_its_own():
    plan = strategy(4, compression="terngrad")
    apart, shared = (
        Predictor(calibration=make_calibration(overlap=x)).step(make_workload(), make_cluster(4, 1), plan)
        for x in (True, False)
    )
    assert shared.exposed_comm_s == pytest.approx(shared.comm_s + shared.codec_s)
    serial = Predictor(calibration=make_calibration(overlap=True), overlap=False).step(
        make_workload(), make_cluster(4, 1), plan
    )
    assert serial.exposed_comm_s < serial.comm_s + serial.codec_s
    assert apart.step_time_s <= serial.step_time_s + TIGHT < shared.step_time_s


def test_a_measured_ratio_narrows_the_range():
    plan = strategy(4, compression="inceptionn")
    wide, known = (
        Predictor(calibration=make_calibration(compression="inceptionn", ratio=r)).step(
            make_workload(), make_cluster(1, 4), plan
        )
        for r in (0.0, 8.0)
    )
    assert known.high_s == pytest.approx(1.1 * known.step_time_s) and wide.high_s > 1.1 * wide.step_time_s
    given = predict(make_workload(), make_cluster(1, 4), strategy(4, compression="inceptionn", options={"ratio": 8}))
    assert given.wire_bytes_per_device == known.wire_bytes_per_device
    assert known.strategy == {**plan.to_json(), "optimizer": "momentum"}


def test_wrong_number_of_workers_is_an_error():
    with pytest.raises(UserError, match="4 workers and the cluster 2"):
        predict(make_workload(), make_cluster(2, 1), strategy(4))


def test_precision_the_device_lacks_is_an_error():
    with pytest.raises(UserError, match="precision for toy"):
        predict(make_workload(), make_cluster(1, 1), strategy(1, precision="bf16"))


def test_512_workers_are_quick():
    """Sixteen times the workers: nowhere near their square in time."""
    import time

    def seconds(nodes: int) -> float:
        start = time.process_time()
        for exchange in exchanges_of(COMPRESSIONS["terngrad"]):
            plan = strategy(4 * nodes, compression="terngrad", exchange=exchange)
            predict(Workload.named("resnet-50"), named_cluster("P100", 4, nodes, "1Gb/s"), plan)
        return time.process_time() - start

    seconds(4)  # what is remembered of the network
    small, large = (min(seconds(nodes) for _ in range(2)) for nodes in (8, 128))
    assert large < 16 * small


def test_layers_are_worked_out_anew_where_an_end_of_the_range_has_other_kernels():
    """What is scaled from the typical seconds is what would be worked out."""
    net, place = Workload.named("resnet-50"), named_cluster("V100", 4, 2, "10Gb/s")
    plan = strategy(8, precision="fp16")
    for changed in fields(TYPICAL):
        if changed.name in (
            "level",
            "protocols",
            "concurrent_messages",
            "sigmas",
            "seen",
            "without",
            "attention_kernel",
            "framework",
        ):
            continue
        value = getattr(TYPICAL, changed.name)
        other = {k: v * 0.9 for k, v in value.items()} if isinstance(value, Mapping) else value * 0.9
        end = replace(TYPICAL, **{changed.name: other})
        apart = Predictor(constants=(end, TYPICAL, TYPICAL)).step(net, place, plan).high_s
        assert apart == pytest.approx(Predictor(constants=(end,) * 3).step(net, place, plan).high_s, rel=1e-12), changed.name


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_fp8_takes_the_memory_of_bf16_and_copies_of_the_weights(sharding: str) -> None:
    work, machines = Workload.named("gpt3-1.3b"), named_cluster("H100", 8, 1)
    half, eighth = (
        predict(work, machines, Strategy.of(world_size=8, global_batch_size=8, precision=p, sharding=sharding))
        for p in ("bf16", "fp8")
    )
    more = {name: size - half.memory[name] for name, size in eighth.memory.items() if size != half.memory[name]}
    if sharding == "ddp":
        assert more == {"weights": 2.0 * work.num_parameters}
    else:  # two neighbouring units of weights and of gradients at 16 bits; the weights once more in fp8
        sizes: dict[str, int] = {}
        for p in work.parameters:
            sizes[p.name.partition("blocks.")[2][:2] or "embeddings"] = (
                sizes.get(p.name.partition("blocks.")[2][:2] or "embeddings", 0) + p.size
            )
        most = max(sizes.values()) + sizes["0."]
        assert more == {"gathered": pytest.approx(2 * most, rel=1e-3)}
    fast = [
        FAST_HOST.step(
            work, machines, Strategy.of(world_size=8, global_batch_size=8, precision=p, sharding=sharding)
        ).step_time_s
        for p in ("bf16", "fp8")
    ]
    assert 0.5 < fast[1] / fast[0] < 1
    assert any("No measurement in fp8" in text for text in eighth.assumptions)


def test_what_a_loop_repeats_costs_the_host_a_launch_alone() -> None:
    clip, device = Workload.named("tacotron2"), named_cluster("A100", 1, 1).device
    model = Predictor(constants=replace(TYPICAL, host_s=8e-5)).model(clip)
    tiny = Strategy.of(world_size=1, global_batch_size=1, precision="tf32", optimizer="adam")
    passes = model.launched(model.passes(device, tiny), device, "tf32")
    kernels = sum(work(layer, "calls_forward") + work(layer, "calls_backward") for layer in clip.layers)
    shares = [(1 + (layer.turns - 1) * 1.5e-5 / 8e-5) / layer.turns for layer in clip.layers]
    needed = sum(8e-5 * share * launched(layer, 1.5e-5 / 8e-5) for share, layer in zip(shares, clip.layers, strict=True))
    assert float(sum(part.total.sum() for part in passes)) == pytest.approx(needed)
    assert needed < 0.5 * kernels * 8e-5
