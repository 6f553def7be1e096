"""Bytes that training needs on one device.

Sources: Rajbhandari et al. 2020, ZeRO, SC, section 5 (what ZeRO shards); Zhao et al. 2023, PyTorch FSDP, VLDB 16(12),
section 3 (what FSDP holds while it computes).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Literal

import numpy as np

from paceline.array_types import Array
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES, WIDE, gathered_bytes
from paceline.memory_timeline import COMMUNICATORS, CONTEXT, FRAGMENTS
from paceline.prediction.exchange.exchange_plan import BucketSizes
from paceline.prediction.exchange.local_steps import local_bytes
from paceline.prediction.exchange.residual_memory import on_host, residual_bytes
from paceline.prediction.exchange.table_exchange import table_bytes
from paceline.prediction.passes.activation_offload import blocks_on_host
from paceline.prediction.passes.layer_roles import forward_product
from paceline.prediction.passes.recompute import recomputed
from paceline.prediction.step.framework_memory import framework_bytes, free_bytes
from paceline.prediction.step.optimizer_state import is_paged, largest_tensor, paged_out, state_bytes, temporary_bytes
from paceline.prediction.step.runtime_memory import communicators_bytes, context_bytes, workspace_bytes
from paceline.strategy.frameworks import ORDINARY, Framework
from paceline.strategy.frameworks.loss import LOSSES, Loss
from paceline.strategy.offload import HostActivations
from paceline.strategy.recompute import NO_RECOMPUTE, Recompute
from paceline.strategy.sharding import DISTRIBUTED, block
from paceline.strategy.strategy import Strategy
from paceline.strategy.updates.weight_update import EMA_BYTES
from paceline.workload.layers import COMPILED, UPCAST, Numbers
from paceline.workload.prepared import once
from paceline.workload.table import Workload

FRAGMENTED = 0.15
"""Share of a step's allocation that fragments may hold in addition: Guo et al. 2024, GMLake, arXiv:2401.08156, on eight
large language models (15 % on average, up to 33 %)."""
Fit = Literal["fits", "may not fit", "does not fit"]
"""``may not fit``: the allocation of a step fits, but its possible fragments (``FRAGMENTED``) do not."""
WORKSPACE = "workspace"
"""Purpose of the workspaces of matrix products, which PyTorch's allocator counts."""
GATHERED = 2  # unsharded FSDP units at once: one computes, one is on the network


def memory_breakdown(
    workload: Workload,
    strategy: Strategy,
    plan: BucketSizes,
    cluster: Cluster,
    divided: bool = False,
    *,
    framework: Framework,
) -> dict[str, float]:
    """Return bytes by purpose on the fullest device: ``fixed_bytes``, ``sample_bytes`` of a micro batch, and what no tensor
    holds. Communicators of a divided network are left to its mesh."""
    device, micro = cluster.device, strategy.micro_batch_size
    mesh, numbers = strategy.parallelism, saved_numbers(strategy, framework)
    loss = None if divided else loss_of(strategy, framework)
    of_sample = sample_bytes(
        workload, numbers, mesh.recomputation, strategy.precision, loss=loss, on_host=mesh.host_activations
    )
    fixed = fixed_bytes(workload, strategy, plan, device, divided)
    fixed |= framework_bytes(workload, strategy, framework, fixed)
    passes = {name: size * micro for name, size in of_sample.items()}
    beyond = (0.0 if divided else update_bytes(workload, strategy, framework, plan)) - fixed["gathered"] - sum(passes.values())
    sizes = {**fixed, **passes, **({"update": beyond} if beyond > 0 else {})}
    context = context_bytes(device)
    if context:
        fragments = free_bytes(strategy, framework, sum(sizes.values())) if device.kind == "gpu" else 0.0
        communicators = 0.0 if divided else communicators_bytes(mesh, cluster, megatron=framework.megatron)
        sizes |= {CONTEXT: context, COMMUNICATORS: communicators, FRAGMENTS: fragments}
    if is_paged(strategy):
        sizes["optimizer state"] -= paged_out(sum(sizes.values()), sizes["optimizer state"], strategy, usable_bytes(device))
    return sizes


