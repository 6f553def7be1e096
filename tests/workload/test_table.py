"""The tables that come with the package: equal to the modules, and to what was published about them."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from each_row import each_row
from paceline.errors import UserError
from paceline.models import REGISTRY, build, model
from paceline.models.speech.tacotron2 import CHARACTERS, FRAMES, Tacotron2
from paceline.models.tables import ZOO, fresh, main, render
from paceline.models.vision.detection import MaskRcnn, RetinaNet
from paceline.workload import Workload, names
from paceline.workload.catalogue import traced
from paceline.workload.tracing.fused import fused_kernels
from traced_layers import work
from wrong_types import wrong_types

GIGA = 1e9
FIELDS = ("flops", "bytes", "fixed_bytes", "calls")


@dataclass(frozen=True)
class Published:
    """``parameters`` is exact. ``flops`` is of the forward pass, a multiply-add being two, within ``tolerance``."""

    parameters: int
    flops: float
    tolerance: float
    citation: str


PUBLISHED = {
    "lenet5": Published(431_080, 4586e3, 0.001, "Han et al. 2015, table 3: 431K, 4586K FLOP"),
    "cifar10-terngrad": Published(
        1_068_298, 2 * 19.5e6, 0.06, "TensorFlow CIFAR-10 tutorial: 1,068,298 parameters, about 19.5M multiply-adds"
    ),
    "alexnet": Published(60_965_224, 1.45 * GIGA, 0.02, "Han et al. 2015, table 4: 61M, 1.5B FLOP (sum of its rows)"),
    "vgg-a": Published(132_863_336, 2 * 7.61 * GIGA, 0.01, "arXiv:1409.1556: 133M; torchvision vgg11: 7.61 GMAC"),
    "vgg-16": Published(138_357_544, 30.9 * GIGA, 0.02, "Han et al. 2015, table 5: 138M, 30.9B FLOP"),
    "googlenet": Published(
        6_998_552,
        2 * (1.502 - 0.034 + 0.118) * GIGA,
        0.02,
        "arXiv:1409.4842, table 1: sum of its rows, with conv1 as the full 7x7 it is (118M, not 34M)",
    ),
    "resnet-50": Published(25_557_032, 2 * 4.09 * GIGA, 0.01, "torchvision resnet50 (v1.5): 25,557,032, 4.09 GMAC"),
    "bert-base": Published(
        109_514_298,
        22.5 * GIGA + 2 * 128 * 768 * (768 + 30522),
        0.02,
        "Sun et al. 2020 (MobileBERT), table 1: 22.5B at 128 tokens; plus the head",
    ),
    "bert-large": Published(
        335_174_458,
        128 * 24 * (24 * 1024**2 + 4 * 128 * 1024) + 2 * 128 * 1024 * (1024 + 30522),
        0.001,
        "arXiv:1810.04805: 340M; FLOPs a token and layer 24 d^2 + 4 s d (Narayanan et al. 2021); plus the head",
    ),
    "inception-v3": Published(23_834_568, 2 * 5.71 * GIGA, 0.01, "torchvision inception_v3 without its auxiliary head"),
    "resnet-18-cifar": Published(11_173_962, 2 * 0.556 * GIGA, 0.01, "kuangliu/pytorch-cifar: 11.17M, 0.56 GMAC"),
    "resnet-18": Published(11_689_512, 2 * 1.81 * GIGA, 0.01, "torchvision resnet18: 1.81 GMAC"),
    "resnet-34": Published(21_797_672, 2 * 3.66 * GIGA, 0.01, "torchvision resnet34: 3.66 GMAC"),
    "resnet-101": Published(44_549_160, 2 * 7.80 * GIGA, 0.01, "torchvision resnet101: 7.80 GMAC"),
    "resnext-101": Published(44_177_704, 2 * 8.01 * GIGA, 0.01, "timm resnext101_32x4d: 44.18M, 8.01 GMAC"),
    "resnet-152": Published(60_192_808, 2 * 11.51 * GIGA, 0.01, "torchvision resnet152: 11.51 GMAC"),
    "yolov3": Published(
        61_949_149 - 180 * (1024 + 512 + 256 + 3),
        65.86 * GIGA * (448 / 416) ** 2,
        0.01,
        "61,949,149 with 80 classes, 65.86 GFLOP at 416 (arXiv:1804.02767, ultralytics/yolov3); 180 numbers a place less",
    ),
    "ncf": Published(
        (6040 + 3706) * 5 * 32 + 256 * 128 + 128 * 64 + 64 * 32 + 128 + 64 + 32 + 65,
        2 * (43008 + 64),
        0.001,
        "arXiv:1708.05031, section 4.1: a tower of 32 to 256 on MovieLens-1M, 6,040 users, 3,706 items",
    ),
    "gpt2": Published(
        124_439_808,
        1024 * (2 * (124_439_808 - 1024 * 768) + 4 * 12 * 768 * 1024),
        0.01,
        "released weights; Chowdhery et al. 2022 (PaLM), appendix B: 2N + 4 L H Q T a token, N without positions",
    ),
}

# FLOPs, bytes and fixed bytes (each forward, backward), activation bytes, and ATen operations (forward, backward), as
# counted when a layer was one sum a pass. A convolution's two gradients were one operation.
SUMS = {
    "alexnet": (1_448_813_632, 2_686_796_864, 41_937_420, 95_541_460, 243_860_920, 487_679_532, 12_458_420, 36, 59),
    "bert-base": (28_499_116_032, 57_300_221_952, 264_531_968, 546_354_176, 437_666_336, 1_249_920_532, 95_651_840, 183, 354),
    "bert-large": (
        87_189_618_688,
        175_184_543_744,
        617_164_800,
        1_237_414_912,
        1_340_176_192,
        3_179_402_036,
        226_248_704,
        351,
        690,
    ),
    "cifar10-terngrad": (36_941_568, 68_353_536, 2_062_200, 4_338_760, 4_273_216, 8_543_540, 635_952, 27, 50),
    "googlenet": (3_165_343_744, 6_094_659_584, 144_360_672, 290_867_336, 27_994_232, 55_955_308, 48_212_584, 155, 192),
    "gpt2": (291_648_307_200, 602_623_967_232, 2_251_780_096, 4_849_389_568, 504_067_384, 1_615_898_924, 836_595_712, 153, 275),
    "hdc": (2_794_000, 4_804_000, 43_256, 81_464, 5_598_064, 9_618_052, 13_184, 13, 25),
    "lenet5": (4_586_000, 8_596_000, 187_896, 269_704, 1_724_344, 3_446_332, 108_224, 9, 14),
    "resnet-50": (8_178_368_512, 16_120_709_120, 325_168_864, 454_550_792, 102_653_960, 204_770_988, 85_913_512, 229, 179),
    "vgg-16": (30_940_528_640, 61_707_649_024, 242_065_120, 356_717_832, 553_430_200, 1_106_806_700, 73_234_344, 40, 47),
    "vgg-a": (15_218_180_096, 30_262_951_936, 144_121_568, 209_802_504, 531_453_368, 1_062_858_924, 48_748_456, 30, 37),
}

# Szegedy et al., table 1: multiply-adds in millions. Its rows do not follow exactly from its own widths: 5a is 5 % off.
GOOGLENET_STAGES = {"3a": 128, "3b": 304, "4a": 73, "4b": 88, "4c": 100, "4d": 119, "4e": 170, "5a": 54, "5b": 71}


# The deeper of a family, which say nothing that the others do not; `python -m paceline.models.tables --check` traces them too.
DEEPER = ("resnet-34", "resnet-101", "resnet-152", "resnext-101", "bert-large")
# Of many steps that torch traces one by one; a test of few steps is below. And of many blocks.
LOOPED = ("tacotron2", "flux1")


def cases(*left_out: str) -> list[str]:
    """Return the networks of the registry but for these."""
    return [name for name in REGISTRY if name not in left_out]


@pytest.mark.everyday(
    "lenet5",
    "alexnet",
    "vgg-a",
    "conv-m-small",
    "resnet-18",
    "unet3d",
    "ncf",
    "gnmt",
    "deepspeech2",
    "rnnt",
    "bert-base",
    others="long",
)
@pytest.mark.parametrize("name", cases(*DEEPER, *LOOPED))
def test_table_is_that_of_the_module(name: str) -> None:
    assert Workload.named(name) == fresh(name), "run python -m paceline.models.tables"


def test_every_name_has_a_model_and_a_table() -> None:
    assert set(traced()) == set(REGISTRY) <= set(names())


@pytest.mark.parametrize("name", REGISTRY)
def test_layers_and_parameters_are_those_of_the_module_in_its_order(name: str) -> None:
    with torch.device("meta"):
        module = build(name)
    expected = [(n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad]
    table = Workload.named(name)
    assert [(p.name, p.shape) for p in table.parameters] == expected
    assert sorted(p.ready for p in table.parameters) == list(range(len(expected)))
    kinds = {path or "(model)": type(part).__name__ for path, part in module.named_modules()} | {"loss": "loss"}
    assert [(layer.name, layer.kind) for layer in table.layers] == [(x.name, kinds.get(x.name)) for x in table.layers]


@each_row("name", PUBLISHED)
def test_totals_are_the_published_ones(name: str) -> None:
    table, published = Workload.named(name), PUBLISHED[name]
    assert table.num_parameters == published.parameters, published.citation
    assert table.flops_forward == pytest.approx(published.flops, rel=published.tolerance), published.citation


def elements(name: str) -> int:
    """Parameters of the module, frozen ones too."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(name).parameters())


