"""The C++ kernels against torch's foreach functions, for shapes and orders of all kinds; the same bits whatever the machine."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import paceline
import warm_python
from every_backend import Guarded
from paceline.training.optimizers import LAMB_VARIANTS, LARS_VARIANTS, native

pytestmark = pytest.mark.skipif(not native.built(), reason="needs the extension: make native")
VARIANTS = [*(("LARS", v) for v in LARS_VARIANTS), *(("LAMB", v) for v in LAMB_VARIANTS)]
SHAPES = st.lists(
    st.one_of(
        st.just(()),
        st.tuples(st.integers(0, 40)),
        st.tuples(st.integers(1, 9), st.integers(0, 130)),
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=6,
)


@contextmanager
def kernels(isa: str, threads: int) -> Iterator[None]:
    from paceline import _native

    before = _native.isa(), torch.get_num_threads()
    _native.set_isa(isa)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        _native.set_isa(before[0])
        torch.set_num_threads(before[1])


def isas() -> tuple[str, ...]:
    from paceline import _native

    return tuple(_native.isas())


def trained(kind: str, shapes: list[tuple[int, ...]], seed: int, zero: int = -1, **options: Any) -> list[Tensor]:
    """Weights and state after three steps. ``zero``: the tensor whose weights are all 0, the next one's gradients are."""
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    if 0 <= zero < len(params):
        params[zero].data.zero_()
    optimizer = getattr(paceline, kind)(params, lr=0.1, weight_decay=0.01, **options)
    for _ in range(3):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator) * (i != zero + 1)
        optimizer.step()
    assert optimizer.skipped_steps == 0
    return [p.detach() for p in params] + [optimizer.state[p][word] for word in optimizer._words for p in params]


@given(
    which=st.sampled_from(VARIANTS),
    shapes=SHAPES,
    seed=st.integers(0, 1000),
    zero=st.integers(-1, 4),
    more=st.sampled_from([{}, {"maximize": True}, {"exclude": "none"}, {"nesterov": True}]),
)
def test_kernels_are_foreach(which: tuple[str, str], shapes: list[Any], seed: int, zero: int, more: dict[str, Any]) -> None:
    """To a few units in the last place, over three steps."""
    kind, variant = which
    if "nesterov" in more and not (kind == "LARS" and LARS_VARIANTS[variant].nesterov):
        more = {}
    one, other = (trained(kind, shapes, seed, zero=zero, variant=variant, foreach=f, **more) for f in (None, True))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
def test_the_same_bits_everywhere(kind: str) -> None:
    """On every instruction set and any number of threads; the large tensor is of several units of work."""
    shapes: list[tuple[int, ...]] = [(3, 70001), (5,), (1, 1), (17, 33), (0, 3), (2, 65536)]
    ends = []
    for isa in isas():
        for threads in (1, 2, 3):
            with kernels(isa, threads):
                ends.append(trained(kind, shapes, 1, exclude="none"))
    for end in ends[1:]:
        for a, b in zip(ends[0], end, strict=True):
            assert torch.equal(a, b)


def test_channels_last_and_other_orders() -> None:
    """The order of elements in memory does not matter, nor that a gradient has another one than its parameter."""
    for kind in ("LARS", "LAMB"):
        ends = []
        for layout in (torch.contiguous_format, torch.channels_last):
            for of_gradient in (torch.contiguous_format, torch.channels_last):
                generator = torch.Generator().manual_seed(0)
                weight = nn.Parameter(torch.randn(8, 3, 5, 5, generator=generator).contiguous(memory_format=layout))
                turned = nn.Parameter(torch.randn(7, 9, generator=generator).t())  # no dense order that the kernels know
                optimizer = getattr(paceline, kind)([weight, turned], lr=0.1, weight_decay=0.01)
                for _ in range(2):
                    gradient = torch.randn(8, 3, 5, 5, generator=generator).contiguous(memory_format=of_gradient)
                    weight.grad, turned.grad = gradient, torch.randn(9, 7, generator=generator)
                    optimizer.step()
                ends.append((weight.detach(), turned.detach()))
        for end in ends[1:]:
            torch.testing.assert_close(end, ends[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 511, 513, 1040])
def test_nothing_beyond_the_end_is_touched(count: int) -> None:
    """Every array ends where memory ends, on every instruction set."""
    for isa in isas():
        for kind in ("LARS", "LAMB"):
            with kernels(isa, 1):
                arrays = [Guarded(4 * count).array.view(np.float32) for _ in range(4)]
                weight, gradient, *words = (torch.from_numpy(a) for a in arrays)
                parameter = nn.Parameter(weight)
                optimizer = getattr(paceline, kind)([parameter], exclude="none", lr=0.5)
                weight.fill_(1.0)
                gradient.fill_(0.5)
                parameter.grad = gradient
                optimizer.step()
                for name, word in zip(optimizer._words, words, strict=False):
                    optimizer.state[parameter][name] = word
                optimizer.step()
                assert len(set(weight.tolist())) == 1 and weight[0] < 1


@pytest.mark.everyday("-inf")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2e19])
def test_one_bad_gradient_anywhere_skips_the_step(value: float) -> None:
    """Also one whose square fp32 cannot hold, since LAMB's second moment could not."""
    for isa in isas():
        for at in (0, 15, 16, 700, 70000, 70006) if math.isnan(value) else (700, 70006):
            with kernels(isa, 2):
                p = nn.Parameter(torch.ones(70007))
                optimizer = paceline.LAMB([p], exclude="none")
                p.grad = torch.ones_like(p)
                p.grad[at] = value
                optimizer.step()
                assert optimizer.skipped_steps == 1 and torch.equal(p, torch.ones_like(p))
                assert not any(bool(s.any()) for s in optimizer.state[p].values())


@pytest.mark.long
def test_large_steps_run_on_the_threads_of_torchs_openmp_and_in_a_forked_child_on_others() -> None:
    """Those that torch's last operation left spinning would keep a second pool's from their cores; a child has lost them."""
    code = """
import ctypes, os, torch, paceline
from paceline import _native
torch.set_num_threads(2)
x = torch.linspace(-1, 1, 1_200_000)
weights, found = [torch.nn.Parameter(x.clone()) for _ in range(3)], []
optimizers = [paceline.LARS([weight], 0.1) for weight in weights]
def step(which):
    weights[which].grad = x
    optimizers[which].step()
for which in range(3):
    step(which)  # makes the state
torch.set_num_threads(1)
step(0)
torch.set_num_threads(2)
step(1)
expected = weights[0].detach().numpy().tobytes()
assert weights[1].detach().numpy().tobytes() == expected
assert _native.pool_threads() == (0 if hasattr(ctypes.CDLL(None), "GOMP_parallel") else 1)
pid = os.fork()
if pid == 0:
    step(2)
    os._exit(0 if weights[2].detach().numpy().tobytes() == expected and _native.pool_threads() == 1 else 3)
step(2)
assert weights[2].detach().numpy().tobytes() == expected
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    first_after_fork = """
import os, torch, paceline
torch.set_num_threads(2)
torch.ones(4_000_000).mul_(2)  # OpenMP has threads, which the child has not
if os.fork() == 0:
    weights = [torch.nn.Parameter(torch.ones(64, 64)) for _ in range(200)]
    for weight in weights:
        weight.grad = torch.ones(64, 64)
    paceline.LAMB(weights, 0.1).step()
    os._exit(0 if weights[-1][0, 0] < 1 else 3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
    # The first must not be a forked child itself.
    for python, one in ((sys.executable, code), (warm_python.executable(), first_after_fork)):
        done = subprocess.run([python, "-c", one], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
