"""Published diffusion models with their frozen encoders."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from paceline import Strategy, predict
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.catalogue import canonical
from paceline.workload.layers import FROZEN
from paceline.workload.pipelines import kept_index, parts, pipelines, published

PUBLISHED = {
    "stable-diffusion-1.5": 859_520_964,  # the released weights, as those below
    "stable-diffusion-2.1": 865_910_724,
    "sdxl": 2_567_463_684,
    "sd3.5-large": 8_056_627_520,
    "flux.1-dev": 11_901_408_320,
    "wan2.1-t2v-1.3b": 1_418_996_800,
    "wan2.1-t2v-14b": 14_288_491_584,
    "cogvideox-5b": 5_570_283_072,
    "qwen-image": 20_430_401_088,
}
SD35_LARGE = {
    "_class_name": "SD3Transformer2DModel",
    "num_attention_heads": 38,
    "num_layers": 38,
    "joint_attention_dim": 4096,
    "sample_size": 128,
}


def test_denoisers_have_the_published_parameters() -> None:
    assert {name: kept_index()[name][0] for name in PUBLISHED} == PUBLISHED
    assert set(kept_index()) == set(pipelines())


def test_encoders_have_the_published_parameters() -> None:
    """T5 v1.1 XXL (Raffel et al. 2020): 4.76 B. CLIP ViT-L's text tower: 123 M. Autoencoder of Stable Diffusion: 83.65 M."""
    table = Workload.named("stable-diffusion-1.5")
    assert table.resident == 123_060_480 + 83_653_863
    assert Workload.named("flux.1-dev").resident == 123_060_480 + 4_762_310_656 + 83_819_683
    assert Workload.named("wan2.1-t2v-1.3b").resident == 5_680_910_336 + 126_892_531
    assert Workload.named("sdxl", inputs="cached").resident == 0
    assert Workload.named("sdxl", inputs="cached-text").resident == 83_653_863
    assert table.num_parameters == PUBLISHED["stable-diffusion-1.5"]


def test_encoders_run_forward_alone() -> None:
    """A block of width d has 2 * 12 d^2 FLOPs a token, and 4 d for each pair of tokens; a causal kernel counts all pairs."""
    table = Workload.named("stable-diffusion-1.5")
    frozen = {layer.name: layer for layer in table.layers if layer.kind == FROZEN}
    clip = frozen["encoders.clip-l"]
    assert clip.flops_forward == 12 * (2 * 12 * 768**2 * 77 + 4 * 77**2 * 768)
    assert all(layer.flops_backward == 0 == layer.kept_bytes("autocast") for layer in frozen.values())
    vae = frozen["encoders.vae-sd"].flops_forward
    assert vae == pytest.approx(1.117e12, rel=0.01)  # torch's counter on AutoencoderKL.encode, 512 x 512
    cached = Workload.named("stable-diffusion-1.5", inputs="cached")
    assert table.flops_forward == cached.flops_forward + clip.flops_forward + vae


