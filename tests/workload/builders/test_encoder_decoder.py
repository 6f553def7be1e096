"""Encoders with a decoder: who shares what, and where audio enters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.workload.builders.encoder_decoder import Audio, EncoderDecoderShape, encoder_decoder
from paceline.workload.builders.transformer import TransformerShape

STACK = TransformerShape(layers=2, hidden=32, heads=4, vocabulary=50, context=24, fused_qkv=False)
PAIR = EncoderDecoderShape(encoder=replace(STACK, causal=False), decoder=STACK)


def test_stacks_share_the_table_of_tokens_and_have_positions_of_their_own() -> None:
    names = {p.name for p in encoder_decoder(PAIR, 16, name="pair").parameters}
    assert {"tokens.weight", "source_positions.weight", "target_positions.weight"} <= names
    assert "target_tokens.weight" not in names and "encoder_norm.weight" in names


def test_audio_enters_by_two_convolutions() -> None:
    shape = EncoderDecoderShape(encoder=PAIR.encoder, decoder=STACK, audio=Audio(bins=10, tokens=40))
    table = encoder_decoder(shape, 16, name="heard")
    first, second = (next(x for x in table.layers if x.name == name) for name in ("conv1", "conv2"))
    assert first.flops_forward == 2 * 80 * 32 * 30 == first.flops_backward  # data need no gradient
    assert second.flops_backward == 2 * second.flops_forward == 4 * 40 * 32 * 96
    cross = next(x for x in table.layers if x.name == "decoder.0.cross.mix")
    assert {(o.m, o.n) for o in cross.operations} == {(16, 40)}
    assert "16 tokens" in table.sample and "80 frames" in table.sample


@pytest.mark.parametrize("length", [0, 25])
def test_lengths_without_positions_are_refused(length: int) -> None:
    with pytest.raises(UserError, match=f"no sequences of {length} tokens; give 1 to 24"):
        encoder_decoder(PAIR, length, name="pair")
