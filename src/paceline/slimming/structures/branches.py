"""Removable residual branches: the depth of Wen et al. (NIPS 2016, section 3.2).

A branch consists of the nodes that reach the output only through one operand of an addition, while the other operand still
depends on the input. Without its inner widths it is a constant, which is its last bias after the batch norm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from paceline.slimming.structures.structures import Branch, Structures

ADDITIONS = ("add", "add_")
CONSUMERS = ("conv1d", "conv2d", "linear")
NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm")
ACTIVATIONS = (
    *("relu", "relu6", "gelu", "silu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "sigmoid", "tanh", "mish"),
    *("relu_", "silu_", "hardswish_", "hardtanh_", "leaky_relu_", "elu_"),
)
DROPOUTS = ("dropout", "dropout_", "feature_dropout")
KINDS = (*CONSUMERS, *NORMS, *ACTIVATIONS, *DROPOUTS)
"""Legal parts of a branch: modules that others of the same shapes may replace, and elementwise steps."""
SHORT_CUTS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules that read the weights of their layers."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Graph:
    """An exported graph.

    Attributes:
        tensors: names of the parameters and buffers among the nodes.
        kind: of an operation, of ATen. ``place``: the module of its forward.
    """

    nodes: Sequence[fx.Node]
    tensors: Mapping[fx.Node, str]
    kind: Callable[[fx.Node], str]
    place: Callable[[fx.Node], str]

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """Return the operands other than parameters and buffers."""
        return [each for each in node.all_input_nodes if each not in self.tensors]

    def only_for(self, end: fx.Node) -> set[fx.Node]:
        """Return the node, and all operations that only it needs."""
        inside, waiting = {end}, self.operands(end)
        while waiting:
            node = waiting.pop()
            if node not in inside and node.op == "call_function" and all(user in inside for user in node.users):
                inside.add(node)
                waiting += self.operands(node)
        return inside

    def reaches(self, start: fx.Node, end: fx.Node) -> bool:
        """Return whether a value depends on another."""
        seen: set[fx.Node] = set()
        waiting = [end]
        while waiting:
            node = waiting.pop()
            if node is start:
                return True
            if node not in seen:
                seen.add(node)
                waiting += self.operands(node)
        return False

    def depends(self, node: fx.Node, cut: Collection[fx.Node]) -> bool:
        """Return whether a value depends on the network's input if some nodes are constants."""
        seen, waiting = set(cut), [node]
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            if each.op == "placeholder":
                return True
            seen.add(each)
            waiting += self.operands(each)
        return False


def branches_of(graph: Graph, found: Structures, model: nn.Module) -> tuple[Branch, ...]:
    """Return the branches in the order of their additions. Each has separate widths; the inner one of nested branches counts.

    Args:
        found: with its structures collected.
    """
    modules = dict(model.named_modules())
    users: dict[str, set[fx.Node]] = defaultdict(set)
    for node, name in graph.tensors.items():
        users[name] |= set(node.users)
    chosen: list[Branch] = []
    cut: set[fx.Node] = set()
    taken: set[fx.Node] = set()
    for addition, end, inside in sorted(_candidates(graph), key=lambda each: len(each[2])):
        others = [each for each in graph.operands(addition) if each is not end]
        if inside & taken or not any(graph.depends(each, {*cut, end}) for each in others):
            continue
        if (branch := _branch(graph, found, modules, users, end, inside)) is not None:
            chosen.append(branch)
            cut.add(end)
            taken |= inside
    places = {structure.number: place for place, structure in enumerate(found.every)}
    return tuple(sorted(chosen, key=lambda each: min(places[number] for number in each.numbers)))


def _candidates(graph: Graph) -> Iterator[tuple[fx.Node, fx.Node, set[fx.Node]]]:
    """Yield additions, their exclusive operands, and all nodes that only these use."""
    for addition in graph.nodes:
        if addition.op == "call_function" and graph.kind(addition) in ADDITIONS and len(graph.operands(addition)) == 2:
            for end in graph.operands(addition):
                if set(end.users) == {addition} and end.op == "call_function":
                    yield addition, end, graph.only_for(end)


def _branch(
    graph: Graph,
    found: Structures,
    modules: Mapping[str, nn.Module],
    users: Mapping[str, set[fx.Node]],
    end: fx.Node,
    inside: set[fx.Node],
) -> Branch | None:
    """Return the branch; None if it has no separate widths, or no constant can replace it."""
    widths = (each for each in found.every if not each.nested)
    own = [each for each in widths if all(users[part.parameter] <= inside for part in each.slices)]
    numbers = frozenset(each.number for each in own)
    last, norm, node = "", "", end
    while not last:
        kind, before = graph.kind(node), graph.operands(node)
        if kind in CONSUMERS:
            last = graph.place(node)
        elif kind == "batch_norm" and not norm and isinstance(modules.get(graph.place(node)), BATCH_NORMS):
            norm = graph.place(node)
        elif kind not in DROPOUTS:
            return None
        node = before[0]
    held = {graph.place(each) for each in inside if any(one in graph.tensors for one in each.all_input_nodes)}
    if not numbers or not all(_stands_alone(graph, modules, users, each, inside) for each in inside):
        return None
    entering = found.units[f"{last}.weight"][1]
    if not set(found.forest.roots(entering).tolist()) <= numbers:
        return None
    return Branch(own[0].layer.removesuffix(".weight"), numbers, last, norm, tuple(sorted(held - {last, norm})))