def updated_weights(strategy: Strategy, plan: BucketSizes) -> float:
    """Return bytes of the buffer that gathers updated weights of the largest group next to a rank's part of it (``zero1``)."""
    mesh = strategy.parallelism
    if not mesh.sharding.by_rows or mesh.gather_bits or not plan.count:
        return 0.0
    return 4.0 * float(plan.elements.max()) * (1 + 1 / mesh.sharers)


def update_bytes(workload: Workload, strategy: Strategy, framework: Framework, plan: BucketSizes) -> float:
    """Return bytes that an update holds when the passes need none: its temporary tensors, then the gathered weights."""
    return max(temporary_update_bytes(workload, strategy, framework), updated_weights(strategy, plan))


def temporary_update_bytes(workload: Workload, strategy: Strategy, framework: Framework) -> float:
    """Return bytes of the update's temporary tensors (``temporary_bytes``)."""
    mesh = strategy.parallelism
    if not mesh.whole or mesh.sharding is DISTRIBUTED or mesh.offload.optimizer:
        return 0.0
    whole = temporary_bytes(workload, strategy, _stored_bytes(workload, strategy), framework)
    return whole / (mesh.sharers if mesh.sharding.optimizer else 1)


def _stored_bytes(workload: Workload, strategy: Strategy) -> float:
    """Return bytes of one value for each trained element, as the update reads it: fp32, or the precision's width of elements
    that have no fp32 copy."""
    if strategy.weight_update.narrow:
        return float(strategy.weight_update.width * workload.num_parameters)
    width = BYTES_PER_ELEMENT[strategy.precision]
    return 4.0 * (workload.num_parameters - workload.unwidened) + min(4.0, width) * workload.unwidened


def memory_range(memory: Mapping[str, float], device: Device) -> tuple[float, float]:
    """Return the least and the most bytes of a step with these predicted bytes by purpose. On a CPU both are equal.

    The least has no fragments. The most has ``FRAGMENTED`` more.
    """
    needed, context = sum(memory.values()), context_bytes(device)
    if not context:
        return needed, needed
    return needed - memory.get(FRAGMENTS, 0.0), needed + FRAGMENTED * (needed - context)


def usable_bytes(device: Device) -> float:
    """Return the most predicted bytes that surely fit. The rest is the headroom for fragments."""
    context = context_bytes(device)
    return (device.memory.value + FRAGMENTED * context) / (1 + FRAGMENTED) if context else device.memory.value


def fit_of(needed: float, device: Device) -> Fit:
    """Return the fit of a step with these predicted bytes in the device's memory."""
    if needed > device.memory.value:
        return "does not fit"
    return "fits" if needed <= usable_bytes(device) else "may not fit"


