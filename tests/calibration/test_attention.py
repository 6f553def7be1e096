"""Which kernel attention runs as, by device, precision, level and date."""

from __future__ import annotations

from dataclasses import replace

import pytest

from each_row import each_row
from paceline.calibration.attention import KERNELS, check_attention, kernels_on, running, share, usual
from paceline.calibration.constants import Efficiency, efficiency
from paceline.errors import UserError
from paceline.hardware import device


def constants(kernel: str = "", year: float = 0.0) -> Efficiency:
    """Tuned software of a year with that kernel."""
    return replace(efficiency("tuned").of_year(year), attention_kernel=kernel)


@each_row(
    ("name", "precision", "year", "kernel"),
    [
        ("A100", "bf16", 0.0, "fa2"),
        ("A100", "bf16", 2024.0, "fa1"),  # PyTorch 2.1
        ("A100", "fp32", 0.0, "efficient"),
        ("A100", "tf32", 0.0, "efficient"),
        ("V100", "fp16", 0.0, "efficient"),
        ("H100", "bf16", 2025.0, "fa2"),  # cuDNN's ran on demand
        ("H100", "fp8", 2025.0, "fa2"),
        ("H100", "bf16", 2026.5, "cudnn"),
        ("H100", "bf16", 0.0, "cudnn"),
        ("B200", "bf16", 0.0, "cudnn"),
        ("RTX 5090", "bf16", 0.0, "fa2"),  # compute capability 12.0
        ("MI300X", "bf16", 0.0, "fa2"),
        ("TPU v4", "bf16", 0.0, "fused"),
    ],
)
def test_pytorch_chooses_by_device_precision_and_release(name: str, precision: str, year: float, kernel: str) -> None:
    assert running(device(name), precision, constants("sdpa", year)) == kernel


def test_each_level_has_its_usual_kernel_by_date() -> None:
    assert [usual(level) for level in ("ordinary", "tuned")] == ["sdpa", "cudnn"]
    assert [usual("tuned", year) for year in (2020.6, 2021.5, 2023.9)] == ["eager", "cudnn", "cudnn"]
    assert running(device("V100"), "fp16", constants(year=2020.6)) == "eager"
    assert running(device("V100"), "fp16", constants("cudnn", 2020.6)) == "cudnn"  # what is named stays
    assert running(device("H100"), "bf16", efficiency("ordinary")) == "cudnn"


def test_kernels_are_apart_where_the_papers_say() -> None:
    def of(name: str, kernel: str, precision: str = "bf16") -> float:
        return share(device(name), precision, constants(kernel))

    # Shah et al. 2024, FlashAttention-3, arXiv:2407.08608: 1.5 to 2 times FlashAttention-2 on an H100
    assert 1.5 <= of("H100", "fa3") / of("H100", "fa2") <= 2.0
    assert of("H100", "sdpa") == of("H100", "cudnn")
    assert of("A100", "fa2") == of("TPU v4", "sdpa") == 1.0
    # NVIDIA/cudnn-frontend, attention_training, llama3.1, 8k tokens: seconds of both passes of FlashAttention-2 and of cuDNN
    assert of("A100", "cudnn") == pytest.approx((10.123 + 31.745) / (12.402 + 40.532), abs=0.01)
    # Dao 2023, FlashAttention-2, arXiv:2307.08691: about twice the first one
    assert of("V100", "sdpa", "fp16") == of("A100", "sdpa", "tf32") == 0.5 < of("A100", "triton") < 1
    assert of("RTX 5090", "fa2") == 1.0 > of("B200", "fa2")


def test_a_kernel_that_does_not_run_there_is_refused() -> None:
    for name in ("V100", "TPU v4", "H100"):
        for kernel in ("sdpa", "eager"):
            check_attention(device(name), kernel, "fp32")
    check_attention(device("H100"), "fa3", "fp8")
    check_attention(device("MI300X"), "fa2")
    for name, kernel, words in (
        ("A100", "fa3", "attention kernel fa3 does not run on A100 SXM 80GB; give sdpa or fa2 or cudnn or triton or eager, or"),
        ("MI300X", "cudnn", "cudnn does not run on MI300X; give sdpa or fa2 or triton or eager, or leave it out"),
        ("V100", "fa2", "fa2 does not run on V100 SXM2 16GB; give sdpa or eager, or leave it out"),
        ("TPU v4", "triton", "triton does not run on TPU v4; give sdpa or eager, or leave it out"),
    ):
        with pytest.raises(UserError, match=words):
            check_attention(device(name), kernel)
    for precision in ("fp32", "tf32"):
        with pytest.raises(UserError, match=f"fa2 computes in 16 bits, not in {precision}; give sdpa or eager, or bf16"):
            check_attention(device("A100"), "fa2", precision)
    with pytest.raises(UserError, match="unknown attention kernel 'fa4'"):
        check_attention(device("H100"), "fa4")
    with pytest.raises(UserError, match=r"sdpa in software of 2022: PyTorch has it since 2\.0, of 2023\.2; give eager"):
        check_attention(device("A100"), "sdpa", "bf16", 2022.0)
    check_attention(device("A100"), "sdpa", "bf16", 2023.5)
    assert len(KERNELS) == 6


@pytest.mark.parametrize(("kernel", "since"), [("fa2", 2023.5), ("fa3", 2024.5), ("triton", 2022.8), ("cudnn", 2021.5)])
def test_a_kernel_before_its_time_is_refused_with_the_year_from_which_it_exists(kernel: str, since: float) -> None:
    words = f"attention kernel {kernel} in software of 2017: it exists since {since:g}; give a year from {since:g} on, or eager"
    with pytest.raises(UserError, match=words):
        check_attention(device("H100"), kernel, "bf16", 2017)
    check_attention(device("H100"), kernel, "bf16", since)


@each_row("year", [0.0, 2017.0, 2022.9, 2024.0])
@each_row("precision", ["fp32", "bf16", "fp8"])
@each_row("name", ["A100", "H100", "V100", "MI300X", "TPU v4"])
def test_the_kernels_of_a_device_are_those_that_are_not_refused(name: str, precision: str, year: float) -> None:
    runs = kernels_on(device(name), precision, year)
    for kernel in KERNELS:
        if kernel in runs:
            check_attention(device(name), kernel, precision, year)
            continue
        with pytest.raises(UserError):
            check_attention(device(name), kernel, precision, year)