def _stands_alone(
    graph: Graph, modules: Mapping[str, nn.Module], users: Mapping[str, set[fx.Node]], node: fx.Node, inside: set[fx.Node]
) -> bool:
    """True if an operation is of a known kind, and any weights belong to one of PyTorch's modules and are not used outside."""
    weights = [graph.tensors[each] for each in node.all_input_nodes if each in graph.tensors]
    if graph.kind(node) not in KINDS:
        return False
    path = graph.place(node)
    module = modules.get(path)
    if isinstance(modules.get(path.rpartition(".")[0]), SHORT_CUTS) or isinstance(module, SHORT_CUTS):
        return False
    if not weights:
        return not (module is not None and any(True for _ in module.parameters(recurse=False)))
    return (
        module is not None
        and type(module).__module__.startswith("torch.nn.modules.")
        and all(name.rpartition(".")[0] == path and users[name] <= inside for name in weights)
        and getattr(module, "padding_mode", "zeros") == "zeros"
        and not isinstance(getattr(module, "padding", 0), str)
    )


class Hollow(nn.Module):
    """Module that returns zeros in the shape of a layer's output. An exported graph drops zeros and all that depends on them.

    Args:
        whole: a convolution, a linear layer, or a module that keeps the shape.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.leaving = 0
        self.sizes: tuple[tuple[int, int, int, int], ...] = ()
        if isinstance(whole, nn.Linear):
            self.leaving = whole.out_features
        elif isinstance(whole, nn.Conv1d | nn.Conv2d):
            self.leaving = whole.out_channels
            assert not isinstance(whole.padding, str)
            self.sizes = tuple(zip(whole.kernel_size, whole.stride, whole.padding, whole.dilation, strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map the shape (images, channels, ...) or (..., features) of the input to the output's."""
        if not self.leaving:
            return torch.zeros_like(x)
        if not self.sizes:
            return x.new_zeros((*x.shape[:-1], self.leaving))
        image = x.shape[x.dim() - len(self.sizes) :]
        sizes = [
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, (kernel, stride, padding, dilation) in zip(image, self.sizes, strict=True)
        ]
        return x.new_zeros((*x.shape[: -len(sizes) - 1], self.leaving, *sizes))


class Constant(nn.Module):
    """Module that returns a number for each channel, in the shape of a layer's output.

    Args:
        whole: the layer. ``value``: (channels).
    """

    def __init__(self, whole: nn.Module, value: torch.Tensor) -> None:
        super().__init__()
        self.shape, self.value = Hollow(whole), nn.Parameter(value)
        self.last = isinstance(whole, nn.Linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape of ``Hollow`` filled with the numbers."""
        zeros: torch.Tensor = self.shape(x)
        return zeros + (self.value if self.last else self.value.view(-1, *(1,) * (zeros.dim() - 2)))


@torch.no_grad()
def without_branches(model: nn.Module, settings: Mapping[str, object]) -> nn.Module:
    """Remove some branches of a network in place, for the kind ``without_branches`` of a plan.

    Args:
        model: without its other removed structures.
        settings: ``branches``: by name ``hollow``, the modules that only keep shapes, and ``last``, whose bias remains, through
            ``norm``, which may be empty.
    """
    branches = settings["branches"]
    assert isinstance(branches, Mapping)
    for branch in branches.values():
        last = model.get_submodule(branch["last"])
        weight, bias = last.get_parameter("weight"), getattr(last, "bias", None)
        value = weight.new_zeros(len(weight)) if bias is None else bias.detach().clone()
        place, whole = branch["last"], last
        if branch["norm"]:
            place, whole = branch["norm"], model.get_submodule(branch["norm"])
            value = _normed(whole, value)
            _put(model, branch["last"], Hollow(last))
        for path in branch["hollow"]:
            _put(model, path, Hollow(model.get_submodule(path)))
        nothing = bias is None and not branch["norm"]
        _put(model, place, Hollow(whole) if nothing else Constant(whole, value))
    return model


def _normed(norm: nn.Module, value: torch.Tensor) -> torch.Tensor:
    """Return the output of a batch norm in eval mode for one number per channel."""
    mean, var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    value = (value - mean) * torch.rsqrt(var + norm.eps)  # type: ignore[operator]
    return value * norm.get_parameter("weight") + norm.get_parameter("bias") if norm.affine else value


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