def fixed_bytes(
    workload: Workload, strategy: Strategy, plan: BucketSizes, device: Device, divided: bool = False
) -> dict[str, float]:
    """Return bytes by purpose that do not grow with the batch.

    Weights, gradients and optimizer state are fp32, except those of ``unwidened`` elements. A 16-bit precision also stores a
    16-bit copy of the fp32 weights, as autocast does. A recipe stores that copy, unless weights travel quantised, and a
    quantised one, or two, by rows and by columns (``QuantisationRecipe.copies``), as Transformer Engine does. DDP holds the
    gradients a second time in its buckets. Error feedback stores ``residual_bytes``. A compressed exchange holds one group and
    the chunks in flight. ``zero2`` holds all weights from the forward to the end of the backward pass. ``zero3`` holds two
    units of weights and two units of gradients, at the width of the precision. ``zero1`` gathers updated weights in a buffer
    for the largest group, in addition to a rank's part of it. Frozen weights have only that width; ``zero3`` shards and gathers
    them with the others, and elsewhere every device has all of them. Weights of 4 or 8 bits are sharded and gathered as codes.
    Their scales are no parameters, so every device has all (bitsandbytes, ``Params4bit.quant_state``).

    A divided network, and ``distributed_optimizer``, follow Megatron-Core: 18 bytes a parameter with Adam in 16 bits, the
    weights at 2, gradients in one fp32 buffer that is exchanged in place, master weights and optimizer state in fp32. With a
    distributed optimizer each of d replicas has its part of the last two: 6 + 12 / d (user guide, distributed optimizer).

    Encoders next to the network are whole on every device, at the width of the precision: frameworks wrap the trained network
    alone.

    Offloaded state is in host memory: optimizer state and master weights, sharded gradients, and with the weights their shards.

    Weights that are stored in bf16 have no fp32 copy, and gradients have their type. Kahan sums are another bf16 value each. An
    update in the backward pass holds the gradient of one tensor at a time.

    Args:
        plan: the exchange; its buckets alone give a lower bound.
        divided: whether the workload is one device's part of a divided network.
    """
    mesh, width = strategy.parallelism, BYTES_PER_ELEMENT[strategy.precision]
    level, workers = mesh.sharding, mesh.sharers
    update, whole = strategy.weight_update, _stored_bytes(workload, strategy)
    recipe = RECIPES.get(strategy.precision)
    copies = recipe.copies(device.architecture) * recipe.operand if recipe else 0.0
    quantised = recipe is not None and gathered_bytes(strategy.precision, mesh.gather_bits or 16) < width
    megatron = divided or mesh.sharding is DISTRIBUTED
    master = whole / (workers if megatron and level.optimizer else 1)
    copied = width < 4 and not update.narrow
    narrow = ((0 if quantised else width) + copies) * (workload.num_parameters - workload.unwidened) if copied else 0
    weights = (whole if megatron and not narrow else master) + narrow
    gathered = 0.0
    if level.weights:
        weights = whole / workers
        gathered = at_once(*units_of(plan, width, copies), again=mesh.sharding.gathers_again, ordered=not divided)
    elif divided:
        gathered = updated_weights(strategy, plan)
    left = 0.0 if mesh.offload.optimizer else 1.0  # share of the update's state on the device
    if not left:
        on_device = 0.0 if mesh.offload.weights else width * workload.num_parameters
        weights = on_device / (workers if level.weights else 1) + (copies * workload.num_parameters if not level.weights else 0)
    in_host = mesh.offload.weights and level.frozen
    frozen = 0.0 if in_host else (workload.code_bits / 8 or width) * workload.frozen
    scales = workload.scale_bits / 8 * workload.frozen
    ddp = plan.count > 0 and not level.weights
    local = strategy.sync_every > 1
    in_buckets = ddp and not local and not (megatron and not strategy.gradient_exchange.compression.compresses)
    reduced = 1 if update.narrow else (mesh.gradient_bits or 32) / 32
    of_gradients = (left * whole / workers if level.gradients else whole) * reduced
    if update.in_backward:
        of_gradients = update.width * largest_tensor(workload) / (workers if level.gradients else 1)
    state = state_bytes(workload, strategy, whole)
    return {
        "weights": weights,
        "frozen weights": frozen / (workers if level.frozen else 1) + scales,
        **({"encoders": width * workload.resident} if workload.resident else {}),
        "gathered": gathered,
        "gradients": of_gradients,
        "optimizer state": left * (state / workers if level.optimizer else state),
        **_rounding_bytes(workload, strategy),
        **({WORKSPACE: workspace} if (workspace := workspace_bytes(device)) else {}),
        **({"EMA": EMA_BYTES * workload.num_parameters / (workers if level.weights else 1)} if update.ema else {}),
        "buckets": whole if in_buckets else 0.0,
        "unused gradients": width * unused_gradients(workload) if megatron and width < 4 and not level.weights else 0.0,
        "error feedback": _feedback_bytes(plan, workload.num_parameters),
        "codec buffers": float(plan.codec_bytes),
        **unpacked_bytes(workload, strategy),
        **local_bytes(workload, strategy, plan),
        **({"embedding tables": table_bytes(workload.tables, strategy.world_size)} if workload.tables else {}),
    }