def test_detectors_are_those_of_torchvision_but_for_their_classes() -> None:
    with torch.device("meta"):
        retina, mask = RetinaNet(groups=1, classes=91), MaskRcnn(91)
    assert sum(p.numel() for p in retina.parameters()) == 34_014_999  # retinanet_resnet50_fpn
    assert sum(p.numel() for p in mask.parameters()) == 44_401_393  # maskrcnn_resnet50_fpn
    # The bodies of resnext50_32x4d and of resnet50, both less the classifier and the normalisation.
    narrow = 34_014_999 + (25_028_904 - 2_049_000 - 68_224) - (25_557_032 - 2_049_000 - 53_120)
    assert elements("retinanet") == narrow + 9 * (264 - 91) * (9 * 256 + 1)
    assert elements("mask-rcnn") == 44_401_393 - 10 * (5 * 1025 + 257)
    # The frozen stem and first stage, of either width.
    assert elements("mask-rcnn") - Workload.named("mask-rcnn").num_parameters == 3 * 64 * 49 + 212_992
    # MMDetection: 258 GMAC at 1280x800, where 1,000 proposals are boxes and 100 masks.
    assert Workload.named("mask-rcnn").flops_forward == pytest.approx(2 * 258e9, rel=0.1)


@pytest.mark.parametrize(
    ("name", "depth", "first"),
    # Of torchvision, less the classifier and the last stage.
    [("ssd-resnet34", 21_797_672 - 513_000 - 13_114_368, 256), ("ssd-resnet50", 25_557_032 - 2_049_000 - 14_964_736, 1024)],
)
def test_ssd_has_8732_boxes_on_three_stages_of_a_residual_body(name: str, depth: int, first: int) -> None:
    with torch.device("meta"):
        module = build(name)
        offsets, classes = module(torch.empty(2, 3, 300, 300))
        body = sum(p.numel() for p in module.get_submodule("body").parameters())
    assert offsets.shape == (2, 4, 8732) and classes.shape == (2, 81, 8732)
    assert body == depth
    maps = sum(
        size**2 * boxes * width
        for size, boxes, width in zip((38, 19, 10, 5, 3, 1), (4, 6, 6, 6, 4, 4), (first, 512, 512, 256, 256, 256), strict=True)
    )
    heads = [x for x in Workload.named(name).layers if x.name.startswith(("offsets", "classes"))]
    assert sum(x.flops_forward for x in heads) == 2 * 9 * 85 * maps


