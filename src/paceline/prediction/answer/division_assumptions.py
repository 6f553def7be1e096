"""Assumptions about the division of the work among devices and in time, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.prediction.answer.result import Assumption
from paceline.prediction.exchange.matrix_exchange import matrix_bytes, orthogonalizers
from paceline.prediction.passes.layer_roles import forward_product
from paceline.prediction.passes.orthogonal import newton_schulz_flops
from paceline.prediction.passes.recompute import recomputed
from paceline.strategy.optimizer import DEFAULT, OPTIMIZERS
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.recompute import SELECTIVE_RECOMPUTE, Recompute
from paceline.strategy.sharding import DISTRIBUTED
from paceline.strategy.strategy import Strategy
from paceline.strategy.updates.weight_update import STORED, UPDATES
from paceline.workload.table import Workload

UNEVEN = 1.1
"""Work of the fullest stage over the mean from which an assumption mentions it."""


def division_assumptions(workload: Workload, strategy: Strategy) -> Iterator[Assumption]:
    """Yield assumptions about the mesh, micro steps, sharding, the optimizer and recomputation."""
    mesh, level = strategy.parallelism, strategy.parallelism.sharding
    yield from _divided(strategy)
    heads = _key_heads(workload)
    if heads % mesh.tensor:
        yield Assumption(
            "parallelism",
            f"The {heads} heads of keys and values do not divide among {mesh.tensor} devices, so devices have copies of them. "
            "The weights, memory and time of the copies are not counted.",
        )
    if mesh.micro_batches > 1:
        when = "after each one, so that they stay sharded" if level.gradients else "after the last one"
        yield Assumption(
            "parallelism",
            f"{mesh.micro_batches} micro steps of {strategy.micro_batch_size} samples on each worker. "
            f"Gradients are exchanged {when}.",
        )
    if level.weights:
        yield Assumption(
            "parallelism",
            f"{mesh.sharding} as in FSDP: weights are gathered one unit ahead, gradients are reduce-scattered, both in "
            f"{strategy.precision}. A unit is a block, or several blocks up to the bucket's size.",
        )
    elif mesh.real_sharding is DISTRIBUTED:
        bits = f"{mesh.gradient_bits} bits" if mesh.gradient_bits else "fp32"
        yield Assumption(
            "parallelism",
            f"{mesh.sharding} as Megatron-Core's distributed optimizer: gradients are reduce-scattered in {bits}. Updated "
            "weights are gathered at the width of the precision, during the next step's first forward pass.",
            "Megatron-Core, user guide, distributed optimizer",
        )
    elif level.optimizer:
        yield Assumption(
            "parallelism",
            f"{mesh.sharding} as ZeroRedundancyOptimizer: gradients are all-reduced. Updated weights are gathered as fp32.",
        )
    if mesh.shard_devices and mesh.shard_devices < mesh.data * mesh.context:
        yield Assumption(
            "parallelism",
            f"{mesh.shard_devices} neighbours share out one copy (HSDP). An all-reduce sums the gradients of their shares with "
            "those of the other groups.",
            "Zhao et al. 2023, PyTorch FSDP, VLDB 16(12), section 3.2.2",
        )
    if workload.frozen:
        gathered = ", shared out, and gathered in the forward and in the backward pass" if level.frozen else " on every device"
        held = f"{workload.frozen_bits:.3g} bits at the mean" if workload.frozen_bits else strategy.precision
        yield Assumption("memory", f"{workload.frozen:,} frozen weights are held in {held}{gathered}.")
    if workload.resident:
        text = f"{workload.resident:,} weights of encoders are held in {strategy.precision}, whole on every device."
        yield Assumption("memory", text)
    yield from _update(workload, strategy)
    if mesh.recompute:
        yield Assumption("recomputation", _recomputation(workload, mesh.recomputation))


def uneven_stages(work_s: Sequence[float], step_s: float) -> tuple[Assumption, ...]:
    """Return the cost of uneven stages; empty if they are nearly even.

    Args:
        work_s: seconds of the passes of each stage.
    """
    mean, most = sum(work_s) / max(1, len(work_s)), max(work_s, default=0.0)
    if most <= UNEVEN * mean:
        return ()
    text = (
        f"Stage {work_s.index(most)} works {most / mean:.2g} times as long as the mean of the {len(work_s)} stages, and the "
        f"others idle meanwhile: even stages would save up to {(most - mean) / step_s:.0%} of the step."
    )
    return (Assumption("parallelism", text),)


def _key_heads(workload: Workload) -> int:
    """Return the heads of the keys in the first attention layer; 0 if no layer's name shows them."""
    keys = 0.0
    for layer in workload.layers:
        product = forward_product(layer)
        if layer.name.endswith("attention.key") and product is not None:
            keys = product.n
        attention = next((o for o in layer.operations if o.grows == "batch" and o.k and not o.backward), None)
        if attention is not None:
            return round(keys / attention.k)
    return 0


