"""Networks of timm by name: their names without an import, and their layer tables."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.catalogue import takes_image_size
from paceline.workload.tracing.timm_networks import is_timm, kept_tables, timm_names, timm_table

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")


@needs_timm
def test_names_are_read_without_an_import() -> None:
    assert {"efficientnet_b0", "resnet50", "vit_base_patch16_224_in21k"} <= timm_names()
    assert is_timm("timm/resnet50.a1_in1k") and not is_timm("timm/resnet51") and not is_timm("llama-2-7b")


@needs_timm
def test_an_unknown_name_has_near_ones_and_other_networks_no_size_of_images() -> None:
    with pytest.raises(UserError, match="nearest: efficientnet_b0"):
        Workload.named("timm/eficientnet_b0")
    assert takes_image_size("timm/efficientnet_b0") and not takes_image_size("resnet-50")
    with pytest.raises(UserError, match="resnet-50, whose input has one size"):
        Workload.named("resnet-50", inputs="3x64x64")
    with pytest.raises(UserError, match="3x224x224"):
        timm_table("timm/efficientnet_b0", "tokens:64")


def test_kept_tables_need_neither_timm_nor_torch() -> None:
    """Millions of parameters: Tan and Le 2019 (table 2); torchvision, DenseNet; Liu et al. 2021 (table 1)."""
    published = {"efficientnet_b0": 5.3, "efficientnet_b7": 66.3, "densenet121": 8.0, "swin_tiny_patch4_window7_224": 28.3}
    assert {name: round(Workload.named(name).num_parameters / 1e6, 1) for name in published} == published
    assert len(kept_tables()) > 60 and Workload.named("timm/regnetx_004.pycls_in1k").name == "timm/regnetx_004"


@needs_timm
@pytest.mark.long
def test_a_name_that_timm_lists_and_cannot_build_is_refused() -> None:
    with pytest.raises(UserError, match="vit_base_patch32_224_sam"):
        timm_table("timm/vit_base_patch32_224_sam")


@needs_timm
@pytest.mark.long
def test_layer_tables_equal_published_sizes() -> None:
    """Parameters and multiply-adds of Tan and Le 2019 (table 2), and of Radosavovic et al. 2020 (table 2)."""
    for name, millions, giga in (("timm/efficientnet_b0", 5.3, 0.39), ("regnetx_004.pycls_in1k", 5.2, 0.4)):
        table = Workload.named(name)
        assert round(table.num_parameters / 1e6, 1) == millions and table.flops_forward / 2e9 == pytest.approx(giga, rel=0.03)
    small, usual = (Workload.named("regnetx_004", inputs=size) for size in ("", "3x448x448"))
    assert usual.flops_forward == pytest.approx(4 * small.flops_forward, rel=1e-3)
    eager = Workload.named("deit_tiny_patch16_224", fused_attention=False)
    assert (
        eager.flops_forward == pytest.approx(Workload.named("deit_tiny_patch16_224").flops_forward)
        and not eager.fuses_attention
    )
    assert find_spec("torchvision") is not None or "torchvision" not in sys.modules