def test_recurrent_networks_have_the_published_widths() -> None:
    gates = 8 * 1024 * (1024 + 1024 + 2)  # of an LSTM of 1024 units, both matrices and biases; half of it one way
    wider = 4 * 1024 * (2048 + 1024 + 2)
    attention = 2 * 1024**2 + 2 * 1024 + 1
    decoder = gates // 2 + 3 * wider + attention
    assert Workload.named("gnmt").num_parameters == 2 * 32317 * 1024 + 32317 + 2 * gates + wider + decoder
    units = [6 * 800 * (inputs + 800 + 2) for inputs in (32 * 41, *[800] * 4)]  # three gates, two ways
    conv = 32 * 41 * 11 + 32 * 32 * 21 * 11 + 2 * 32 * 3
    assert Workload.named("deepspeech2").num_parameters == conv + sum(units) + 4 * 1600 + 1600 + 800 * 29


def test_transformer_xl_has_the_published_sizes() -> None:
    """192 M: NVIDIA DeepLearningExamples, Transformer-XL, base. 285 M: the released large network (transfo-xl-wt103)."""
    assert Workload.named("txl-base").num_parameters == pytest.approx(192e6, rel=0.002)
    assert Workload.named("txl-large").num_parameters == pytest.approx(285e6, rel=0.002)
    for size, words, width, blocks in (("base", 192, 512, 16), ("large", 256, 1024, 18)):
        whole = Workload.named(f"txl-{size}-softmax")
        body = blocks * (5 * width**2 + 8 * width**2)  # queries, keys, values, places, sums; the feed-forward network
        assert whole.num_parameters == pytest.approx(267735 * (width + 1) + body, rel=0.002)
        # Of a segment: queries, keys and values of two segments; the scores' three products; the whole vocabulary.
        attends = words * (2 * 3 * width**2 + width**2) + 3 * words * 2 * words * width
        products = blocks * (attends + words * 8 * width**2) + words * 267735 * width
        assert whole.flops_forward == pytest.approx(2 * products, rel=0.001)