def _exchanged(workload: Workload, strategy: Strategy) -> str:
    """Return what replicas exchange of the matrices, as the end of a sentence."""
    each, gathered = matrix_bytes(workload, strategy)
    parts = [f"two all-to-alls of {each:.3g} bytes a device"] * (each > 0) + [f"a gather of {gathered:.3g} bytes"] * (
        gathered > 0
    )
    return f", with {' and '.join(parts)}, which torch.optim.Muon does not have" if parts else ""


def _update(workload: Workload, strategy: Strategy) -> Iterator[Assumption]:
    """Yield sentences on the optimizer's state, its kernels, and the types of stored weights."""
    optimizer, update = OPTIMIZERS[strategy.optimizer], strategy.weight_update
    bits = update.value_bytes(optimizer) * 8
    kept = f"{optimizer.state_words} {'fp32 values' if bits == 32 else f'values of {bits:.4g} bits'} of state a parameter"
    if optimizer.factored:
        kept = "one fp32 value of state for each row and column of a matrix"
    if optimizer.orthogonal:
        kept = f"1 value of {bits:.4g} bits a parameter of matrices in blocks, 2 elsewhere, where AdamW updates"
    yield Assumption(
        "optimizer",
        f"Optimizer: {optimizer.name}, {kept}. The default is {DEFAULT}. plan takes the optimizer of the recipe.",
    )
    if optimizer.orthogonal:
        yield Assumption(
            "optimizer",
            f"Orthogonalization: {newton_schulz_flops(workload):.3g} FLOPs a step in bf16, five Newton-Schulz steps of each "
            f"matrix, shared by {orthogonalizers(strategy)} devices{_exchanged(workload, strategy)}.",
            "torch.optim.Muon; Megatron-Core, LayerWiseDistributedOptimizer; paceline.Muon",
        )
    if optimizer.paged:
        yield Assumption(
            "optimizer",
            "Its state is in unified memory: the part that does not fit next to all else is in the host's, and moves there and "
            "back in every step. PyTorch's counters of memory leave this state out.",
            "bitsandbytes, paged optimizers",
        )
    if update.update:
        yield Assumption("optimizer", f"Update {update.update}: {UPDATES[update.update]}.", "PyTorch, torch.optim")
    if update.ema:
        yield Assumption(
            "optimizer",
            "EMA: each device averages the weights that it has into an fp32 copy, once a step.",
            "diffusers, training_utils.py, EMAModel",
        )
    if update.stored_weights:
        yield Assumption("memory", f"Stored: {STORED[update.stored_weights]}.", "Zamirai et al. 2020, arXiv:2010.06192")


def _recomputation(workload: Workload, choice: Recompute) -> str:
    """Describe what runs again, or why nothing does."""
    count = len(recomputed(workload, choice).names)
    if choice.whole_blocks:
        if not count:
            return "Recomputation changes nothing: no layer's name marks it as part of a block."
        return f"The backward pass runs {count} blocks again. Only their inputs are kept."
    if choice.by_operation:
        return f"In {count} blocks the results of attention and of every other product are kept. All else runs again."
    if count:
        return f"The backward pass runs {count} parts again: {', '.join(choice.parts)}. Only their inputs are kept."
    if choice.parts == SELECTIVE_RECOMPUTE.parts and workload.attends:
        return "Selective recomputation changes nothing: a fused kernel of attention keeps no scores."
    return f"Selective recomputation changes nothing: the network has no {' or '.join(choice.parts)} in its blocks."


