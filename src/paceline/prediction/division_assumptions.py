"""What a prediction assumes of how several devices hold a network, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.prediction.result import Assumption
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.strategy import Strategy


def division_assumptions(strategy: Strategy) -> Iterator[Assumption]:
    """How several devices hold a replica."""
    mesh = strategy.parallelism
    if mesh.tensor > 1:
        between = "divided by tokens" if mesh.sequence else "repeated on each device"
        yield Assumption(
            "parallelism",
            f"Tensor parallelism of {mesh.tensor} as in Megatron: neighbours of a node divide attention by heads, the "
            f"feed-forward network by its width and the vocabulary. Norms, dropout and sums are {between}. Collectives of the "
            "backward pass run beside the weights' gradients; tuned software with sequence parallelism runs all of them beside "
            "their products.",
            "Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198",
        )
    if mesh.context > 1:
        how = "pass around a ring beside attention" if mesh.context_exchange == "ring" else "are swapped for heads (all-to-all)"
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
            "Stages have blocks in numbers as equal as can be. The update waits for the norm of all gradients.",
            "Narayanan et al. 2021, arXiv:2104.04473",
        )
        if mesh.micro_batches < 4 * mesh.pipeline:
            yield Assumption(
                "parallelism",
                f"{mesh.micro_batches} micro batches are few for {mesh.pipeline} stages. More of them shrink the bubble.",
            )


def _experts(mesh: Parallelism) -> Iterator[Assumption]:
    """How devices share the experts, and how evenly tokens go to them."""
    width = f", and {mesh.expert_tensor} devices divide each by its width" if mesh.expert_tensor > 1 else ""
    once = "once to each node" if mesh.expert_exchange == "once_per_node" else "once for each expert"
    hides = "Another micro batch's kernels hide" if mesh.expert_overlap else "Nothing hides"
    alike = mesh.expert_replicas.data
    summed = f"Gradients of experts are exchanged among the {alike} devices that have the same ones." if alike > 1 else ""
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
