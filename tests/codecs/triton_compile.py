"""Every kernel, as every codec launches it, through Triton's real compiler down to machine code: that needs no GPU.

Run by test_triton.py. What is launched is recorded instead, so no kernel's result means anything here.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from paceline import codecs
from paceline.codecs import SUBTRACT, counter
from paceline.codecs import triton as gpu
from paceline.codecs.reference.integer import Int4
from paceline.codecs.reference.sign import Sign
from paceline.codecs.reference.ternary import TernarySum
from paceline.codecs.triton import headers, launch
from paceline.training.optimizers import gpu as optimizer_kernels
from paceline.training.optimizers.bundle import Bundle

TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.uint8: "*u8", torch.int64: "*i64", torch.int32: "*i32"}
TARGET = GPUTarget("cuda", 90, 32)
"""H100."""

Launch = tuple[Any, tuple[tuple[str, str], ...], tuple[tuple[str, int], ...], tuple[int, ...]]


def recorded(kernel: Any, arguments: tuple[Any, ...], meta: dict[str, Any]) -> Launch:
    """Kernel, types, constants and arguments divisible by 16, as Triton's launcher specialises them."""
    types, constants, even = {}, {}, []
    for place, parameter in enumerate(kernel.params):
        name, special = parameter.name, not parameter.do_not_specialize
        if name in meta:
            types[name], constants[name] = "constexpr", meta[name]
            continue
        value = arguments[place]
        if isinstance(value, torch.Tensor):
            types[name] = TYPES[value.dtype]
            even += [place] * (value.data_ptr() % 16 == 0)
        elif isinstance(value, float):
            types[name] = "fp32"
        elif value == 1 and special:
            types[name], constants[name] = "constexpr", 1
        else:
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            even += [place] * (special and value % 16 == 0)
    return kernel, tuple(types.items()), tuple(constants.items()), tuple(even)


def launches(monkeypatch: pytest.MonkeyPatch) -> set[Launch]:
    """What all codecs launch, for one element and for whole tiles."""
    found: set[Launch] = set()

    def record(kernel: Any, programs: int, *arguments: Any, **meta: Any) -> None:
        if programs:
            found.add(recorded(kernel, arguments, meta))

    for module in [m for name, m in sys.modules.items() if name.startswith("paceline.codecs.triton.")]:
        if hasattr(module, "run"):
            monkeypatch.setattr(module, "run", record)
    monkeypatch.setattr(launch, "state", lambda like: torch.zeros(3, dtype=torch.int64))
    kinds = [codecs.get(name) for name in codecs.names() if name not in ("ternary", "topk")]
    kinds += [codecs.get("ternary", scale=1.0), TernarySum(workers=2), Int4(block=64), Sign(block=65536)]
    for n in (1, 2**15):
        x, out = torch.ones(n), torch.ones(n)
        for kind in kinds:
            payload = torch.zeros(codecs.max_payload_bytes(kind, n), dtype=torch.uint8)
            gpu.write(kind, x, payload, counter.key(1, 2, 3), 2**32 - n)
            gpu.decode(kind, payload[32:], out, SUBTRACT)
        headers.judge(bytes(24), payload[32:], (0, 0), launch.state(x))
        gpu.checksum(bytes(24), payload[32:33])
        gpu.peak(x), gpu.sums(x)
    return found


def test_the_optimizers_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[Any, Launch] = {}
    monkeypatch.setattr(
        optimizer_kernels, "run", lambda kernel, n, *given, **meta: found.update({kernel: recorded(kernel, given, meta)})
    )
    group = {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True, "betas": (0.9, 0.99), "eps": 1e-6}
    bundle = Bundle(group, False, optimizer_kernels, torch.device("cpu"), corrections=(torch.ones(1), torch.ones(1)))
    bundle.add("w", *(torch.ones(4, 4) for _ in range(3)), [torch.ones(4, 4) for _ in range(2)], None)
    optimizer_kernels.lamb_sums(bundle)
    optimizer_kernels.lamb_step(bundle, torch.ones(1), torch.tensor(True))
    bundle.words.pop()
    optimizer_kernels.lars_sums(bundle, True)
    optimizer_kernels.lars_step(bundle, torch.ones(1), torch.tensor(1.0), torch.tensor(True))
    assert len(found) == 5
    for kernel, types, constants, even in found.values():
        source = ASTSource(kernel, dict(types), dict(constants), {(k,): [["tt.divisibility", 16]] for k in even})
        assert compile(source, target=TARGET).asm["cubin"], kernel.__name__


def test_every_kernel_compiles_and_none_fuses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = launches(monkeypatch)
    kernels = {kernel.fn for kernel, *_ in found}
    assert len(kernels) == 20
    for kernel, types, constants, even in found:
        source = ASTSource(kernel, dict(types), dict(constants), {(k,): [["tt.divisibility", 16]] for k in even})
        made = compile(source, target=TARGET, options={"enable_fp_fusion": False})
        assert made.asm["cubin"], kernel.__name__
        inexact = re.search(r"\s(fma|mad)\S*\.f(32|64)|\.ftz|\.approx|div\.full", made.asm["ptx"])
        assert not inexact, (kernel.__name__, inexact)
    print(f"{len(found)} variants of {len(kernels)} kernels")
