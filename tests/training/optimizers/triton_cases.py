"""The GPU's kernels against torch's foreach functions. Run by test_triton.py: on a GPU, and in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline
from paceline.training.optimizers import gpu, kernels, native

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES: tuple[tuple[int, ...], ...] = ((gpu.BLOCK + 1, 1), (5,), (), (0, 3), (4, 4), (2, 3, 2, 2))
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("LARS", {"variant": "paper", "exclude": "none"}),
    ("LARS", {"variant": "joint", "nesterov": True}),
    ("LARS", {"variant": "lr-outside", "maximize": True}),
    ("LAMB", {"variant": "nvlamb", "exclude": "none"}),
)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter tensors of the CPU stand for the GPU's."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "gpu", lambda: gpu)
        monkeypatch.setattr(native, "serves", lambda weight, words: False)
        monkeypatch.setattr(gpu, "serves", lambda weight, words: weight.dtype == torch.float32 and gpu.dense(weight, words))


def trained(kind: str, dtype: torch.dtype, **options: Any) -> tuple[list[Tensor], Any]:
    """Weights and state after a step, a step whose last gradient is infinite, and another step."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    params = [nn.Parameter(draw(shape)) for shape in SHAPES]
    params[4].data.zero_()
    optimizer = getattr(paceline, kind)(params, lr=0.1, weight_decay=0.01, diagnostics_every=3, **options)
    for step in range(3):
        for p in params:
            p.grad = draw(p.shape)
        params[1].grad.zero_()
        if step == 1:
            params[-1].grad[1, 1, 1, 1] = torch.inf
        optimizer.step()
    assert optimizer.skipped_steps == 1
    state = [word for p in params for word in optimizer.state[p].values()]
    return [p.detach().cpu() for p in (*params, *state)], optimizer.diagnostics.trust_ratio


@pytest.mark.parametrize(("kind", "options"), CASES, ids=[f"{kind} {options['variant']}" for kind, options in CASES])
def test_kernels_are_foreach(kind: str, options: dict[str, Any]) -> None:
    dtype = torch.bfloat16 if options["variant"] == "joint" else torch.float32
    used = []
    for foreach in (None, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu, "_tables", lambda bundle, real=gpu._tables: used.append(bundle) or real(bundle))
            found, ratios = trained(kind, dtype, foreach=foreach, **options)
        if foreach is None:
            one, of_kernels = found, ratios
            assert len(used) >= 3
            used.clear()
    assert not used
    for a, b in zip(one, found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(torch.tensor(of_kernels[[0, 2]]), torch.tensor(ratios[[0, 2]]), rtol=2e-6, atol=0)
