"""The stages of one gradient: only of the tensor that was asked for, each from the one before."""

from __future__ import annotations

import numpy as np
import torch

from paceline.codecs import counter, native, reference
from paceline.codecs.moments import moments
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, TensorSlice, TensorSpec

GRADIENTS = {name: torch.randn(size, generator=torch.Generator().manual_seed(size)) for name, size in (("a", 50), ("b", 70))}
PARTS = [
    GradientSlice(TensorSlice(TensorSpec("a", (50,), 0), 0, 50), GRADIENTS["a"]),
    GradientSlice(TensorSlice(TensorSpec("b", (70,), 50), 50, 120), GRADIENTS["b"]),
]
LIMITS = [(0.5, 0.5), (1.0, 1.25)]


def taken(name: str) -> Sample:
    sample = Sample()
    sample.name = name
    each = [moments(part.gradient.numpy(), native if native.available() else reference) for part in PARTS]
    sample.take(PARTS, each, LIMITS, counter.key(1, 2, 3), 7, 4)
    return sample


def test_each_stage_follows_from_the_one_before() -> None:
    sample = taken("b")
    stages = sample.stages
    original = GRADIENTS["b"].numpy()
    assert (stages["layer"], stages["step"], stages["scale"]) == ("b", 4, 1.25)
    np.testing.assert_array_equal(stages["original"], original)
    np.testing.assert_array_equal(stages["clipped"], original.clip(-1.0, 1.0))
    assert set(np.unique(stages["ternary"]).tolist()) <= {-1.25, 0.0, 1.25}
    assert (np.sign(stages["ternary"]) * np.sign(original) >= 0).all()
    assert stages["sigma"] == float(np.float32(stages["sigma"])) and "averaged" not in stages
    sample.finish({"a": torch.zeros(50), "b": torch.ones(70)})
    assert stages["averaged"].tolist() == [1.0] * 70
    sample.finish({})
    assert stages["averaged"].tolist() == [1.0] * 70, "only the exchange that it was taken in"


def test_nothing_is_kept_of_what_nobody_asked_for() -> None:
    for name in ("", "c"):
        sample = taken(name)
        sample.finish({})
        assert sample.stages == {}


def test_what_is_kept_is_a_copy() -> None:
    sample = taken("a")
    kept = sample.stages["original"].copy()
    GRADIENTS["a"].add_(1.0)
    try:
        np.testing.assert_array_equal(sample.stages["original"], kept)
    finally:
        GRADIENTS["a"].sub_(1.0)
