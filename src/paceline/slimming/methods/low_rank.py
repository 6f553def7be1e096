"""Low-rank layers: a convolution as two or three thinner ones, a linear layer as two.

``svd``: the filters as a matrix of filters x (channels x kernel); a convolution with as many filters as the rank, then 1x1 (Wen
et al., ICCV 2017, there by PCA; Zhang et al., TPAMI 2016). ``tucker``: channels in and out, 1x1, the kernel, 1x1 (Kim et al.,
ICLR 2016), by HOSVD and sweeps of orthogonal iteration (De Lathauwer et al. 2000). At full rank both equal the whole layer, up
to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import UserError, check_name, shown

FORMS = ("svd", "tucker")
SWEEPS = 3
"""Sweeps of orthogonal iteration after HOSVD: more would change the error's third digit."""
_ROUNDING = 1e-12
"""Rounding of float32 weights in their squares; smaller values do not count at error 0."""
Splittable = nn.Linear | nn.Conv1d | nn.Conv2d
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_OF_KERNEL = ("kernel_size", "stride", "padding", "dilation", "padding_mode")


def rank_at(weight: Tensor, error: float = 0.05) -> int:
    """Return the smallest rank ``r`` with ``|W - W_r|^2 / |W|^2 <= error`` of the matrix of filters x (channels x kernel).

    The norm is the Frobenius norm, as in the authors' PCA, which does not subtract the mean (wenwei202/caffe,
    ``caffe_apps.filter_pca``). 0 for a zero weight.

    Args:
        weight: its first dimension counts filters.
    """
    energy = torch.linalg.svdvals(weight.detach().flatten(1).double()).square()
    return _rank_of(energy, error)


def _rank_of(energy: Tensor, error: float) -> int:
    """Return the rank for squared singular values in falling order."""
    left = energy.flip(0).cumsum(0).flip(0)  # the loss if the rank ends before each
    return int((left > max(error, _ROUNDING) * energy.sum()).sum())


def ranks_at(weight: Tensor, form: str, error: float) -> tuple[int, ...]:
    """Return the ranks of a form, each by the energy of its unfolding: one for ``svd``, outputs and inputs for ``tucker``.

    Each side of ``tucker`` may lose half of the error: together they lose at most all of it (De Lathauwer et al. 2000).
    """
    if form == "svd":
        return (max(rank_at(weight, error), 1),)
    return max(rank_at(weight, error / 2), 1), max(rank_at(weight.transpose(0, 1), error / 2), 1)


