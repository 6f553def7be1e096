"""The GPU's kernels: ``triton_cases.py`` in a process of its own, for Triton decides once whether it interprets."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
HAS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")


OPTIMIZERS = HERE.parent / "training" / "optimizers" / "triton_cases.py"


SAMPLE = "205 or 601 or 4097 or kernels_are_foreach or bodies or changed"


def run_there(*cases: Path, only: str = "", **environment: str) -> None:
    command = [sys.executable, "-m", "pytest", *map(str, cases), "-q", "-x", "-p", "no:cacheprovider", "-k", only]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.long
@HAS_TRITON
def test_a_sample_in_the_interpreter():
    """Every codec at one size, and every optimizer; the interpreter takes milliseconds an instruction."""
    run_there(HERE / "triton_cases.py", OPTIMIZERS, only=SAMPLE, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@HAS_TRITON
@pytest.mark.full
def test_the_rest_in_the_interpreter():
    run_there(HERE / "triton_cases.py", OPTIMIZERS, only=f"not ({SAMPLE})", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@HAS_TRITON
@pytest.mark.full
def test_through_the_compiler(tmp_path):
    run_there(HERE / "triton_compile.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_the_gpu():
    run_there(HERE / "triton_cases.py", OPTIMIZERS, TRITON_INTERPRET="0")


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_benchmark_without_a_gpu_writes_nothing(tmp_path):
    script, out = HERE.parents[1] / "benchmarks" / "codec_gpu.py", tmp_path / "codec_gpu.csv"
    done = subprocess.run([sys.executable, script, "--out", out], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "no CUDA device" in done.stdout, done.stderr
    assert not out.exists()
