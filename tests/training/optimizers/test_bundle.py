"""Tensors that one path serves alike: chunks of bounded size, gradients in the weights' precision, masters published."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.training.optimizers import bundle as bundles
from paceline.training.optimizers.bundle import Bundle, dense, fitted, scalar_dtype


def made_of(weights: list[Tensor], gradients: list[Tensor] | None = None, **options: Any) -> Bundle:
    """A bundle of these weights, with gradients of ones where none are given."""
    whole = Bundle({"weight_decay": 0.1}, options.pop("excluded", False), None, torch.device("cpu"))
    for i, weight in enumerate(weights):
        gradient = torch.ones_like(weight) if gradients is None else gradients[i]
        whole.add(f"p{i}", options.get("parameter", weight), weight, gradient, [torch.zeros_like(weight)], torch.zeros(()))
    return whole


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 40))
def test_chunks_cover_every_tensor_once_and_are_bounded(sizes: list[int], most: int) -> None:
    whole = made_of([torch.zeros(size) for size in sizes])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "_CHUNK", most)
        parts = list(whole.chunks())
    assert [i for part in parts for i in range(len(sizes))[part]] == list(range(len(sizes)))
    assert all(sum(sizes[part]) <= most or len(sizes[part]) == 1 for part in parts)


def test_words_and_steps_are_beside_their_tensors() -> None:
    whole = made_of([torch.zeros(2), torch.zeros(3)])
    assert whole.names == ["p0", "p1"] and len(whole.steps) == 2
    assert [[word.numel() for word in words] for words in whole.words] == [[2, 3]]
    assert whole.decay == 0.1 and made_of([torch.zeros(2)], excluded=True).decay == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 0.5, torch.tensor(0.5)])
def test_gradients_come_in_the_weights_precision_times_the_scale(dtype: torch.dtype, scale: float | Tensor) -> None:
    whole = made_of([torch.zeros(3, dtype=dtype)], [torch.full((3,), 4.0, dtype=torch.bfloat16)])
    whole.scale = scale
    (gradient,) = whole.scaled(slice(None))
    assert gradient.dtype == dtype and gradient.tolist() == [4.0 * float(scale)] * 3
    assert whole.gradients[0].tolist() == [4.0] * 3, "the given ones are left as they were"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_step_that_is_skipped_has_gradients_of_zero(value: float) -> None:
    whole = made_of([torch.zeros(4)], [torch.full((4,), value)])
    assert whole.scaled(slice(None), torch.tensor(False))[0].tolist() == [0.0] * 4
    kept = whole.scaled(slice(None), torch.tensor(True))[0]
    assert torch.equal(kept.view(torch.int32), whole.gradients[0].view(torch.int32))


def test_masters_are_copied_into_parameters_of_16_bits() -> None:
    parameter = torch.zeros(3, dtype=torch.bfloat16)
    made_of([torch.tensor([1.0, 2.0, 3.0])], parameter=parameter).publish(slice(None))
    assert parameter.tolist() == [1.0, 2.0, 3.0]
    same = torch.zeros(3)
    made_of([torch.ones(3)], parameter=same).publish(slice(None))
    assert same.tolist() == [0.0] * 3, "of one precision there is no master"


def test_one_loop_serves_what_lies_in_one_order() -> None:
    weight, image = torch.zeros(4, 6), torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert dense(weight, [torch.zeros(4, 6)]) and dense(image, [torch.zeros_like(image)])
    assert not dense(weight, [torch.zeros(6, 4).t()]) and not dense(image, [torch.zeros(2, 3, 4, 5)])
    assert not dense(weight[:, ::2], []) and not dense(weight, [torch.zeros(4, 6, dtype=torch.float64)])


def test_a_gradient_fits_or_is_copied() -> None:
    weight = torch.zeros(4, 6)
    gradient = torch.randn(4, 6)
    assert fitted(gradient, weight) is gradient
    for other in (gradient.t().contiguous().t(), gradient.double(), torch._neg_view(-gradient)):
        copy = fitted(other, weight)
        assert copy.stride() == weight.stride() and copy.dtype == weight.dtype and torch.equal(copy, gradient)


def test_a_cpu_has_room_for_fp64() -> None:
    assert scalar_dtype(torch.zeros(1)) is scalar_dtype(torch.zeros(1, dtype=torch.float64)) is torch.float64
    assert scalar_dtype(torch.zeros(1, device="meta")) is torch.float32
