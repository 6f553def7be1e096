"""The precision that is taken where nobody says one: what people use on that device for that network."""

from __future__ import annotations

from dataclasses import replace

import pytest

import paceline
from paceline import hardware
from paceline.planning import Space, TrainingTarget
from paceline.planning.search.candidates import candidates
from paceline.planning.search.tally import Exclusions
from paceline.prediction import Predictor
from paceline.strategy.usual_precision import usual_precision
from paceline.verbs import strategy_of
from paceline.workload import Workload

USUAL = (
    ("llama-3-8b", "A100", "bf16"),
    ("llama-3-8b", "H100", "bf16"),
    ("llama-3-8b", "B200", "bf16"),
    ("llama-3-8b", "RTX 3090", "bf16"),
    ("llama-3-8b", "MI250X", "bf16"),
    ("llama-3-8b", "MI300X", "bf16"),
    ("llama-3-8b", "Gaudi 3", "bf16"),
    ("llama-3-8b", "Trainium 2", "bf16"),
    ("llama-3-8b", "TPU v5e", "bf16"),
    ("bert-large", "V100", "fp16"),  # matrix units without bf16
    ("bert-large", "T4", "fp16"),
    ("bert-large", "RTX 2060", "fp16"),
    ("bert-large", "P100 SXM2", "fp32"),  # packed products on ordinary cores
    ("bert-large", "K80", "fp32"),
    ("bert-large", "Xeon Platinum 8380", "fp32"),
    ("resnet-50", "A100", "tf32"),  # cudnn.allow_tf32
    ("resnet-50", "H100", "tf32"),
    ("resnet-50", "V100", "fp32"),
    ("resnet-50", "MI300X", "fp32"),  # MIOpen has no tf32 for convolutions
    ("resnet-50", "TPU v4", "bf16"),
    ("resnet-50", "IPU Bow", "fp16"),
    ("mamba2-1.3b", "A100", "bf16"),
    ("rwkv-4-3b", "V100", "fp16"),
    ("timm/swin_base_patch4_window7_224", "A100", "bf16"),
    ("txl-base", "A100", "bf16"),
    ("gnmt", "A100", "tf32"),  # LSTM by cuDNN
    ("dlrm", "A100", "fp32"),  # products alone: torch.backends.cuda.matmul.allow_tf32 is off
)


@pytest.mark.parametrize(("network", "device", "precision"), USUAL)
def test_what_people_use(network: str, device: str, precision: str) -> None:
    usual = usual_precision(Workload.named(network), hardware.device(device))
    assert usual.name == precision and hardware.device(device).name in usual.reason


@pytest.mark.parametrize(("share", "precision"), [(0.45, "fp32"), (0.55, "tf32")])
def test_what_most_of_the_work_is_decides(share: float, precision: str) -> None:
    """A network of which nearly such a share of the operations are convolutions."""
    whole = Workload.named("resnet-50")
    left, layers = share * whole.flops_per_sample, []
    for layer in whole.layers:
        flops = sum(operation.flops for operation in layer.operations)
        stays, left = flops <= left, left - flops * (flops <= left)
        products = tuple(replace(operation, kind="matmul") for operation in layer.operations)
        layers.append(layer if stays else replace(layer, operations=products))
    assert left < 0.02 * whole.flops_per_sample
    assert usual_precision(replace(whole, layers=tuple(layers)), hardware.device("A100")).name == precision


def test_every_network_has_one_on_every_device() -> None:
    for network in ("llama-3-8b", "resnet-50", "dlrm"):
        for device in hardware.devices():
            assert usual_precision(Workload.named(network), device).name in device.precisions


@pytest.mark.parametrize(("network", "device", "precision"), [case for case in USUAL if case[0] in ("bert-large", "resnet-50")])
def test_the_verbs_take_it(network: str, device: str, precision: str) -> None:
    assert paceline.predict(network, device, global_batch_size=8).strategy["precision"] == precision


def test_whatif_takes_that_of_another_device_where_none_was_given() -> None:
    job = ("bert-large", "A100")
    taken = paceline.whatif(*job, changes="device=V100", global_batch_size=8).changes[0]
    assert (taken.title, taken.strategy.precision) == ("device=V100, fp16", "fp16")
    with pytest.raises(paceline.UserError, match="V100 SXM2 16GB 'bf16'"):
        paceline.whatif(*job, changes="device=V100", global_batch_size=8, precision="bf16")


@pytest.mark.long
def test_a_plan_tries_nothing_wider() -> None:
    clusters = (hardware.cluster("A100"), hardware.cluster("V100"))
    tried = {
        (name, machines.device.name[:4], strategy.precision)
        for name in ("bert-large", "resnet-50")
        for machines, strategy in candidates(Space(clusters=clusters), TrainingTarget(), Exclusions(), Workload.named(name))
    }
    assert tried == {
        ("bert-large", "A100", "bf16"),
        ("bert-large", "V100", "fp16"),
        ("resnet-50", "A100", "tf32"),
        ("resnet-50", "A100", "bf16"),
        ("resnet-50", "V100", "fp32"),
        ("resnet-50", "V100", "fp16"),
    }
    named = Space(clusters=clusters, precisions=("fp32",))
    assert {s.precision for _, s in candidates(named, TrainingTarget(), Exclusions(), Workload.named("bert-large"))} == {"fp32"}


TAKEN = (
    ({}, {"optimizer": "adamw_8bit", "recompute": "full", "offload": "checkpoints"}),
    ({"recompute": "none"}, {"optimizer": "adamw_8bit", "recompute": "none", "offload": "none"}),  # nothing to offload
    ({"optimizer": "lion"}, {"optimizer": "lion", "recompute": "full", "offload": "checkpoints"}),
    ({"update": "foreach", "offload": "none"}, {"optimizer": "", "recompute": "full", "offload": "none"}),
)


@pytest.mark.parametrize(("named", "taken"), TAKEN)
def test_examples_of_a_framework_fill_what_nobody_names(named: dict[str, str], taken: dict[str, str]) -> None:
    device, choices = hardware.cluster("RTX 4090"), {"global_batch_size": 2, "precision": "bf16", **named}
    unsloth = strategy_of(Workload.named("llama-3-8b", 512, lora="qlora"), device, choices, Predictor(framework="unsloth"))
    assert {name: unsloth.choice(name) for name in taken} == taken
    images = strategy_of(Workload.named("resnet-50"), device, choices, Predictor(framework="unsloth"))
    assert images.choice("recompute") == "none" and images.optimizer == named.get("optimizer", "")


@pytest.mark.parametrize(("framework", "recompute"), [("ordinary", "full"), ("lightning", "none"), ("hf-trainer", "full")])
def test_blocks_are_recomputed_next_to_four_bits_unless_examples_do_not(framework: str, recompute: str) -> None:
    network, choices = Workload.named("llama-3-8b", 512, lora="qlora"), {"global_batch_size": 2}
    strategy = strategy_of(network, hardware.cluster("RTX 4090"), choices, Predictor(framework=framework))
    assert strategy.choice("recompute") == recompute
