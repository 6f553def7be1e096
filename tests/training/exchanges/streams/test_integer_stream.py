"""int8 and int4 straight from and to the gradients: the bits, the bytes and the refusals of the stream on a packed copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from paceline import codecs
from paceline.codecs import PayloadError
from paceline.codecs.counter import Key
from paceline.strategy import COMPRESSIONS, EXCHANGES, Exchange, GradientExchange
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import codec_of
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, Layout, TensorSlice, TensorSpec
from paceline.training.exchanges.streams import integer_stream, parts_stream, ternary_stream
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.streams.integer_stream import IntegerStream, fits
from paceline.training.exchanges.wires.collectives import NOTHING
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from strategy_toys import WAYS

INT4 = codecs.get("int4", block=64)


def exchanged(way: str, workers: int, sizes: list[int], seed: int, chunk: int, codec: Any, packed: bool) -> list[Any]:
    """The gradients and the sent bytes of every rank after two steps. ``packed``: by the general stream."""

    def rank(wire: Any) -> Any:
        rng = np.random.default_rng([seed, wire.rank])
        parts = {}
        specs, at = [], 0
        for index, size in enumerate(sizes):
            values = rng.standard_normal(size) * 10.0 ** rng.uniform(-42, 20) * rng.choice([1, 0], p=[0.9, 0.1])
            parts[f"t{index}"] = torch.from_numpy(values.astype(np.float32))
            specs.append(TensorSpec(f"t{index}", (size,), at))
            at += size
        setup = ExchangeSetup(codec=codec, exchange=EXCHANGES[way], world=wire, outer=wire)
        layout = Layout(specs, {"t1"} if len(sizes) > 2 else ())
        work = torch.full((room(setup, layout),), torch.nan)
        for step in range(2):
            exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=seed, step=step))
        return {name: part.numpy().tobytes() for name, part in parts.items()}, wire.meter.sent_bytes

    before = Exchange.chunk_elements, integer_stream.fits, parts_stream.PAST_CACHES
    Exchange.chunk_elements = chunk
    parts_stream.PAST_CACHES = 4000
    if packed:
        integer_stream.fits = lambda codec, parts: False
    try:
        return LocalGroup(workers).run(rank)
    finally:
        Exchange.chunk_elements, integer_stream.fits, parts_stream.PAST_CACHES = before


@pytest.mark.long
@given(
    st.sampled_from(WAYS),
    st.integers(1, 6),
    st.lists(st.one_of(st.integers(1, 200), st.just(1024)), min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.sampled_from([64, 333, 1 << 20]),
    st.builds(
        lambda name, block: codecs.get(name, block=block), st.sampled_from(["int8", "int4"]), st.sampled_from([64, 1024])
    ),
)
@example("sharded", 3, [1], 1, 64, INT4)
@example("ring", 4, [1], 1, 64, INT4)
@example("allgather", 2, [65, 128], 1, 64, INT4)
@example("ring", 3, [100, 1, 64, 300, 1000, 1024], 1, 1 << 20, INT4)
@example("allgather", 1, [100], 1, 64, INT4)
def test_the_bits_and_bytes_are_those_of_a_packed_copy(way, workers, sizes, seed, chunk, codec):
    assert exchanged(way, workers, sizes, seed, chunk, codec, False) == exchanged(way, workers, sizes, seed, chunk, codec, True)


def part_of(gradient: torch.Tensor) -> list[GradientSlice]:
    count = gradient.numel()
    return [GradientSlice(TensorSlice(TensorSpec("w", (count,), 0), 0, count), gradient)]


def stream_of(values: torch.Tensor) -> IntegerStream:
    return IntegerStream(INT4, part_of(values), Key(1, 2), 0, 2)


def test_messages_and_lengths_are_the_general_streams():
    values = torch.linspace(-1, 1, 1000)
    general, stream = CodecStream(INT4, values.clone(), Key(1, 2), 0), stream_of(values.clone())
    other = CodecStream(INT4, values.flip(0).clone(), Key(5, 2), 0).encode(64, 500, 1)
    assert stream.encode(7, 7, 1) is NOTHING and stream.length(7, 7, 3) == 0 and stream.count == 1000
    for workers in (1, 2):
        for each in (general, stream):
            if workers == 1:
                each.settle(64, 500)
            else:
                each.add(other, 64, 500)
        messages = [each.encode(64, 500, workers) for each in (general, stream)]
        assert torch.equal(*messages)
        assert messages[0].numel() == stream.length(64, 500, workers) == general.length(64, 500, workers)


def test_gradients_stay_as_they_are_until_the_mean_is_set():
    values = torch.linspace(-1, 1, 200)
    stream, other = stream_of(values), stream_of(values.clone()).encode(0, 200, 1)
    stream.settle(0, 200)
    stream.add(other, 0, 200)
    total = stream.encode(0, 200, 2)
    assert torch.equal(values, torch.linspace(-1, 1, 200))
    stream.set(total, 0, 200)
    assert torch.equal(values, torch.from_numpy(codecs.decode(total.numpy())) / 2)


def test_a_damaged_message_of_another_rank_is_refused():
    stream = stream_of(torch.linspace(-1, 1, 200))
    message = stream_of(torch.linspace(-1, 1, 200)).encode(0, 200, 1)
    message[50] ^= 1
    stream.settle(0, 200)
    stream.add(message, 0, 200)
    with pytest.raises(PayloadError, match=r"^the checksum"):
        stream.encode(0, 200, 2)
    with pytest.raises(PayloadError, match=r"^the checksum"):
        stream.set(message, 0, 200)


def test_what_a_stream_takes():
    assert fits(INT4, part_of(torch.zeros(4))) and fits(codecs.get("int8"), part_of(torch.zeros(4)))
    assert not fits(codecs.get("ternary"), part_of(torch.zeros(4)))
    assert not fits(INT4, part_of(torch.zeros(4, dtype=torch.bfloat16)))
    assert not fits(INT4, part_of(torch.zeros(8)[::2]))


@pytest.mark.parametrize("name", [name for name, described in COMPRESSIONS.items() if not described.low_rank])
def test_what_is_predicted_without_a_copy_has_a_stream_without_one(name):
    codec, gradients = codec_of(GradientExchange(name)), part_of(torch.zeros(4))
    assert COMPRESSIONS[name].in_place == (fits(codec, gradients) or ternary_stream.fits(codec, gradients))


def test_error_feedback_takes_the_general_stream():
    def rank(wire: Any) -> float:
        setup = ExchangeSetup(codec=INT4, exchange=EXCHANGES["ring"], world=wire, outer=wire, feedback=Feedback())
        layout = Layout([TensorSpec("w", (500,), 0)], ())
        gradient = torch.linspace(-1, 1, 500) + wire.rank
        work = torch.empty(room(setup, layout))
        exchange_group(setup, Gradients(layout=layout, parts={"w": gradient}, workspace=work, seed=1, step=0))
        return float(setup.feedback.residual.flat(layout, gradient.device).abs().max())

    assert all(residual > 0 for residual in LocalGroup(2).run(rank))
