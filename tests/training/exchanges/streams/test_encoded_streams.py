"""Streams over every exchange, many ranks in one process: exact sums, lengths known before, nothing lost with feedback."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oracle
from paceline import codecs
from paceline.codecs import counter
from paceline.codecs.codec import MessageScaling
from paceline.codecs.registry import BY_CODE, BY_NAME
from paceline.strategy import EXCHANGES, FP32, TERNARY, Exchange
from paceline.training.exchanges import exchange_streams
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from strategy_toys import WAYS, owned_bounds

EVERY = sorted(codecs.names())
CORRECTED = ("inceptionn-scaled", "sign", "topk", "int8", "int4", "bf16", "inceptionn")
"""Error feedback works with any codec, those included that do without."""
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([1, 63, 64, 65, 1024, 1025, 3001]))


def normal(workers: int, count: int, seed: int, spread: float = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(count) * 10.0 ** rng.uniform(-spread, spread)).astype(np.float32) for _ in range(workers)]


def send(
    name: str,
    way: str,
    gradients: list[np.ndarray],
    step: int = 0,
    states: Any = None,
    chunk: int = 1 << 20,
    dense: bool = False,
    pull: bool = True,
    **options: Any,
) -> tuple[list[np.ndarray], list[Any]]:
    """The means that every rank holds in the end, as one tensor, and the ranks' feedback."""
    n, count = len(gradients), gradients[0].size
    feedbacks = states or [None] * n

    def rank(wire: Any) -> np.ndarray:
        values = torch.from_numpy(gradients[wire.rank].copy())
        layout = Layout([TensorSpec("w", (count,), 0)], ())
        codec, feedback = codecs.get(name, **options), feedbacks[wire.rank]
        setup = ExchangeSetup(
            codec=codec, exchange=EXCHANGES[way], world=wire, outer=wire, feedback=feedback, compress_pull=pull
        )
        workspace = torch.empty(room(setup, layout))
        gradients_ = Gradients(layout=layout, parts={"w": values}, workspace=workspace, seed=7, step=step)
        exchange_group(setup, gradients_, dense)
        return values.numpy()

    before, Exchange.chunk_elements = Exchange.chunk_elements, chunk
    try:
        return LocalGroup(n).run(rank), feedbacks
    finally:
        Exchange.chunk_elements = before


@given(
    st.integers(1, 9),
    st.integers(1, 500),
    st.sampled_from([None, 2.5]),
    st.integers(0, 2**32),
    st.sampled_from(WAYS),
    st.sampled_from([64, 100, 1 << 20]),
)
def test_the_ternary_exchange_is_the_plain_formula(workers, count, clip, seed, way, chunk):
    gradients = normal(workers, count, seed)
    means, _ = send("ternary", way, gradients, 5, clip=clip, chunk=chunk)
    expected = oracle.terngrad_mean(gradients, 7, 5, 0, clip)
    for mean in means:
        assert mean.tobytes() == (expected + np.float32(0)).tobytes()


@pytest.mark.everyday("64-allgather")
@pytest.mark.parametrize(("workers", "way"), [*((64, way) for way in WAYS), *((n, "sharded") for n in (127, 128, 130, 300))])
def test_sums_of_many_workers_do_not_overflow(workers, way):
    # Every worker sends +1 (or -1) everywhere: the largest sums there are.
    gradients = [np.array([1, -1, 1, -1, 0] * 3, np.float32)] * workers
    means, _ = send("ternary", way, gradients)
    assert all(np.array_equal(mean, gradients[0]) for mean in means)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 10)
@given(st.integers(2, 5), st.integers(2, 200), st.integers(0, 2**32))
def test_the_mean_over_workers_and_steps_is_the_mean_clipped_gradient(workers, count, seed):
    repeats = 150
    gradients = normal(workers, count, seed)
    total = np.zeros(count)
    for step in range(repeats):
        total += send("ternary", "sharded", gradients, step, clip=2.5)[0][0]
    limits = [float(oracle.bound(g, 2.5)) for g in gradients]
    clipped = [np.clip(g.astype(np.float64), -b, b) for g, b in zip(gradients, limits, strict=True)]
    s = max(limits)
    variance = sum(np.abs(g) / s * (1 - np.abs(g) / s) for g in clipped) * s**2 / workers**2 / repeats
    bound = 6 * np.sqrt(variance) + 6 * s / repeats / workers + 1e-5 * s
    assert (np.abs(total / repeats - sum(clipped) / workers) <= bound).all()


