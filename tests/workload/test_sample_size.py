"""Sizes of samples as users write them."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.workload.sample_size import SampleSize, parse_sample


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512px", SampleSize(512, 512)),
        ("768x1024", SampleSize(768, 1024)),
        ("3x224x448", SampleSize(224, 448)),
        ("81x480x832", SampleSize(480, 832, 81)),
        ("3x81x480x832", SampleSize(480, 832, 81)),
        ("image:1024x768, tokens:512,images:2", SampleSize(1024, 768, 0, 2, 512)),
        ("1024PX,cached", SampleSize(1024, 1024, words=frozenset({"cached"}))),
        ("cached-text,train-text", SampleSize(words=frozenset({"cached-text", "train-text"}))),
    ],
)
def test_forms(text: str, size: SampleSize) -> None:
    assert parse_sample(text) == size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("512px,1024px", "gives size twice"),
        ("512", "unknown word of --input '512'"),
        ("cashed", "did you mean|nearest: cached"),
        ("tokens:0", "512px"),
        ("5x5x5x5", "81x480x832"),
        ("image:big", "image:1024x1024"),
    ],
)
def test_other_text_is_refused_with_the_forms(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_sample(text)


def test_pixels_are_what_a_user_types() -> None:
    assert parse_sample("81x480x832,cached").pixels == "81x480x832" and parse_sample("cached").pixels == ""
