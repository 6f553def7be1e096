"""TernGrad straight from and to the gradients: the bits, the bytes and the refusals of the stream on a packed copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline import codecs
from paceline.codecs import PayloadError
from paceline.codecs.codec import MessageScaling
from paceline.codecs.counter import Key
from paceline.strategy import EXCHANGES, Exchange
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, Layout, TensorSlice, TensorSpec
from paceline.training.exchanges.streams import ternary_stream
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.streams.ternary_stream import TernaryStream, fits
from paceline.training.exchanges.wires.collectives import NOTHING
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from strategy_toys import WAYS

TERNARY = codecs.get("ternary", clip=2.5)


def exchanged(way: str, workers: int, sizes: list[int], seed: int, chunk: int, packed: bool) -> list[Any]:
    """What every rank has in the end: its gradients, its sample's stages, its bytes. ``packed``: by the general stream."""

    def rank(wire: Any) -> Any:
        rng = np.random.default_rng([seed, wire.rank])
        parts = {}
        specs, at = [], 0
        for index, size in enumerate(sizes):
            values = rng.standard_normal(size) * 10.0 ** rng.uniform(-42, 20) * rng.choice([1, 0], p=[0.9, 0.1])
            parts[f"t{index}"] = torch.from_numpy(values.astype(np.float32))
            specs.append(TensorSpec(f"t{index}", (size,), at))
            at += size
        sample = Sample()
        sample.name = "t0"
        setup = ExchangeSetup(codec=TERNARY, exchange=EXCHANGES[way], world=wire, outer=wire, sample=sample)
        layout = Layout(specs, {"t1"} if len(sizes) > 2 else ())
        work = torch.full((room(setup, layout),), torch.nan)
        for step in range(2):
            exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=seed, step=step))
        stages = {name: np.asarray(value).tobytes() for name, value in sample.stages.items()}
        return {name: part.numpy().tobytes() for name, part in parts.items()}, stages, wire.meter.sent_bytes

    before = Exchange.chunk_elements, ternary_stream.fits
    Exchange.chunk_elements = chunk
    if packed:
        ternary_stream.fits = lambda codec, parts: False
    try:
        return LocalGroup(workers).run(rank)
    finally:
        Exchange.chunk_elements, ternary_stream.fits = before


@pytest.mark.long
@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.sampled_from(WAYS),
    st.integers(1, 6),
    st.lists(st.one_of(st.integers(1, 200), st.just(1024)), min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.sampled_from([64, 333, 1 << 20]),
)
@example("sharded", 3, [1], 1, 64)
@example("ring", 4, [100, 1, 64, 300], 1, 1 << 20)
@example("allgather", 1, [100], 1, 64)
def test_the_bits_bytes_and_sample_are_those_of_a_packed_copy(way, workers, sizes, seed, chunk):
    assert exchanged(way, workers, sizes, seed, chunk, False) == exchanged(way, workers, sizes, seed, chunk, True)


def stream_of(values: torch.Tensor) -> TernaryStream:
    spec = TensorSpec("w", (values.numel(),), 0)
    part = GradientSlice(TensorSlice(spec, 0, values.numel()), values)
    return TernaryStream(TERNARY, [part], [MessageScaling(1.0, 1.0, 0.5)], Key(1, 2), 0, 2)


def test_messages_and_lengths_are_the_general_streams():
    values = torch.linspace(-1, 1, 1000)
    general, stream = CodecStream(TERNARY, values.clone(), Key(1, 2), 0), stream_of(values.clone())
    other = CodecStream(TERNARY, values.flip(0).clone(), Key(5, 2), 0).encode(64, 500, 1)
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
    def parts(gradient: torch.Tensor) -> list[GradientSlice]:
        return [GradientSlice(TensorSlice(TensorSpec("w", (4,), 0), 0, 4), gradient)]

    assert fits(TERNARY, parts(torch.zeros(4)))
    assert not fits(codecs.get("int8"), parts(torch.zeros(4)))
    assert not fits(TERNARY, parts(torch.zeros(4, dtype=torch.bfloat16)))
    assert not fits(TERNARY, parts(torch.zeros(8)[::2]))
