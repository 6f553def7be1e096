"""The network of Conv-M blocks: its size is the published one, and its branches see what they should."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.models.vision.compact import ConvM, compact, narrow
from paceline.workload import Workload

PUBLISHED = Path(__file__).parents[2] / "validation" / "edge" / "compact.csv"


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, str]]:
    with PUBLISHED.open(newline="") as file:
        return {row["figure"]: row for row in csv.DictReader(file)}


def test_every_published_figure_has_a_source_and_says_how_sure_it_is(published: dict[str, dict[str, str]]) -> None:
    assert len(published) >= 6
    for row in published.values():
        assert row["source"].startswith(("Wu et al., CVPR 2017", "derived")) and row["status"] in (
            "verified",
            "recalled",
            "derived",
        )
        assert float(row["value"]) > 0 and row["unit"]


def test_the_network_is_as_small_as_published(published: dict[str, dict[str, str]]) -> None:
    ours, alexnet, googlenet = (Workload.named(name).num_parameters for name in ("conv-m", "alexnet", "googlenet"))
    assert ours / 1e6 == pytest.approx(float(published["parameters"]["value"]), abs=0.05)
    assert 100 * ours / alexnet == pytest.approx(float(published["parameters of AlexNet"]["value"]), abs=0.05)
    assert 100 * ours / googlenet == pytest.approx(float(published["parameters of GoogLeNet"]["value"]), abs=0.5)
    assert Workload.named("conv-m-small").num_parameters == 40_658


def footprint(branch: nn.Module, size: int = 9) -> Tensor:
    """Which pixels the middle of a branch's output depends on."""
    for weight in branch.parameters():
        nn.init.ones_(weight)
    x = torch.zeros(1, 4, size, size, requires_grad=True)
    branch(x)[0, :, size // 2, size // 2].sum().backward()
    assert x.grad is not None
    return x.grad[0, 0] != 0


def test_the_branches_see_3x3_5x5_with_holes_and_their_own_way() -> None:
    block = ConvM(8, 4, 6)
    plain, dilated = (footprint(branch) for branch in (block.plain, block.dilated))
    assert plain[3:6, 3:6].all() and plain.sum() == 9
    assert dilated[2:7:2, 2:7:2].all() and dilated.sum() == 9
    # Of stride 2, each 2x2 of the output sees the pixel and the next ones: not what a plain convolution of 3x3 does.
    x = torch.randn(1, 4, 9, 9)
    assert block.deconv(x).shape == (1, 6, 18, 18) and block.pool(block.deconv(x)).shape == (1, 6, 9, 9)
    assert block(torch.randn(2, 8, 9, 9)).shape == (2, 18, 9, 9)


@pytest.mark.parametrize("size", [16, 28, 32])
def test_small_images_of_several_sizes_are_read(size: int) -> None:
    assert compact(3, 7).eval()(torch.randn(2, 3, size, size)).shape == (2, 7)


def test_a_network_of_a_part_of_the_widths_is_smaller_and_keeps_two_of_each() -> None:
    sizes = [sum(p.numel() for p in narrow(width).parameters()) for width in (1.0, 0.5, 0.25, 0.125)]
    assert sizes == [40_658, 10_590, 2_864, 857]
    least = [module for module in narrow(0.01).modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)]
    assert {module.out_channels for module in least} == {2}
