"""Orthogonalization of matrices by Newton-Schulz steps, in batches of one shape.

A step maps each singular value s of X to a s + b s^3 + c s^5 (Jordan et al. 2024, Muon). The standard form has three products:
X Xt, its square, and the polynomial times X. Every iterate is a polynomial of the first Gram matrix G times X, and all such
polynomials commute. So the Gram form iterates on G, which is the square of the smaller side, and multiplies X once at the end
of a segment of steps. It saves products of wide matrices. Rounding errors of G grow by a^2 a step, so a segment has at most
``SEGMENT`` steps, and the form is for fp32 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Polynomial a, b, c of Jordan et al. 2024, as ``torch.optim.Muon``."""
STEPS, EPS = 5, 1e-7
SEGMENT = 3
"""Steps of the Gram form before the next Gram matrix is computed from the iterate: errors grow by at most a^4 = 141."""
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
CHUNK, CPU_CHUNK = 1 << 24, 1 << 20
"""Elements of a batch on accelerators and on CPUs, where large temporaries leave the cache and are mapped anew each time."""


def chunk(device: torch.device) -> int:
    """Return the elements of a batch on a device."""
    return CPU_CHUNK if device.type == "cpu" else CHUNK


@dataclass(frozen=True, slots=True)
class NewtonSchulz:
    """Orthogonalization of matrices.

    Attributes:
        dtype: type of all products, one of ``PRECISIONS``.
        steps, coefficients: number of steps and the polynomial of each.
        eps: least norm that a matrix is divided by.
    """

    dtype: torch.dtype = torch.bfloat16
    steps: int = STEPS
    coefficients: tuple[float, float, float] = COEFFICIENTS
    eps: float = EPS

    def segments(self, small: int, large: int) -> list[int]:
        """Return the steps of each segment of the Gram form for a matrix with these sides; empty for the standard form."""
        if self.dtype != torch.float32 or not self.steps:
            return []
        count = -(-self.steps // SEGMENT)
        sizes = [self.steps // count + (i < self.steps % count) for i in range(count)]
        gram = sum(_segment_flops(size, small, large) for size in sizes)
        return sizes if gram < self.steps * _standard_flops(small, large) else []

    def flops(self, rows: int, columns: int) -> int:
        """Return the FLOPs of all products of one matrix."""
        small, large = sorted((rows, columns))
        sizes = self.segments(small, large)
        if sizes:
            return sum(_segment_flops(size, small, large) for size in sizes)
        return self.steps * _standard_flops(small, large)

    def __call__(self, batch: Tensor) -> Tensor:
        """Return the orthogonalized matrices of a batch of shape (n, small, large), in ``dtype``. The batch is changed.

        Args:
            batch: in ``dtype``, with no more rows than columns.
        """
        a, b, c = self.coefficients
        x = batch
        x.div_(torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_(min=self.eps))
        for size in self.segments(*x.shape[-2:]):
            x = torch.bmm(self._gram_polynomial(x, size), x)
        if self.segments(*x.shape[-2:]):
            return x
        for _ in range(self.steps):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x

    def _gram_polynomial(self, x: Tensor, steps: int) -> Tensor:
        """Return the matrices that ``steps`` steps multiply ``x`` by."""
        a, b, c = self.coefficients
        gram = torch.bmm(x, x.mT)
        total: Tensor | None = None
        for step in range(steps):
            factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            factor.diagonal(dim1=-2, dim2=-1).add_(a)
            total = factor if total is None else torch.bmm(factor, total)
            if step + 1 < steps:
                gram = torch.bmm(factor, torch.bmm(factor, gram))
        assert total is not None
        return total

    def many(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Return the orthogonalized form of each matrix, in ``dtype``; those of one shape are one batch.

        Tall matrices are transposed. The results may be views of batches.
        """
        batches: dict[tuple[int, int], list[int]] = {}
        for index, matrix in enumerate(matrices):
            small, large = sorted(matrix.shape)
            batches.setdefault((small, large), []).append(index)
        results: list[Tensor] = list(matrices)
        for (small, large), indices in batches.items():
            most = max(1, chunk(matrices[indices[0]].device) // max(1, small * large))
            for first in range(0, len(indices), most):
                part = indices[first : first + most]
                batch = torch.empty(len(part), small, large, dtype=self.dtype, device=matrices[part[0]].device)
                for row, index in zip(batch, part, strict=True):
                    row.copy_(_wide(matrices[index]))
                for row, index in zip(self(batch), part, strict=True):
                    results[index] = row if matrices[index].shape[0] <= matrices[index].shape[1] else row.mT
        return results


def _wide(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT


def _standard_flops(small: int, large: int) -> int:
    """Return the FLOPs of one step of the standard form."""
    return 4 * small * small * large + 2 * small**3


def _segment_flops(steps: int, small: int, large: int) -> int:
    """Return the FLOPs of a segment of the Gram form: two products with X, and 4 s - 3 of the smaller side."""
    return 4 * small * small * large + 2 * small**3 * (4 * steps - 3)
