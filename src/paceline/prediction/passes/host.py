"""Kernels that a host launches, and its seconds for each.

Ordinary software launches all kernels. Tuned software replays graphs, except for blocks of experts that drop no token. The
number of rows of an expert is known only after the router, and no graph holds products of unknown size (Megatron-Core, README
of ``transformer/moe``, CUDA graph support; Megatron-Bridge's presets for H100 request none). There the host launches a product
for each expert of the device (Transformer Engine, ``GroupedLinear``: cuBLAS on several streams, #853). On Blackwell, under
MXFP8, one kernel reads the sizes from the device's memory, and a graph holds the whole step (Megatron-Bridge 26.06,
``perf_recipes``: ``cuda_graph_impl="full_iteration"`` with ``NVTE_CUTEDSL_FUSED_GROUPED_MLP``). Recipes for other precisions
and older releases leave the experts outside of graphs. A gate is computed with the expansion, as one product.

On Blackwell graphs hold the parts of a block up to the router; the host launches all else, such as shared experts, which
overlap with the exchange (Megatron-LM #1920, scopes ``attn``, ``moe_router``, ``moe_preprocess``, as in most presets). Under a
recipe of fewer bits the host also launches the casts of inputs and gradients, each of them one operator for all experts
(Transformer Engine, ``csrc/extensions/cast.cpp``). If it scales blocks of one row, two more for each product order the scales
of both operands (#1525, #2446). These were chosen in sight of the mixtures on GB200 and H100: Nemotron 3 Super takes the same
time under NVFP4 as under MXFP8.

Kernels of an adapter are bare launches, which take as long as those of a loop: its module is part of the layer's.

``host_s`` also includes host work of a layer other than launches, such as hooks of its parameters. A loop does not repeat it.
Nor do the sums of gradients, where a tensor has several users: the engine of autograd launches them from C++ (PyTorch,
``autograd/input_buffer.cpp``). They are the memory-bound kernels of a layer's backward pass beyond its forward kernels.
DenseNets, in which they are a third to a half of all kernels, said where to look (pytorch-gpu-benchmark).
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array, Ints
from paceline.calibration.accelerators import family
from paceline.calibration.constants import Efficiency, assumed
from paceline.hardware.device import Device
from paceline.hardware.precision import RECIPES
from paceline.prediction.passes.layer_roles import is_expert
from paceline.prediction.passes.operation_table import is_narrow
from paceline.strategy.sharding import block
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Layer
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_EACH_EXPERT_ON = ("Volta", "Turing", "Ampere GA100", "Ampere GA10x", "Ada", "Hopper", "Blackwell")
_GRAPHED_SINCE = {("Blackwell", "mxfp8"): 2026.4}
"""Architecture and precision whose graphs hold gated experts, and the year since which they do."""
_GRAPHED_TO_ROUTER = ("Blackwell",)
"""Architectures whose presets capture a block up to its router."""
_MOVED = ("dispatch", "combine")
_PRODUCTS = ("Linear", "Conv1D")
_WEIGHTED = ("Linear", "Conv", "Grouped")
_ORDERED_SCALES = ("mxfp8", "nvfp4")
"""Recipes whose products read scales in another order than casts write them."""


LOOP_S: float = assumed("loop_host_s")
"""Seconds that a host takes to launch a kernel again, in a loop of the network."""
GROUPED_S: float = assumed("grouped_host_s")
"""Seconds of the host for a further product of a group of experts."""
MEASURED_EXPERTS = 16
"""Most experts of a device in the measured runs from which ``expert_host_s`` comes. It includes the group's own work, such as
splits of its rows. A further expert is one more product in a loop of C++ (``nvte_multi_tensor_gemm``)."""


def host_seconds(device: Device, e: Efficiency) -> float:
    """Return seconds of the host for a kernel that it launches.

    The constants are for GPUs' hosts: a CPU launches nothing, a TPU runs compiled programs. Ordinary software on a Gaudi
    records each operation on the host (lazy mode), which is taken to last as long as a launch.
    """
    if device.kind != "gpu":
        own = family(device)
        return e.host_s if own is not None and own.lazy and e.level == "ordinary" else 0.0
    if e.level == "tuned" and device.architecture in _EACH_EXPERT_ON:
        return e.expert_host_s
    return e.host_s


def has_adapter(layer: Layer) -> bool:
    """Return whether a linear layer has an adapter: further products in the forward pass."""
    return own_operations(layer) < len(layer.operations)


def own_operations(layer: Layer) -> int:
    """Return the number of operations of a linear layer before those of its adapter, as the builder orders them."""
    if layer.kind not in _PRODUCTS:
        return len(layer.operations)
    forward = [i for i, o in enumerate(layer.operations) if o.kind == "matmul" and not o.backward]
    return forward[1] if len(forward) > 1 else len(layer.operations)


def host_launches(workload: Workload, e: Efficiency, device: Device, precision: str) -> Array:
    """Return the kernels that the host launches in each layer's forward and backward pass, (2, layers).

    Tuned software launches only those of blocks with experts, unless graphs hold these too. Repeats of a loop count by their
    share of ``host_seconds``.
    """
    tuned = e.level == "tuned"
    since = _GRAPHED_SINCE.get((device.architecture, precision))
    if tuned and since is not None and not 0 < e.year < since and _gates(workload):
        return np.zeros((2, len(workload.layers)))
    host_s = e.expert_host_s if tuned else e.host_s
    again = min(1.0, LOOP_S / host_s) if host_s else 1.0
    further = min(1.0, GROUPED_S / host_s) if host_s else 1.0
    of_recipe = (precision in RECIPES, 2 * (precision in _ORDERED_SCALES)) if tuned else (0, 0)
    return _counted(workload, tuned, again, further, *map(int, of_recipe), to_router=device.architecture in _GRAPHED_TO_ROUTER)


def hook_seconds(workload: Workload, strategy: Strategy, e: Efficiency) -> Array | None:
    """Return seconds of the host for hooks of modules by layer and pass, (2, layers); None without any.

    DeepSpeed gathers and releases the weights of each module by hooks in every pass (``runtime/zero/parameter_offload.py``;
    deepspeedai/DeepSpeed#6649 on mixtures of many experts).
    """
    mesh, each = strategy.parallelism, e.framework.module_host_s
    if not each or not mesh.whole or not (mesh.sharding.weights and mesh.sharding.gathers_again):
        return None
    return each * np.broadcast_to(_gathered_modules(workload), (2, len(workload.layers)))


@once
def _gathered_modules(workload: Workload) -> Array:
    """Return the modules with a matrix of each layer, (layers,). Small tensors such as those of norms are not shared out
    (``stage3_param_persistence_threshold``)."""
    return np.array([float(_modules(layer)) for layer in workload.layers])


def _modules(layer: Layer) -> int:
    """Return the modules of a layer that hold a matrix: the layer's own, two of an adapter, one of each looped expert."""
    products = [o for o in layer.operations if not o.backward and o.kind in ("matmul", "conv")]
    if layer.kind == "Embedding":
        return 1
    if not layer.kind.startswith(_WEIGHTED) or not products:
        return 0
    looped = is_expert(layer.name) and products[0].batch == 1
    return products[0].calls if looped else len(products)


def launches_of_step(workload: Workload, strategy: Strategy, e: Efficiency, device: Device) -> float:
    """Return the kernels that a host launches for one device in a step; for a pipeline, those of an even stage."""
    p = strategy.parallelism
    return float(host_launches(workload, e, device, strategy.precision).sum()) * p.micro_batches / p.pipeline


@once
def _gates(workload: Workload) -> bool:
    """Return whether the experts have a gate, as the fused kernel needs."""
    return any(layer.name.endswith("experts.gate") for layer in workload.layers)


@once
def units(workload: Workload) -> Ints:
    """Return the number of the unit of each layer, (layers,). A block is one, its part from dispatch to sum another, since
    the host waits for the router; the layers of no block are one each."""
    routed = _routed(workload)
    names = [(block(f"{layer.name}.") or layer.name, i in routed) for i, layer in enumerate(workload.layers)]
    known: dict[tuple[str, bool], int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def host_excess(
    workload: Workload, e: Efficiency, seconds: tuple[Array, Array], calls: Array, host_s: float
) -> tuple[Array, Array]:
    """Return the seconds by which the host is slower than the kernels, of each layer's passes, spread by their launches.

    The host runs ahead of the kernels, so this bounds whole passes. With experts outside of graphs it cannot run ahead: each
    block waits for the sizes that the router decides, and for the exchange with the other devices (Megatron-Core,
    ``token_dispatcher.py``). So each block's pass is as slow as the slower of both. Chosen in sight of the rows
    of Nemotron 3 and GPT-OSS on H100 and GB200.

    Args:
        seconds: of each layer's forward and backward pass, (layers,) each. ``calls``: launches, (2, layers).
    """
    if e.level != "tuned":
        count = max(1.0, float(calls.sum()))
        more = max(0.0, float(calls.sum()) * host_s - sum(float(part.sum()) for part in seconds)) / count
        return calls[0] * more, calls[1] * more
    of_layer = units(workload)

    def excess(worked: Array, launches: Array) -> Array:
        busy, launched = np.bincount(of_layer, worked), np.bincount(of_layer, launches)
        each = np.maximum(0.0, launched * host_s - busy) / np.maximum(launched, 1.0)
        spread: Array = launches * each[of_layer]
        return spread

    return excess(seconds[0], calls[0]), excess(seconds[1], calls[1])


@once
def _routed(workload: Workload) -> frozenset[int]:
    """Return the layers from a block's dispatch to the sum over experts."""
    return frozenset(i for i, layer in enumerate(workload.layers) if is_expert(layer.name) or layer.name.endswith(_MOVED))


@once
def _to_router(workload: Workload) -> frozenset[int]:
    """Return the layers of blocks with experts up to the scores of the router."""
    found: set[int] = set()
    since: dict[str, list[int]] = {}
    for i, layer in enumerate(workload.layers):
        own = block(f"{layer.name}.")
        since.setdefault(own, []).append(i)
        if layer.name.endswith("route"):
            found.update(since[own])
    return frozenset(found)


def _sums_of_gradients(layer: Layer) -> int:
    """Return the kernels of a layer's backward pass that add gradients of one tensor."""
    counted = [o for o in layer.operations if not o.autocast]
    forward = sum(o.calls for o in counted if not o.backward)
    return max(0, sum(o.calls for o in counted if o.backward and o.kind == "memory") - forward)


@once
def _counted(
    workload: Workload, tuned: bool, again: float, further: float, casts: int, ordered: int, *, to_router: bool
) -> Array:
    """Return the launches of each layer.

    Args:
        again: share of a launch for a repeat in a loop. ``further``: the same for an expert beyond ``MEASURED_EXPERTS``.
        casts: operators of a cast of an input or a gradient. ``ordered``: those that order the scales of a product.
        to_router: whether graphs hold the parts of a block up to the router.
    """
    layers, graphed = workload.layers, _to_router(workload) if to_router else frozenset[int]()
    blocks = [block(f"{layer.name}.") or layer.name.partition(".")[0] for layer in layers]
    mixed = {own for own, layer in zip(blocks, layers, strict=True) if is_expert(layer.name)}
    launches = np.zeros((2, len(layers)))
    for number, (own, layer) in enumerate(zip(blocks, layers, strict=True)):
        once = (1 + (layer.turns - 1) * again) / layer.turns
        held = tuned and (own not in mixed or layer.name.endswith("experts.gate") or number in graphed)
        if not tuned:
            launches[1, number] -= once * (1 - again) * _sums_of_gradients(layer)
        adapter = not tuned and has_adapter(layer)
        for place, o in enumerate(() if held else layer.operations):
            if o.autocast:
                continue  # the host's seconds were fitted on networks without them
            if adapter and place >= own_operations(layer):
                launches[int(o.backward), number] += once * o.calls * again
                continue
            apart = tuned and o.kind == "matmul" and is_expert(layer.name)
            if tuned and o.kind == "memory" and o.batch > 1:  # a loop over the experts
                launches[int(o.backward), number] += o.calls * (1 + (o.batch - 1) * again)
                continue
            quantised = is_narrow(o) and not layer.is_logits
            more = quantised * (ordered + casts * (o.grows == "m"))
            products = min(o.batch, MEASURED_EXPERTS) + further * max(0.0, o.batch - MEASURED_EXPERTS) if apart else 1.0
            launches[int(o.backward), number] += once * o.calls * (products + more)
    return launches