def units_of(plan: BucketSizes, width: float, copies: float) -> tuple[Array, Array]:
    """Return bytes of the gathered weights and of the gradients of each unit, in the order of the backward pass.

    Args:
        width: bytes of a weight. ``copies``: bytes of its quantised copies.
    """
    weights: Array = plan.gathered_bytes(width) * (1 + copies / width)
    gradients: Array = width * np.asarray(plan.elements, dtype=np.float64)
    return weights, gradients


def at_once(weights: Array, gradients: Array, *, again: bool, ordered: bool) -> float:
    """Return the most bytes of gathered units at once: weights of two neighbours, gradients of two neighbours.

    While a unit runs backward, the weights of the next one arrive, and the gradients of the one before are on their way.

    Args:
        again: whether the backward pass gathers again. Else all weights stay.
        ordered: whether the units are those of the network. Else any two may be neighbours.
    """
    if not ordered or not len(weights):
        held, sent = (sorted(of.tolist(), reverse=True) for of in (weights, gradients))
        return float(sum(held[:GATHERED] if again else held) + sum(sent[:GATHERED]))
    sent = gradients + np.concatenate([[0.0], gradients[:-1]])
    held = weights + np.concatenate([weights[1:], [0.0]]) if again else weights.sum()
    return float((held + sent).max())


def _rounding_bytes(workload: Workload, strategy: Strategy) -> dict[str, float]:
    """Return bytes of the sums of rounding errors; empty without them."""
    each, mesh = strategy.weight_update.compensation_bytes, strategy.parallelism
    owners = mesh.sharers if mesh.sharding.optimizer else 1
    return {"rounding errors": each * workload.num_parameters / owners} if each else {}


def unpacked_bytes(workload: Workload, strategy: Strategy) -> dict[str, float]:
    """Return bytes of frozen weights that a pass writes out: the largest of 4 or 8 bits, and experts with their adapters added.

    PEFT adds adapters to the weights of all experts of a layer in the forward pass, and the backward pass needs the sums
    (``tuners/lora/layer.py``, ``ParamWrapper``). Their gradient has the same size. Recomputed blocks hold one block's.
    """
    width = BYTES_PER_ELEMENT[strategy.precision]
    merged, blocks = merged_experts(workload)
    held = merged / blocks if strategy.parallelism.recompute.whole_blocks and blocks else merged
    found = width * (workload.unpacked + held + (merged / blocks if blocks else 0.0))
    return {"unpacked weights": found} if found else {}


@once
def merged_experts(workload: Workload) -> tuple[float, int]:
    """Return elements of experts with adapters, and the number of blocks that have them."""
    owners = {p.layer for p in workload.parameters if len(p.shape) == 3 and p.name.endswith(".up.weight")}
    names = {block(workload.layers[i].name) for i in owners}
    products = [product for i in owners if (product := forward_product(workload.layers[i])) is not None]
    return sum(p.n * p.k * p.batch for p in products), len(names)


@once
def unused_gradients(workload: Workload) -> float:
    """Return elements of the tensors that Megatron gives autograd in place of a weight's gradient.

    The gradient itself is added to the fp32 buffer. Transformer Engine keeps one tensor for each shape of weight in a block
    (``module/base.py``, ``get_dummy_wgrad``), the experts' together one. Megatron-Core has one for the logits while all
    activations are stored (``tensor_parallel/layers.py``, ``grad_added_to_main_grad``).
    """
    shapes: dict[str, int] = {}
    for parameter in workload.parameters:
        name = parameter.name
        if (prefix := block(name)) and len(parameter.shape) > 1:
            shapes[name.removeprefix(prefix)] = prod(parameter.shape[-2:])
    logits = (forward_product(layer) for layer in workload.layers if layer.is_logits)
    vocabulary = {(ceil(product.n), ceil(product.k)) for product in logits if product is not None}
    trained = {p.shape for p in workload.parameters if not block(p.name)}  # of the logits, or of a tied embedding
    return float(sum(shapes.values()) + sum(map(prod, vocabulary & trained)))