def test_waveglow_has_the_published_size() -> None:
    """268 M: NVIDIA, WaveGlow, the released weights (waveglow_1076430_14000_amp)."""
    assert Workload.named("waveglow").num_parameters == pytest.approx(268e6, rel=0.001)


@pytest.mark.long
def test_tacotron_2_has_the_published_size_and_the_work_of_each_frame() -> None:
    """28.2 M: the released weights (nvidia_tacotron2pyt). Every frame adds the same work, so few of them say what all have."""
    table = Workload.named("tacotron2")
    assert table.num_parameters == 28_193_153
    text = torch.zeros((1, CHARACTERS), dtype=torch.int64)
    few, more = (Workload.trace(lambda frames=frames: Tacotron2(frames), text) for frames in (4, 8))
    for first, second, whole in zip(few.layers, more.layers, table.layers, strict=True):
        assert (first.name, first.kind) == (whole.name, whole.kind)
        for figure in (*(f"{of}_{p}" for of in FIELDS for p in ("forward", "backward")), "activation_bytes"):
            small, large = work(first, figure), work(second, figure)
            assert work(whole, figure) == pytest.approx(small + (large - small) * (FRAMES - 4) / 4, rel=1e-6), whole.name
    cells = [layer for layer in table.layers if layer.kind == "LSTMCell"]
    assert [layer.turns for layer in cells] == [FRAMES, FRAMES]
    assert [work(layer, "calls_forward") for layer in cells] == [3 * FRAMES, 3 * FRAMES]  # two products and the gates
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), counter:
        Tacotron2(4)(torch.zeros((2, CHARACTERS), dtype=torch.int64))
    assert 2 * few.flops_forward == counter.get_total_flops()


def test_the_networks_of_later_rounds_have_the_published_sizes() -> None:
    """FLUX.1-schnell: the released weights. R-GAT: 25 M (mlcommons/training, graph_neural_network). RNN-T: 49 M (MLPerf)."""
    flux = Workload.named("flux1")
    assert flux.num_parameters == 11_891_178_560
    blocks = 19 * 2 * 256 * (4 + 8) * 3072**2 + 38 * 512 * (7 + 5) * 3072**2  # products over the tokens
    modulation = (19 * 12 + 38 * 3) * 3072**2
    attention = (19 + 38) * 2 * 512 * 512 * 3072
    assert flux.flops_forward == pytest.approx(2 * (blocks + modulation + attention), rel=0.003)
    assert Workload.named("rgat").num_parameters == pytest.approx(25e6, rel=0.02)
    speech = Workload.named("rnnt")
    assert speech.num_parameters == pytest.approx(49e6, rel=0.001)
    joint = next(layer for layer in speech.layers if layer.name == "head")
    assert joint.flops_forward == 2 * 205 * 61 * 512 * 1024


def test_each_layer_of_a_graph_network_computes_what_the_next_one_reads() -> None:
    attention = [layer for layer in Workload.named("rgat").layers if layer.kind == "GraphAttention"]
    moved = [
        sum(o.bytes for layer in attention if layer.name.startswith(f"layers.{i}.") for o in layer.operations) for i in range(3)
    ]
    assert moved[0] > 4 * moved[1] > 16 * moved[2] > 0


