"""The kernel that attention runs as follows from what is asked, the device, the precision and the software."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from paceline import Predictor, Strategy, UserError, Workload
from paceline.calibration.constants import efficiency
from paceline.hardware import cluster
from paceline.hardware.catalogue import device
from paceline.prediction.passes.attention_kernel import check_kernel, kernel_of, with_scores

GPT2, RESNET = Workload.named("gpt2"), Workload.named("resnet-50")
ORDINARY = efficiency("ordinary")
EAGER = replace(ORDINARY, attention_kernel="eager")


def test_a_network_without_attention_has_no_kernel() -> None:
    assert kernel_of(RESNET, device("A100"), "bf16", ORDINARY) == ""
    check_kernel("", RESNET, device("A100"), "bf16", 0.0)
    with pytest.raises(UserError, match="attention kernel fa2: resnet-50 has no attention"):
        check_kernel("fa2", RESNET, device("A100"), "bf16", 0.0)
    with pytest.raises(UserError, match="resnet-50 has no attention"):
        check_kernel("fa2", RESNET, device("V100"), "fp32", 0.0)  # where it would not run either


def test_scores_in_memory_are_eager_whatever_the_software_would_run() -> None:
    written = with_scores(GPT2, EAGER)
    assert GPT2.fuses_attention and not written.fuses_attention and written.attends
    assert kernel_of(written, device("H100"), "bf16", ORDINARY) == "eager"
    assert with_scores(GPT2, EAGER) is written  # made once
    assert with_scores(GPT2, ORDINARY) is GPT2 and with_scores(RESNET, EAGER) is RESNET


def test_precision_and_device_decide_what_sdpa_runs_as() -> None:
    kernels = {kernel_of(GPT2, device(name), precision, ORDINARY) for name, precision in (("A100", "bf16"), ("V100", "fp16"))}
    assert len(kernels) == 2


@pytest.mark.parametrize(
    ("kernel", "name", "precision", "words"),
    [
        ("", "A100", "fp32", "the memory-efficient kernel of sdpa, the choice of sdpa, which .* Also run there: eager."),
        ("", "A100", "bf16", ""),
        ("fa2", "A100", "bf16", "Attention runs as fa2, the kernel that was named, .* there: sdpa, cudnn, triton, eager."),
        ("", "H100", "bf16", "Attention runs as cudnn, the choice of sdpa, which .* Also run there: fa2, fa3, triton, eager."),
    ],
)
def test_the_sentence_on_attention_names_kernels_that_run_there(kernel: str, name: str, precision: str, words: str) -> None:
    choices = Strategy.of(world_size=1, global_batch_size=2, precision=precision)
    predicted = Predictor(attention=kernel).step(GPT2, cluster(name, 1, 1), choices)
    sentences = [str(text) for text in predicted.assumptions if "Attention runs as" in str(text)]
    assert bool(sentences) == bool(words)
    if words:
        assert re.search(words, sentences[0])
