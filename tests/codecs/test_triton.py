"""The GPU's kernels: ``triton_cases.py`` in a process of its own, for Triton decides once whether it interprets."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("triton_cases.py")


def run_cases(**environment: str) -> None:
    command = [sys.executable, "-m", "pytest", str(CASES), "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton: pip install triton")
def test_in_the_interpreter():
    run_cases(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_the_gpu():
    run_cases(TRITON_INTERPRET="0")