@given(st.integers(1, 6), SIZES, st.integers(0, 2**32), st.sampled_from(WAYS), st.sampled_from([64, 1000]))
def test_dense_is_the_sum_in_some_order_the_same_on_all(workers, count, seed, way, chunk):
    gradients = normal(workers, count, seed)
    means, _ = send("fp32", way, gradients, chunk=chunk)
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    room = workers * 2.0**-24 * np.sum(np.abs(gradients), axis=0, dtype=np.float64)
    assert all(m.tobytes() == means[0].tobytes() for m in means)
    assert (np.abs(means[0] - exact) <= room + 1e-38).all()


@given(st.integers(1, 6), st.integers(1, 300), st.integers(0, 2**32))
def test_bf16_is_within_its_rounding(workers, count, seed):
    gradients = normal(workers, count, seed)
    means, _ = send("bf16", "sharded", gradients)
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    allowed = np.mean([np.abs(g) for g in gradients], axis=0) / 256 + np.abs(exact) / 128
    assert all(np.array_equal(m, means[0]) for m in means)
    assert (np.abs(means[0] - exact) <= allowed + 1e-12).all()


@settings(max_examples=2 * settings.default.max_examples)
@given(st.sampled_from(EVERY), st.sampled_from(WAYS), st.integers(1, 5), SIZES, st.sampled_from([64, 200, 1 << 20]))
@example("inceptionn", "parameter_server", 3, 100, 1 << 20)  # only rank 0 has a shard, and nobody else expects a push
@example("inceptionn", "sharded", 4, 70, 1 << 20)  # two ranks own nothing
@example("inceptionn", "ring", 5, 70, 1 << 20)
@example("int8", "sharded", 2, 65, 1 << 20)  # one element and its scale take more than fp32
def test_any_codec_over_any_exchange_and_size_ends_with_the_same_bits(name, way, workers, count, chunk):
    means, _ = send(name, way, normal(workers, count, count, 0), chunk=chunk)
    assert all(m.tobytes() == means[0].tobytes() and np.isfinite(m).all() for m in means)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("value", [0.0, -0.0, 0.75, -3e-3, 1e-40])
def test_tensors_of_one_value_stay_finite_and_zeros_stay_zeros(name, value):
    for count in (1, 64, 1000):
        for way in ("sharded", "ring"):
            mean, *others = send(name, way, [np.full(count, value, np.float32)] * 3)[0]
            assert all(np.array_equal(mean, other) for other in others)
            assert np.isfinite(mean).all() and (np.abs(mean) <= 2 * abs(value) + 1e-38).all()


@pytest.mark.long
@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.sampled_from(CORRECTED),
    st.sampled_from(WAYS),
    st.integers(1, 5),
    SIZES,
    st.integers(0, 2**32),
    st.sampled_from([64, 333, 1 << 20]),
)
@example("topk", "ring", 5, 1025, 1, 333)
@example("sign", "parameter_server", 3, 1, 1, 64)
def test_what_is_delivered_and_what_is_kept_are_what_was_given(name, way, workers, count, seed, chunk):
    """N * mean + residuals after == gradients + residuals before, over the ranks: nothing is lost and nothing twice."""
    feedbacks = [Feedback() for _ in range(workers)]
    kept = np.zeros(count)
    for step in range(3):
        gradients = normal(workers, count, seed + step, 0)
        means, _ = send(name, way, gradients, step, feedbacks, chunk)
        given_ = kept + np.sum(gradients, axis=0, dtype=np.float64)
        before = np.abs(kept) + np.sum(np.abs(gradients), axis=0, dtype=np.float64)
        left = [f.residual.state().get("w", torch.zeros(count)).numpy().astype(np.float64) for f in feedbacks]
        kept = np.sum(left, axis=0)
        size = before + np.sum(np.abs(left), axis=0) + workers * np.abs(means[0].astype(np.float64))
        # Every addition in fp32 may round, of which a ring has the most: N of the gradient and N of the partial sums.
        error = np.abs(workers * means[0].astype(np.float64) + kept - given_)
        assert (error <= 2 * (workers + 2) * 2.0**-23 * size + 1e-37).all()
        assert all(m.tobytes() == means[0].tobytes() for m in means)


@pytest.mark.long
@pytest.mark.everyday("ring")
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.full if way not in ("ring", "sharded") else ()) for way in WAYS]
)
def test_feedback_lets_a_codec_of_one_percent_deliver_everything_in_time(way):
    constant = normal(3, 700, 5, 0)
    feedbacks, total = [Feedback() for _ in range(3)], np.zeros(700)
    for step in range(200):
        total += send("topk", way, constant, step, feedbacks)[0][0]
    # All but the last residuals has been delivered: an element waits at most about 1 / density steps.
    exact = np.mean(constant, axis=0, dtype=np.float64)
    assert np.abs(total / 200 - exact).max() < 0.6 * np.abs(exact).max()
    lost = [send("topk", way, constant, step)[0][0] for step in range(3)]
    assert np.count_nonzero(np.sum(lost, axis=0)) < 0.1 * 700  # without it the same few are sent for ever