def test_larger_images_are_more_work_and_the_same_parameters() -> None:
    small, large = (Workload.named("flux.1-dev", inputs=f"{side}px,cached") for side in (512, 1024))
    assert small.num_parameters == large.num_parameters and "1024 tokens" in small.sample
    products = [
        table.flops_forward - 57 * 4 * 3072 * (512 + side * side // 256) ** 2  # without attention of image and text
        for table, side in ((small, 512), (large, 1024))
    ]
    assert products[1] / products[0] == pytest.approx((512 + 4096) / (512 + 1024), rel=0.01)


def test_a_trained_text_encoder_gets_its_gradients_last() -> None:
    table = Workload.named("stable-diffusion-1.5", inputs="train-text")
    assert table.num_parameters == PUBLISHED["stable-diffusion-1.5"] + 123_060_480 and table.resident == 83_653_863
    first = next(p for p in table.ready_order if p.name.startswith("clip-l."))
    assert first.ready == sum(not p.name.startswith("clip-l.") for p in table.parameters)
    assert [p.ready for p in table.ready_order] == list(range(len(table.parameters)))
    assert all(0 <= p.layer < len(table.layers) for p in table.parameters)
    with pytest.raises(UserError, match="no CLIP text encoder"):
        Workload.named("pixart-sigma", inputs="train-text")


def test_adapters_are_those_of_the_denoiser() -> None:
    table = Workload.named("flux.1-dev", lora="r=4,targets=all-linear")
    assert table.resident == Workload.named("flux.1-dev").resident and table.frozen == PUBLISHED["flux.1-dev"]
    assert not any(p.name.startswith("encoders") for p in table.parameters)


def test_names_of_a_benchmark_mean_the_published_model_where_it_is_fine_tuned() -> None:
    plain = Workload.named("flux1")
    assert plain.resident == 0 and plain.notes == ()
    assert Workload.named("flux1", lora="r=4").name.startswith("flux.1-dev")
    assert Workload.named("stable-diffusion", inputs="512px").name == "stable-diffusion-2.1"
    names = ("black-forest-labs/FLUX.1-dev", "stable-diffusion-xl", "stabilityai/stable-diffusion-xl-base-1.0", "SD3.5")
    assert [canonical(name) for name in names] == ["flux.1-dev", "sdxl", "sdxl", "sd3.5-large"]


def test_every_device_holds_encoders_whole() -> None:
    flux = Workload.named("flux.1-dev", lora="r=4")
    strategy = {"global_batch_size": 4, "precision": "bf16"}
    one, shared = (
        predict(flux, "4 A100", Strategy.of(world_size=4, **strategy, **more)) for more in ({}, {"sharding": "zero3"})
    )
    assert one.memory["encoders"] == shared.memory["encoders"] == 2 * flux.resident
    assert shared.memory["frozen weights"] == pytest.approx(one.memory["frozen weights"] / 4, rel=0.01)


@pytest.mark.parametrize(
    ("more", "published_gb"),
    [({}, 27.5), ({"lora": "r=16,targets=all-linear"}, 15.5)],
)
def test_memory_of_a_published_run(more: dict[str, str], published_gb: float) -> None:
    """PEFT's README of February 2023: DreamBooth with a class image next to each, text encoder trained, fp32. Attention had no
    fused kernel in diffusers then."""
    table = Workload.named("stable-diffusion-1.5", inputs="512px,train-text", fused_attention=False, **more)
    needed = predict(table, "A100", Strategy.of(world_size=1, global_batch_size=2, precision="fp32")).memory_bytes
    assert needed / 1e9 == pytest.approx(published_gb, rel=0.08)


def test_a_file_that_leaves_values_out_takes_those_of_the_published_model() -> None:
    table = Workload.from_config(SD35_LARGE, name="mine")
    assert table.num_parameters == PUBLISHED["sd3.5-large"]
    assert table.notes[0] == "mine has the values of sd3.5-large; those that it leaves out are taken from there."
    assert not published(SD35_LARGE | {"num_layers": 37}) and not published({"_class_name": "SD3Transformer2DModel"})
    assert published(json.loads(json.dumps(dict(pipelines()["sdxl"].denoiser)))) == "sdxl"


def test_sizes_are_refused_with_what_is_kept() -> None:
    with pytest.raises(UserError, match="no sequence length"):
        Workload.named("sdxl", 512)
    with pytest.raises(UserError, match=r"--input tokens for sdxl"):
        Workload.named("sdxl", inputs="tokens:77")


@pytest.mark.long
def test_sizes_that_latents_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="multiples of 16 pixels" if find_spec("diffusers") else "kept for 512x512, 1024x1024"):
        Workload.named("flux.1-dev", inputs="520x512")
    with pytest.raises(UserError, match="makes images" if find_spec("diffusers") else "kept for"):
        Workload.named("sdxl", inputs="9x512x512")


def test_every_part_is_of_some_pipeline() -> None:
    used = {part for entry in pipelines().values() for part in (*entry.text, entry.autoencoder)}
    assert used == set(parts())


def test_a_size_of_another_network_is_refused_and_of_an_unknown_one_its_name() -> None:
    with pytest.raises(UserError, match="--input for llama-3-8b, whose input has one size"):
        Workload.named("llama-3-8b", inputs="512px")
    with pytest.raises(UserError, match=r"unknown workload 'sdxxl'.*sdxl"):
        Workload.named("sdxxl", inputs="512px")