def factors(weight: Tensor, form: str, ranks: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the weights of the thinner layers in the order in which they run, in double precision.

    Args:
        weight: (filters, channels, kernel ...); a matrix for ``svd`` too.

    Returns:
        ``svd``: (rank, channels, kernel ...) and (filters, rank). ``tucker``: (inner inputs, channels),
        (inner outputs, inner inputs, kernel ...) and (filters, inner outputs).
    """
    whole = weight.detach().double()
    if form == "svd":
        left, values, right = torch.linalg.svd(whole.flatten(1), full_matrices=False)
        root = values[: ranks[0]].sqrt()  # both layers of similar size, which trains better
        return (root[:, None] * right[: ranks[0]]).view(ranks[0], *whole.shape[1:]), left[:, : ranks[0]] * root
    outer, inner = ranks
    across = whole.flatten(2)
    out, into = _basis(across, outer), _basis(across.transpose(0, 1), inner)
    for _ in range(SWEEPS):
        out = _basis(torch.einsum("nck,ci->nik", across, into), outer)
        into = _basis(torch.einsum("nck,no->cok", across, out), inner)
    core = torch.einsum("nck,no,ci->oik", across, out, into)
    return into.T, core.view(outer, inner, *whole.shape[2:]), out


def _basis(tensor: Tensor, rank: int) -> Tensor:
    """Return the leading left singular vectors of the first unfolding, shape (its size, rank)."""
    matrix = tensor.flatten(1)
    vectors: Tensor = torch.linalg.eigh(matrix @ matrix.T).eigenvectors
    return vectors.flip(1)[:, :rank]


def product(parts: Sequence[Tensor]) -> Tensor:
    """Return the whole weight of thinner ones: the inverse of ``factors`` at full rank."""
    first, *middle, last = parts
    if middle:
        return torch.einsum("no,oi...,ic->nc...", last, middle[0], first)
    return torch.einsum("nr,r...->n...", last, first)


def reconstruction_error(weight: Tensor, form: str, ranks: Sequence[int]) -> float:
    """Return ``|W - W_r|^2 / |W|^2`` of a form at its ranks; 0 for a zero weight."""
    whole = weight.detach().double()
    square = float(whole.square().sum())
    return float((whole - product(factors(weight, form, ranks))).square().sum()) / square if square else 0.0


def most_ranks(weight: Tensor, form: str) -> tuple[int, ...]:
    """Return the full ranks of a form, at which there is no error."""
    filters, channels = weight.shape[:2]
    kernel = weight[0, 0].numel()
    if form == "svd":
        return (min(filters, channels * kernel),)
    return min(filters, channels * kernel), min(channels, filters * kernel)


def split(module: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    """Return the thinner layers with the nearest weights that replace a layer: the kind ``low_rank`` of a plan.

    Args:
        module: ``nn.Conv1d``, ``nn.Conv2d`` or ``nn.Linear``.
        settings: ``form``, ``svd`` or ``tucker``, and ``ranks``: one, or of outputs and of inputs.

    Returns:
        ``nn.Sequential`` of two or three layers of the same class, ``ThinLinear`` of linear ones; the last one has the bias,
        one of them the kernel, its stride, padding and dilation.

    Raises:
        UserError: another class of module, a grouped convolution, ranks that it cannot have.
    """
    if why := refusal(module):
        raise UserError(why, "leave it out of the plan's replacements")
    assert isinstance(module, Splittable)
    form, ranks = settings.get("form", "svd"), settings.get("ranks")
    check_name("form", form, FORMS if not isinstance(module, nn.Linear) else FORMS[:1])
    most = most_ranks(module.weight, form)
    fits = isinstance(ranks, list | tuple) and len(ranks) == len(most)
    if not fits or not all(type(rank) is int and 1 <= rank <= full for rank, full in zip(ranks or (), most, strict=True)):
        each = " and ".join(f"1 to {full}" for full in most)
        raise UserError(f"ranks {shown(ranks)} of {form} for {type(module).__name__}", f"give a list of {each}")
    parts = factors(module.weight, form, [int(rank) for rank in ranks or ()])
    layers = [_layer(module, part, last=number == len(parts) - 1) for number, part in enumerate(parts)]
    kind = ThinLinear if isinstance(module, nn.Linear) else nn.Sequential
    return kind(*layers).train(module.training)


class ThinLinear(nn.Sequential):
    """Two linear layers instead of one. ``weight`` is their product, for readers such as ``nn.TransformerEncoderLayer``."""

    @property
    def weight(self) -> Tensor:
        """Product of both, shape (features out, features in)."""
        found: Tensor = self[1].weight @ self[0].weight  # type: ignore[operator]
        return found

    @property
    def bias(self) -> Tensor | None:
        """Bias of the last layer."""
        found: Tensor | None = self[1].bias  # type: ignore[assignment]
        return found


def refusal(module: nn.Module) -> str:
    """Return the reason why a module has no low-rank form; empty if it has one."""
    if _kind(module) is None:
        return f"a {type(module).__name__} has no form of low rank"
    if not isinstance(module, nn.Linear) and module.groups != 1:
        return f"a convolution of {module.groups} groups has no form of low rank here"
    return ""


def _kind(module: nn.Module) -> Any:
    """Return PyTorch's class if the module has its forward; else None."""
    return next((kind for kind in _KINDS if isinstance(module, kind) and type(module).forward is kind.forward), None)


@torch.no_grad()
def _layer(module: Splittable, weight: Tensor, *, last: bool) -> nn.Module:
    """Return one thin layer; only the layer with the kernel gets the kernel's settings."""
    bias = module.bias if last else None
    settings: dict[str, Any] = {"bias": bias is not None, "device": module.weight.device, "dtype": module.weight.dtype}
    if not isinstance(module, nn.Linear):
        settings["kernel_size"] = 1
        if weight.dim() > 2:
            settings |= {name: getattr(module, name) for name in _OF_KERNEL}
    layer = nn.utils.skip_init(_kind(module), weight.shape[1], weight.shape[0], **settings)
    layer.weight.copy_(weight.view_as(layer.weight)).requires_grad_(module.weight.requires_grad)
    if bias is not None:
        layer.bias.copy_(bias).requires_grad_(bias.requires_grad)
    made: nn.Module = layer
    return made
