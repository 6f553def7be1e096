"""Bytes that training needs on one device.

What ZeRO shares out follows Rajbhandari et al. 2020, ZeRO, SC, section 5; what FSDP holds while it computes, Zhao et al. 2023,
PyTorch FSDP, VLDB 16(12), section 3.
"""

from __future__ import annotations

from paceline.hardware.device import BYTES_PER_ELEMENT, Device
from paceline.prediction.exchange_plan import ExchangePlan, blocks
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

RESERVE = 1.5 * 2**30
"""Bytes of a device that is no CPU which training cannot have: about half a GiB each for the CUDA context with its loaded
kernels, for NCCL's buffers (NCCL_BUFFSIZE is 4 MiB a channel and peer) with the workspaces of cuBLAS and cuDNN, and for what
the caching allocator loses to fragments. An estimate, fitted on nothing."""
GATHERED = 2  # units of weights, or of gradients, that are whole at once: one at work, one on the network
FP8_COPIES = 2  # bytes a weight: it and its transpose


def memory_breakdown(workload: Workload, strategy: Strategy, plan: ExchangePlan, device: Device) -> dict[str, float]:
    """Bytes by purpose on the device that needs most: ``fixed_bytes``, ``sample_bytes`` of a micro batch, and the reserve."""
    micro = strategy.micro_batch_size
    of_sample = sample_bytes(workload, strategy.precision, strategy.parallelism.recompute)
    return {
        **fixed_bytes(workload, strategy, plan),
        **{name: size * micro for name, size in of_sample.items()},
        "reserve": reserve_bytes(device),
    }


def reserve_bytes(device: Device) -> float:
    """Bytes that the runtime, its libraries and fragments take; none where memory is the host's."""
    return 0.0 if device.kind == "cpu" else RESERVE


def fixed_bytes(workload: Workload, strategy: Strategy, plan: ExchangePlan) -> dict[str, float]:
    """What does not grow with the batch.

    Weights, gradients and optimizer state are fp32 (a 16-bit precision keeps a 16-bit copy of the weights beside them, as
    autocast does; fp8 that of bf16, and the weights and their transpose at a byte each, as Transformer Engine does). DDP
    holds the gradients a second time in its buckets. Error feedback keeps 4 bytes a parameter. An exchange of messages
    holds one group and the chunks on their way. Under ``zero2`` the weights are whole from forward to the end of backward,
    under ``zero3`` two units of them, at the width of the precision; so are two units' gradients. Frozen weights are held at
    that width alone, shared out only where the trained ones are.
    """
    level, workers, whole = strategy.parallelism.shares, strategy.world_size, 4.0 * workload.num_parameters
    width = BYTES_PER_ELEMENT[strategy.precision]
    copies = FP8_COPIES if strategy.precision == "fp8" else 0
    weights = whole + ((width + copies) * workload.num_parameters if width < 4 else 0)
    gathered = 0.0
    if level.weights:
        units = sorted((width * plan.elements).tolist(), reverse=True)
        weights = whole / workers
        held = sum(units if strategy.parallelism.sharding == "zero2" else units[:GATHERED])
        gathered = sum(units[:GATHERED]) + held * (1 + copies / width)
    ddp = plan.count > 0 and not level.weights
    return {
        "weights": weights,
        "frozen weights": width * workload.frozen / (workers if level.weights else 1),
        "gathered": gathered,
        "gradients": whole / workers if level.gradients else whole,
        "optimizer state": OPTIMIZERS[strategy.optimizer].state_words * (whole / workers if level.optimizer else whole),
        "buckets": whole if ddp else 0.0,
        "error feedback": whole if ddp and plan.strategy.description.error_feedback else 0.0,
        "codec buffers": float(plan.codec_bytes),
    }


def sample_bytes(workload: Workload, precision: str, recompute: bool, in_flight: float = 1.0) -> dict[str, float]:
    """What one sample of a micro batch takes: activations in the precision of the strategy, and the input.

    Recomputed, a block keeps its input, which is taken to be what its first layer keeps; the largest block is whole while it
    is run again.

    Args:
        in_flight: micro batches whose backward pass has not run yet, at most (pipeline).
    """
    if recompute:
        repeated = blocks(workload)
        kept = in_flight * (repeated.kept_bytes - repeated.largest_bytes) + repeated.largest_bytes
    else:
        kept = in_flight * workload.activation_bytes
    return {"activations": kept * BYTES_PER_ELEMENT[precision] / 4, "inputs": float(workload.input_bytes)}
