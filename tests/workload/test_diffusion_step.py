"""A training step of a diffusion model with its encoders."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.diffusion_step import Encoding, assembled, check_words, encodes_images, encodes_text
from paceline.workload.sample_size import SampleSize, parse_sample


def test_words_say_which_encoders_run() -> None:
    runs = {text: (encodes_text(parse_sample(text)), encodes_images(parse_sample(text))) for text in ("cached", "cached-text")}
    assert runs == {"cached": (False, False), "cached-text": (False, True)}
    assert (encodes_text(SampleSize()), encodes_images(parse_sample("cached-latents"))) == (True, False)
    with pytest.raises(UserError, match="--input frozen-vision for mine"):
        check_words("mine", parse_sample("frozen-vision"))


def test_a_step_has_the_work_and_the_weights_of_its_parts() -> None:
    denoiser, frozen, text = (Workload.named(name) for name in ("lenet5", "vit-s-16", "gpt2"))
    parts = [Encoding("clip", text, text.num_parameters, trains=True), Encoding("vae", frozen, 7)]
    table = assembled("mine", denoiser, parts, parse_sample("train-text"), SampleSize(8, 8), "a test")
    assert table.resident == 7 and table.num_parameters == denoiser.num_parameters + text.num_parameters
    head = next(layer for layer in frozen.layers if layer.name == "head")  # an encoder gives its last states
    assert table.flops_forward == sum(part.flops_forward for part in (denoiser, frozen, text)) - head.flops_forward
    assert [p.name for p in table.ready_order][: len(denoiser.parameters)] == [p.name for p in denoiser.ready_order]
    assert [p.name for p in table.ready_order][len(denoiser.parameters) :] == [f"clip.{p.name}" for p in text.ready_order]
    assert table.input_bytes == 4 * 3 * 8 * 8 and "Trained too: clip." in table.notes