def test_stable_diffusion_has_the_released_size() -> None:
    """865.91 M: stabilityai/stable-diffusion-2-base, unet."""
    assert Workload.named("stable-diffusion").num_parameters == 865_910_724
    attention = [o for layer in Workload.named("stable-diffusion").layers for o in layer.operations if o.kind == "attention"]
    assert {(o.m, o.n) for o in attention} == {(s, t) for s in (4096, 1024, 256) for t in (s, 77)} | {(64, 64), (64, 77)}


def test_unet3d_is_that_of_nnu_net() -> None:
    """31.2 M parameters: NVIDIA DeepLearningExamples, PyTorch/Segmentation/nnUNet, 3D."""
    assert Workload.named("unet3d").num_parameters == pytest.approx(31.2e6, rel=0.001)


@pytest.mark.parametrize("name", SUMS)
def test_operations_add_up_to_the_sums_counted_before_there_were_any(name: str) -> None:
    layers = Workload.named(name).layers
    totals = [sum(work(layer, f"{f}_{p}") for layer in layers) for f in FIELDS for p in ("forward", "backward")]
    kept = sum(layer.activation_bytes for layer in layers)
    both = sum(o.kind == "conv" and o.backward and o.grows == "m" for layer in layers for o in layer.operations)
    assert (*totals[:6], kept, totals[6], totals[7] - both) == SUMS[name]


@pytest.mark.parametrize("name", REGISTRY)
def test_shapes_account_for_the_flops(name: str) -> None:
    for operation in (o for layer in Workload.named(name).layers for o in layer.operations):
        product = 2 * operation.m * operation.n * operation.k * operation.batch * operation.calls
        if operation.kind == "attention":
            assert operation.flops == product * (5 if operation.backward else 2)
        else:
            assert operation.flops == pytest.approx(product, rel=1e-12)
        assert (operation.grows == "") == (operation.kind == "memory")


def test_hdc_is_five_hidden_layers_of_500() -> None:
    table = Workload.named("hdc")
    assert table.num_parameters == 784 * 500 + 500 + 4 * (500 * 500 + 500) + 500 * 10 + 10
    assert table.flops_forward == 2 * (784 * 500 + 4 * 500 * 500 + 500 * 10)


@pytest.mark.parametrize(("stage", "millions"), GOOGLENET_STAGES.items())
def test_googlenet_stage_by_stage(stage: str, millions: int) -> None:
    layers = [layer for layer in Workload.named("googlenet").layers if layer.name.startswith(f"inception{stage}.")]
    assert sum(layer.flops_forward for layer in layers) / 2e6 == pytest.approx(millions, rel=0.06)


def test_resnet_50_layer_count_and_sizes() -> None:
    layers = Workload.named("resnet-50").layers
    assert sum(layer.kind in ("Conv2d", "Linear") for layer in layers) == 50 + 4  # and four projections
    assert [layer.name for layer in layers][:4] == ["conv1", "bn1", "relu", "pool1"]
    assert layers[-1].name == "loss"


RECURRENT = ("deepspeech2", "gnmt", "rnnt")


def compare_with_torch(name: str, table: Workload, batch: Tensor) -> None:
    """Count the FLOPs of the module for a ``batch`` of two, forward and backward."""
    # Torch counts a recurrent layer by its steps, not as the one kernel that a GPU has for it.
    with torch.device("meta"), nullcontext() if name in RECURRENT else fused_kernels():
        module = build(name)
        counter = FlopCounterMode(display=False)
        with counter:
            output = module(batch)
        assert 2 * table.flops_forward == counter.get_total_flops()
        if name in ("alexnet", "retinanet", "resnext-101"):
            return  # torch counts the weight gradient of a grouped convolution as if it had one group
        counter = FlopCounterMode(display=False)
        with counter:
            sum((part.mean() for part in (output if isinstance(output, tuple) else (output,))), torch.zeros(())).backward()
    assert 2 * (table.flops_per_sample - table.flops_forward) == counter.get_total_flops()