@pytest.mark.parametrize("way", WAYS)
def test_momentum_stops_where_an_element_was_sent(way):
    feedbacks = [Feedback(0.9) for _ in range(2)]
    send("topk", way, normal(2, 500, 1, 0), 0, feedbacks, density=0.1)
    for f in feedbacks:
        residual, velocity = (state["w"].numpy() for state in (f.residual.state(), f.velocity.state()))
        assert 0 < np.count_nonzero(residual == 0) < 500
        assert not velocity[residual == 0].any() and velocity[residual != 0].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_number_on_one_rank_goes_dense_and_leaves_every_residual(way, bad):
    feedbacks = [Feedback() for _ in range(3)]
    send("topk", way, normal(3, 300, 1, 0), 0, feedbacks)
    before = [f.residual.state()["w"].numpy().copy() for f in feedbacks]
    gradients = normal(3, 300, 2, 0)
    gradients[1][17] = bad
    means, _ = send("topk", way, gradients, 1, feedbacks)
    for f, old in zip(feedbacks, before, strict=True):
        assert np.array_equal(f.residual.state()["w"].numpy(), old)
    assert all(m.tobytes() == means[0].tobytes() for m in means) and not np.isfinite(means[0][17])
    others = np.arange(300) != 17
    assert np.allclose(means[0][others], np.mean(gradients, axis=0)[others], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fp32", "bf16", "ternary", "int8"])
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_every_rank_learns_whether_a_gradient_of_any_was_no_number(name, bad):
    def rank(wire: Any) -> bool:
        values = torch.ones(300)
        values[7] = bad if wire.rank == 1 else 1
        setup = ExchangeSetup(codec=codecs.get(name), exchange=EXCHANGES["sharded"], world=wire, outer=wire)
        layout = Layout([TensorSpec("w", (300,), 0)], ())
        workspace = torch.empty(room(setup, layout))
        return exchange_group(setup, Gradients(layout=layout, parts={"w": values}, workspace=workspace, seed=0, step=0))

    assert LocalGroup(3).run(rank) == [bad != 0] * 3


@pytest.mark.parametrize("way", ["sharded", "parameter_server"])
@pytest.mark.parametrize("count", [1, 70, 1000])
def test_sums_may_be_pulled_dense(way, count):
    gradients = normal(3, count, 9, 0)
    plain, _ = send("ternary", way, gradients)
    exact, _ = send("ternary", way, gradients, pull=False)
    assert all(m.tobytes() == plain[0].tobytes() for m in exact)  # a sum of ternaries is exact either way
    feedbacks = [Feedback() for _ in range(3)]
    means, _ = send("topk", way, gradients, 0, feedbacks, pull=False)
    left = [f.residual.state()["w"].numpy() for f in feedbacks]
    assert all(m.tobytes() == means[0].tobytes() for m in means)
    assert np.allclose(3 * means[0] + np.sum(left, axis=0), np.sum(gradients, axis=0), atol=1e-5)
    owned = slice(*owned_bounds(count, way, 3)[0])
    assert not left[0][owned].any()  # nothing is lost on the way back


class Fat(codecs.Codec):
    """Always larger than dense; its length depends on the values, as far as anybody can tell."""

    name, code = "fat", 250

    def body_range(self, count):
        return 4 * count, 9 * count

    def encode_body(self, x, body, key, start):
        body[:] = 1
        return body.size

    def decode_body(self, body, count):
        raise AssertionError("a message of it was sent")


def test_a_payload_larger_than_dense_goes_dense():
    gradients = normal(3, 100, 3, 0)

    def rank(wire: Any) -> np.ndarray:
        values = torch.from_numpy(gradients[wire.rank].copy())
        residual = values.clone()
        exchange_streams([(CodecStream(Fat(), values.fill_(9), counter.Key(1, 2), 0, residual), EXCHANGES["ring"])], wire, 64)
        assert not residual.any()  # nothing was lost
        return values.numpy()

    for total in LocalGroup(3).run(rank):
        assert np.allclose(total, np.sum(gradients, axis=0), atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class FixedPoint(codecs.Codec):
    """Multiples of 2**-16 of a scale that the ranks share: a second codec that agrees, of which nothing else knows."""

    name: ClassVar[str] = "fixed-point"
    code: ClassVar[int] = 251
    agrees: ClassVar[bool] = True
    seen: ClassVar[list[tuple[float, float]]] = []

    def body_range(self, count):
        return 4 * count, 4 * count

    def encode_body(self, x, body, key, start):
        body.view("<i4")[:] = np.rint(x * np.float32(2**16))
        return body.size

    def decode_body(self, body, count):
        return body.view("<i4") / np.float32(2**16)

    def prepare(self, m):
        return float(m.peak)

    def finish(self, own, agreed):
        self.seen.append((own, agreed))
        return MessageScaling(own, 1 / agreed if agreed else 0.0, agreed)


@pytest.mark.parametrize("way", WAYS)
def test_any_codec_may_have_numbers_that_the_ranks_agree_on(way, monkeypatch):
    monkeypatch.setitem(BY_CODE, FixedPoint.code, FixedPoint)
    monkeypatch.setitem(BY_NAME, FixedPoint.name, FixedPoint)
    FixedPoint.seen.clear()
    gradients = [scale * g for scale, g in zip((1e-6, 0, 40), normal(3, 300, 4, 0), strict=True)]
    means, _ = send("fixed-point", way, gradients)
    peaks = [float(np.abs(g).max()) for g in gradients]
    assert sorted(FixedPoint.seen) == sorted((peak, max(peaks)) for peak in peaks)
    assert all(m.tobytes() == means[0].tobytes() for m in means)
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    assert np.abs(means[0] - exact).max() <= max(peaks) * 2.0**-16 and means[0].any()


def test_error_feedback_with_a_codec_of_another_scale_in_each_step_is_refused():
    with pytest.raises(ValueError, match="ternary with error feedback"):
        send("ternary", "sharded", normal(1, 9, 0), states=[Feedback()])


def test_a_stream_takes_messages_of_its_own_kinds_only():
    """Ternaries are added as they are or as sums of several; as fp32 only a finished sum may come."""
    key, ones = counter.Key(1, 2), torch.ones(64)
    messages = {
        "ternary": codecs.encode(codecs.get("ternary", scale=1), ones),
        "sum": codecs.encode(codecs.get("ternary").summing(3), 3 * ones),
        "fp32": codecs.encode(codecs.get("fp32"), ones),
        "int8": codecs.encode(codecs.get("int8"), ones),
    }
    legal = {"ternary": {"set": ("ternary", "sum", "fp32"), "add": ("ternary", "sum")}}
    legal["int8"] = {"set": ("int8", "fp32"), "add": ("int8", "fp32")}
    for name, kinds in legal.items():
        for way, takes in kinds.items():
            for kind, message in messages.items():
                put = getattr(CodecStream(codecs.get(name), ones.clone(), key, 0), way)
                if kind in takes:
                    put(torch.from_numpy(message), 0, 64)
                else:
                    with pytest.raises(codecs.PayloadError, match="a payload of codec"):
                        put(torch.from_numpy(message), 0, 64)


VARIABLE = ("inceptionn", "inceptionn-scaled", "bf16-coded")
"""Codecs whose messages are as long as their values need."""


def test_a_stream_says_how_long_its_messages_are():
    for name in EVERY:
        for count in (0, 1, 2, 64, 65, 1000, 70_000):
            values = torch.from_numpy(normal(1, count, 1, 0)[0])
            if name == "ternary":
                values = values / (values.abs().max() if count else 1)
            stream = CodecStream(codecs.get(name), values, counter.Key(1, 2), 0)
            for workers, exact in ((1, False), (3, False), (40, False), (40, True)):
                length = stream.length(0, count, workers, exact)
                assert length in (None, stream.encode(0, count, workers, exact).numel()), (name, count, workers)
                assert (length is None) == (name in VARIABLE and not exact)


@given(st.integers(0, 5000), st.integers(1, 40), st.sampled_from(list(EXCHANGES)[1:]))
def test_shards_cover_every_element_once_on_whole_blocks(count, workers, way):
    bounds = owned_bounds(count, way, workers)
    assert len(bounds) == workers and bounds[0][0] == 0 and bounds[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(start % 64 == 0 or start == count for start, _ in bounds)
    if way == "sharded":
        sizes = [stop - start for start, stop in bounds]
        assert max(sizes) == sizes[0] < count / workers + 64
    # Whole blocks in every shard but the last: cutting costs no byte.
    for fmt in (TERNARY, FP32):
        assert sum(fmt.push_bytes(stop - start) for start, stop in bounds) == fmt.push_bytes(count)