def _divided(strategy: Strategy) -> Iterator[Assumption]:
    """Describe how several devices divide a replica, one sentence at a time."""
    mesh = strategy.parallelism
    if mesh.tensor > 1:
        between = "divided by tokens" if mesh.sequence else "repeated on each device"
        yield Assumption(
            "parallelism",
            f"Tensor parallelism of {mesh.tensor} as in Megatron: neighbours of a node divide attention by heads, the "
            f"feed-forward network by its width and the vocabulary. Norms, dropout and sums are {between}. Collectives of the "
            "backward pass run during the weights' gradients; tuned software with sequence parallelism overlaps all of them "
            "with their products.",
            "Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198",
        )
    if mesh.context > 1:
        how = (
            "pass around a ring during attention"
            if mesh.context_exchange.passes_around
            else "are swapped for heads (all-to-all)"
        )
        yield Assumption(
            "parallelism",
            f"Context parallelism of {mesh.context}: each device has a part of every sequence. Keys and values {how}. "
            "Parts take equally long.",
            "Liu et al. 2023, arXiv:2310.01889; Jacobs et al. 2023, arXiv:2309.14509",
        )
    if mesh.expert_devices > 1:
        yield from _experts(mesh)
    if mesh.pipeline > 1:
        parts = f", {mesh.virtual_stages} parts on each" if mesh.virtual_stages > 1 else ""
        yield Assumption(
            "parallelism",
            f"A pipeline of {mesh.pipeline} stages{parts}, schedule {mesh.schedule}, {mesh.micro_batches} micro batches. "
            f"{_blocks(mesh)}. The update waits for the norm of all gradients.",
            "Narayanan et al. 2021, arXiv:2104.04473",
        )
        if mesh.micro_batches < 4 * mesh.pipeline:
            yield Assumption(
                "parallelism",
                f"{mesh.micro_batches} micro batches are few for {mesh.pipeline} stages. More of them shrink the bubble.",
            )


def _blocks(mesh: Parallelism) -> str:
    """Describe the number of blocks of the stages."""
    ends = (("first", mesh.first_stage_layers), ("last", mesh.last_stage_layers))
    given = " and ".join(f"the {name} stage has {count} blocks" for name, count in ends if count)
    others = "the others have" if given else "Stages have"
    equal = f"{others} blocks in numbers as equal as can be"
    return f"{given[0].upper()}{given[1:]}, {equal}" if given else equal


def _experts(mesh: Parallelism) -> Iterator[Assumption]:
    """Yield sentences on how devices share the experts, and how evenly tokens are routed to them."""
    width = f", and {mesh.expert_tensor} devices divide each by its width" if mesh.expert_tensor > 1 else ""
    once = "once to each node" if mesh.expert_exchange.once_per_node else "once for each expert"
    hides = "Another micro batch's kernels hide" if mesh.expert_overlap else "Nothing hides"
    same = mesh.expert_replicas.data
    summed = f"Gradients of experts are exchanged among the {same} devices that have the same ones." if same > 1 else ""
    yield Assumption(
        "parallelism",
        f"Expert parallelism of {mesh.expert}: neighbours in a stage share the experts{width}. {hides} the two "
        f"all-to-alls of a block in each pass. A token crosses the network {once}. {summed}".rstrip(),
        "Lepikhin et al. 2020, arXiv:2006.16668; Liu et al. 2025, arXiv:2504.14960; DeepSeek-AI 2024, arXiv:2412.19437, 3.2.2",
    )
    if mesh.expert_imbalance > 1:
        text = f"The experts of the fullest device get {mesh.expert_imbalance:g} times as many tokens as the mean; others wait."
    else:
        text = "All devices get equally many tokens for their experts: --expert-imbalance says how many more the fullest gets."
    yield Assumption("parallelism", text)
