"""What every codec is: a value, with lengths within its own range and nothing to agree on unless it says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.codecs import ADD, SET, SUBTRACT, get, names, reference
from paceline.codecs.codec import Codec, MessageScaling, apply, legal
from paceline.codecs.container import PayloadError
from paceline.codecs.moments import Moments
from paceline.errors import UserError

EVERY = pytest.mark.parametrize("name", names())


@EVERY
def test_a_codec_is_a_value(name: str) -> None:
    assert get(name) == get(name) and hash(get(name)) == hash(get(name)) and isinstance(get(name), Codec)


@EVERY
@given(count=st.integers(0, 10**6))
def test_the_range_of_lengths_is_a_range(name: str, count: int) -> None:
    least, most = get(name).body_range(count)
    assert 0 <= least <= most and (count > 0 or most <= 64)
    assert get(name).body_range(count + 1)[1] >= most


@EVERY
def test_a_decoder_needs_no_more_than_eight_bytes(name: str) -> None:
    codec = get(name).resolved(np.ones(3, np.float32), reference)
    assert len(codec.parameters()) <= 8 and type(codec).of(codec.parameters().ljust(8, b"\0")).name == name
    if not codec.parameters():
        with pytest.raises(PayloadError, match=f"{name} has no parameters, the payload has 0100"):
            type(codec).of(b"\1" + bytes(7))


@EVERY
def test_what_does_not_agree_has_nothing_to_scale(name: str) -> None:
    codec, m = get(name), Moments(np.float32(1.0), np.float32(3.0))
    if not codec.agrees:
        assert codec.prepare(m) == 0.0 and codec.finish(0.0, 0.0) == MessageScaling(float("inf"), 1.0, 1.0)
    else:
        own = codec.prepare(m)
        assert 0 < own <= 3.0 and codec.finish(own, own).bound > 0


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9))
def test_values_are_put_added_or_subtracted(values: list[float]) -> None:
    x = np.array(values, np.float32)
    for mode, wanted in ((SET, x), (ADD, 1 + x), (SUBTRACT, 1 - x)):
        out = np.ones_like(x)
        apply(out, x, mode)
        np.testing.assert_array_equal(out, wanted)


def test_an_option_out_of_range_is_the_user_s_mistake() -> None:
    legal(True, "nothing", "to do")
    with pytest.raises(UserError, match="7 bits; give 8"):
        legal(False, "7 bits", "give 8")
