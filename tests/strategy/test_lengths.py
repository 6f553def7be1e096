"""Lengths of samples: their texts, and the distribution against drawn samples and limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.tasks.lengths import CUT, SampleLengths

LENGTHS = SampleLengths.of("mean=400,max=2048")


def drawn(lengths: SampleLengths, *shape: int) -> np.ndarray:
    """Draw samples: logarithms are normal, with the share ``CUT`` above the longest."""
    tail = 2.3263478740408408  # of a normal variable, one in a hundred is larger
    logs = np.random.default_rng(1).normal(np.log(lengths.longest) - tail * lengths.spread, lengths.spread, shape)
    return np.minimum(np.exp(logs), lengths.longest)


def test_drawn_samples_have_the_stated_mean_and_the_predicted_longest() -> None:
    samples = drawn(LENGTHS, 20000, 32)
    assert samples.mean() == pytest.approx(400, rel=0.01)
    assert (samples == 2048).mean() == pytest.approx(CUT, rel=0.1)
    assert LENGTHS.mean_square == pytest.approx(float((samples**2).mean()), rel=0.02)
    for count in (1, 4, 32):
        mean, deviation = LENGTHS.longest_of(count)
        longest = samples[:, :count].max(axis=1)
        assert mean == pytest.approx(float(longest.mean()), rel=0.02)
        assert deviation == pytest.approx(float(longest.std()), rel=0.05)


@pytest.mark.parametrize(("micro_batches", "in_step"), [(1, False), (1, True), (8, True), (8, False)])
def test_a_step_takes_the_time_of_the_replica_that_computes_most(micro_batches: int, in_step: bool) -> None:
    samples, replicas = 2, 8
    longest = drawn(LENGTHS, 4000, replicas, micro_batches, samples).max(axis=-1)
    waited = longest.max(axis=1).mean(axis=1) if in_step else longest.mean(axis=2).max(axis=1)
    assert LENGTHS.computed(samples, micro_batches, replicas, in_step) == pytest.approx(float(waited.mean()), rel=0.03)


@given(st.floats(0.03, 0.95), st.integers(64, 10**6), st.integers(1, 512))
def test_padding_lies_between_the_mean_and_the_longest(share: float, longest: int, count: int) -> None:
    lengths = SampleLengths.of(f"mean={max(1.0, share * longest):g},max={longest}")
    one, many = lengths.longest_of(1)[0], lengths.longest_of(count)[0]
    assert one == pytest.approx(lengths.mean, rel=0.02)
    assert one <= many * (1 + 1e-9) and many <= longest * (1 + 1e-9)
    assert SampleLengths.of(f"mean={lengths.mean:g},max={longest},padding=max").computed(1, 1, 1, False) == longest
    assert SampleLengths.of(lengths.name) == lengths


@pytest.mark.parametrize("text", ["mean=400", "max=2048", "mean=4000,max=2048", "mean=x,max=3", "mean=1,max=2048", "long=3", 4])
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(UserError):
        SampleLengths.of(text)


def test_json_has_only_named_lengths() -> None:
    plain = Strategy.of(global_batch_size=1)
    assert "tokens_per_sample" not in plain.to_json()
    named = plain.changed(tokens_per_sample="mean=400,max=2048,padding=packed")
    assert Strategy.of(**named.to_json()) == named
