"""Kernels of convolutions that may become smaller: the shapes of Wen et al. (NIPS 2016, section 3.1).

In the paper a shape is one column of the lowered weights. A runtime gains only if an ordinary smaller kernel remains, so here a
structure is a pair of outer rows, or of outer columns, over all filters and channels of a layer. Without it the padding is
smaller too, so each output keeps its place.
"""

from __future__ import annotations

from collections import defaultdict

from torch import fx, nn

from paceline.slimming.structures.branches import Graph

LAYERS = (nn.Conv1d, nn.Conv2d)
"""Exactly these classes: a subclass may use other numbers in its code."""
NAMES = {1: ("kernel points",), 2: ("kernel rows", "kernel columns")}
"""Names of the dimensions of an image."""


def removable_pairs(graph: Graph, model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the pairs that each dimension of a kernel may lose, by weights that only convolutions use."""
    modules = dict(model.named_modules(remove_duplicate=False))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    users: dict[int, list[fx.Node]] = defaultdict(list)
    for node, name in graph.tensors.items():
        if name in parameters:
            users[id(parameters[name])] += node.users
    found = {}
    for name, parameter in parameters.items():
        owners = [modules.get(graph.place(node)) for node in users[id(parameter)]]
        each = [_pairs(owner) if getattr(owner, "weight", None) is parameter else () for owner in owners]
        if pairs := tuple(map(min, zip(*each, strict=False))):
            found[name] = pairs
    return found


def _pairs(module: nn.Module | None) -> tuple[int, ...]:
    """Return the removable pairs of each dimension. The padding must cover the removed rows, or be "same"; an even kernel has
    no centre.
    """
    if type(module) not in LAYERS or not isinstance(module, LAYERS) or module.padding_mode != "zeros":
        return ()
    sizes = module.kernel_size
    if isinstance(module.padding, str):
        room = sizes if module.padding == "same" else (0,) * len(sizes)
    else:
        room = tuple(padding // dilation for padding, dilation in zip(module.padding, module.dilation, strict=True))
    return tuple(min(size // 2, most) if size % 2 else 0 for size, most in zip(sizes, room, strict=True))


def fit_window(module: nn.modules.conv._ConvNd) -> None:
    """Set the size of the kernel to that of the weights, and the padding so that the outputs keep their places."""
    sizes = tuple(module.weight.shape[2:])
    if not isinstance(module.padding, str):
        lost = zip(module.padding, module.dilation, module.kernel_size, sizes, strict=True)
        module.padding = tuple(padding - apart * (old - new) // 2 for padding, apart, old, new in lost)
    module.kernel_size = sizes