@pytest.mark.everyday("lenet5", "alexnet", "resnet-18-cifar", "unet3d", "ncf", "bert-base")
@pytest.mark.parametrize("name", cases(*DEEPER, *LOOPED, *RECURRENT))
def test_flops_are_those_that_torch_counts(name: str) -> None:
    compare_with_torch(name, Workload.named(name), model(name).input.example(2, "meta"))


@pytest.mark.everyday("gnmt")
@pytest.mark.parametrize("name", RECURRENT)
def test_flops_of_few_steps_are_those_that_torch_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch traces recurrent layers step by step; each step adds the same work."""
    monkeypatch.setattr(sys.modules["paceline.models.speech.rnnt"], "PIECES", 3)
    entry = model(name)
    few = {"deepspeech2": (..., slice(8)), "gnmt": (..., slice(5)), "rnnt": (slice(None), slice(8))}[name]
    table = Workload.trace(entry.function, entry.input.example(1, "meta")[few], loss=entry.loss)
    compare_with_torch(name, table, entry.input.example(2, "meta")[few])


@pytest.mark.full
@pytest.mark.parametrize(("name", "steps"), [("gnmt", None), ("rnnt", 100)])
def test_flops_of_many_steps_are_those_that_torch_counts(name: str, steps: int | None) -> None:
    """Of rnnt's 410 steps a hundred, which take as many seconds less as each is alike."""
    entry = model(name)
    table = Workload.trace(entry.function, entry.input.example(1, "meta")[:, :steps], loss=entry.loss)
    compare_with_torch(name, table if steps else Workload.named(name), entry.input.example(2, "meta")[:, :steps])


@pytest.mark.parametrize("name", REGISTRY)
def test_every_operation_is_known(name: str) -> None:
    coverage = Workload.named(name).coverage
    assert coverage.share == 1.0 and not coverage.unknown and coverage.ops > 20


def test_json_round_trip_and_size() -> None:
    for name in traced():
        table = Workload.named(name)
        assert Workload.from_json(table.to_json()) == table
        assert (ZOO / f"{name}.json").stat().st_size < 300_000


def test_writing_tables_again_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "lenet5", "hdc"]) == 0
    assert render(Workload.named("lenet5")) == (ZOO / "lenet5.json").read_text(encoding="utf-8")


def test_gpt2_head_is_tied_and_counted_once() -> None:
    table = Workload.named("gpt2")
    assert "head.weight" not in [p.name for p in table.parameters]
    head = next(layer for layer in table.layers if layer.name == "head")
    assert head.flops_forward == 2 * 1024 * 768 * 50257
    tokens = table.parameters[0]
    assert tokens.name == "tokens.weight" and table.layers[tokens.layer].kind == "Embedding"
    # Its gradient is complete only when the embedding, the first layer, has run backward.
    assert tokens.ready >= len(table.parameters) - 2


@pytest.mark.everyday("hdc", "googlenet")
@pytest.mark.parametrize("name", ["hdc", "alexnet", "resnet-50", "googlenet"])
def test_first_loss_is_that_of_a_guess(name: str) -> None:
    torch.manual_seed(0)
    logits = build(name)(model(name).input.example(2)).detach()
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(math.log(logits.shape[1]), rel=0.1)


@pytest.mark.everyday("lenet5")
@pytest.mark.parametrize("name", ["lenet5", "cifar10-terngrad", "hdc"])
def test_small_networks_train(name: str) -> None:
    torch.manual_seed(0)
    module, entry = build(name), model(name)
    data, labels = entry.input.example(8), torch.randint(10, (8,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(data), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("given", wrong_types(), ids=lambda value: type(value).__name__)
def test_a_workload_of_something_else_is_one_line(given: object) -> None:
    with pytest.raises(UserError, match=r"^Workload\(.*\) is not a layer table; use Workload\.named.*from_config") as error:
        Workload(given)  # type: ignore[call-arg, misc]
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("given", [{}, {"name": "x"}, {"nmae": "x"}])
def test_a_workload_of_too_few_or_unknown_attributes_is_one_line(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is not a layer table"):
        Workload(**given)


def test_a_workload_is_copied_and_pickled_as_any_value() -> None:
    lenet = Workload.named("lenet5")
    for other in (copy.deepcopy(lenet), pickle.loads(pickle.dumps(lenet)), replace(lenet), Workload.of(lenet)):
        assert other == lenet and type(other) is Workload
    assert replace(lenet, name="other").name == "other"