def _feedback_bytes(plan: BucketSizes, parameters: int) -> float:
    """Return bytes of residuals on the device. In host memory they take none of it, except copies of one group."""
    kept, copies = residual_bytes(plan.strategy, parameters, plan.elements.tolist())
    return copies if on_host(plan.strategy.gradient_exchange) else kept + copies


def numbers_of(strategy: Strategy, framework: Framework = ORDINARY) -> Numbers:
    """Return the numbers that the network computes on.

    Weights that are gathered or divided among devices have the width of the precision, as in FSDP's mixed precision and
    Megatron, which also fuses activations. Other weights are fp32, and a 16-bit precision is autocast.
    """
    if BYTES_PER_ELEMENT[strategy.precision] == 4:
        return "fp32"
    mesh = strategy.parallelism
    if not mesh.whole or mesh.sharding is DISTRIBUTED or framework.fuses:
        return "fused"
    narrow = mesh.sharding.scatters or mesh.offload.optimizer or strategy.weight_update.narrow
    if framework.upcasts:
        return "narrow upcast" if narrow else "autocast upcast"
    return "narrow" if narrow else "autocast"


def saved_numbers(strategy: Strategy, framework: Framework = ORDINARY) -> Numbers:
    """Return the numbers by which activations are saved: ``numbers_of``, and what a compiler leaves out."""
    numbers = numbers_of(strategy, framework)
    plain = UPCAST.get(numbers, numbers)
    return next((name for name, base in COMPILED.items() if framework.compiled and base == plain), numbers)


def loss_of(strategy: Strategy, framework: Framework) -> Loss:
    """Return the loss that a strategy names, else the framework's."""
    return LOSSES[framework.settles("loss", strategy.loss)]


@once
def loss_bytes(workload: Workload, numbers: Numbers) -> float:
    """Return bytes of one sample that the loss stores."""
    return max((layer.kept_bytes(numbers) for layer in workload.layers if layer.kind == "loss"), default=0.0)


def loss_at_once(workload: Workload, numbers: Numbers, loss: Loss) -> float:
    """Return bytes of one sample that the loss stores at once: all of them, or those of a part."""
    if numbers == "fused" and loss.chunks == 1:
        return loss_bytes(workload, numbers)
    return loss_bytes(workload, numbers) / loss.chunks if loss.chunks else 0.0


def sample_bytes(
    workload: Workload,
    numbers: Numbers,
    choice: Recompute = NO_RECOMPUTE,
    precision: str = WIDE,
    in_flight: float = 1.0,
    *,
    loss: Loss | None = None,
    on_host: HostActivations | None = None,
) -> dict[str, float]:
    """Return bytes by purpose of one sample of a micro batch: activations and the input.

    Recomputed activations are not stored (``prediction/passes/recompute.py``), except the largest part during recomputation.

    Args:
        precision: as for ``recomputed``; recipes store as much as bf16 unless layers are fused.
        in_flight: most micro batches at once whose backward pass has not run yet (pipeline).
        loss: way to compute it; None: in place, and counted with the largest part. Fused numbers have a fused loss, unless it
            holds parts of the logits alone.
        on_host: activations in the host's memory, of which the device holds two blocks' at once.
    """
    plan = recomputed(workload, choice, numbers, precision)
    kept, largest = plan.kept_bytes, plan.largest_bytes
    if loss is not None and (numbers != "fused" or loss.chunks != 1):
        of_loss = loss_at_once(workload, numbers, loss)
        kept -= loss_bytes(workload, numbers) - of_loss
        largest = max(largest - of_loss, loss.fp32_copies * of_loss)  # the loss is over when a part is recomputed
    kept *= in_flight
    if on_host is not None:
        blocks = blocks_on_host(workload, choice, on_host, numbers, precision)
        kept += blocks.buffer_bytes - in_flight * blocks.kept_bytes
    return {"activations": kept + largest, "inputs": float(workload.input_bytes)}
