"""Generation of completions: seconds by a stated rate or a roofline, and memory of the engine.

A decoding step reads the weights once for the batch, and the cache of keys and values of each sequence. It is limited by that
memory traffic, or in large batches by the products (Pope et al. 2022, arXiv:2211.05102, section 2.1). Prompts run as one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.calibration.constants import Efficiency, efficiency
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES, WIDE
from paceline.prediction.exchange.collective_time import collective_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.passes.blocks import block_begins
from paceline.prediction.passes.compute import Resource, memory_rate, peak_rate
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.passes.layer_roles import forward_product
from paceline.prediction.tasks.forward_only import cache_elements, tokens_of, weights_read
from paceline.strategy.strategy import Strategy
from paceline.strategy.tasks.task import Reward
from paceline.workload.table import Workload

CACHE_WIDTH = 2
"""Bytes of a key or value in the cache, and of the engine's weights."""
COLLECTIVES = 2
"""Sums over a tensor-parallel group in a block's forward pass (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Generation in one step.

    Attributes:
        spent: seconds by the resource that they wait for.
        memory: bytes of one device by purpose.
        at_once: sequences that are generated at once by one engine.
    """

    spent: Mapping[Resource, float]
    memory: Mapping[str, float]
    at_once: float

    @property
    def seconds(self) -> float:
        """Seconds of the generation."""
        return sum(self.spent.values())


def generation(workload: Workload, cluster: Cluster, strategy: Strategy, task: Reward, e: Efficiency) -> Generation:
    """Return the generation of a step's completions on the devices of each replica.

    Args:
        strategy: of the training, with a global batch in sequences.

    Raises:
        UserError: a prompt and a completion that are not the network's sequence, or no memory for the engine.
    """
    mesh, device = strategy.parallelism, cluster.device
    members, batch = mesh.model_devices, strategy.global_batch_size / mesh.data
    prompt = prompt_tokens(workload, task)
    whole, active = weights_read(workload)
    cache = CACHE_WIDTH * cache_elements(workload) / members
    each = (prompt + task.completion) * cache
    elements = workload.num_parameters + workload.frozen
    weights = CACHE_WIDTH * elements / members
    memory: dict[str, float] = {}
    at_once = batch
    if task.engine == "vllm":
        reserved = task.share * device.memory.value
        if reserved < weights + each:
            raise UserError(
                f"vLLM's {task.share:.0%} of the memory hold no {elements / 1e9:,.3g} billion weights and a sequence",
                "give the task share=0.5, engine=hf or engine=server, or give tensor",
            )
        at_once = min(batch, max(1.0, (reserved - weights) // each)) if each else batch
        memory = {"generation engine": reserved}
    elif task.engine == "hf":
        memory = {"generation cache": batch * each}
    if task.rate:
        return Generation({"memory bandwidth": batch * task.completion / (task.rate * members)}, memory, at_once)
    width = BYTES_PER_ELEMENT[strategy.precision] if strategy.precision not in RECIPES else CACHE_WIDTH
    read = min(whole, at_once * active) * min(CACHE_WIDTH, width) / members
    if task.engine != "hf":  # fused kernels in graphs
        e = efficiency("tuned")
    bandwidth = memory_rate(device, e)
    rate = peak_rate(device, WIDE if strategy.precision in RECIPES else strategy.precision, e) * members
    factor = e.factor_on(device.board)
    reads, products = factor * read / bandwidth, factor * 2 * active * at_once / rate
    cached = factor * at_once * (prompt + task.completion / 2) * cache / bandwidth
    near, far = _sums(workload, cluster, members, at_once, e)
    launched = 0.0
    if task.engine == "hf":  # graphs hold the kernels of vLLM
        launches = float(host_launches(workload, e, device, strategy.precision)[0].sum())
        launched = max(0.0, launches * host_seconds(device, e) - max(reads, products) - cached)
    turns = task.completion * batch / at_once
    shared = 1 if task.engine == "hf" else task.samples  # vLLM runs a prompt once for its completions
    prompts = factor * 2 * active * prompt * batch / shared / rate
    spent: dict[Resource, float] = {
        "compute": prompts + turns * (products if products > reads else 0.0),
        "memory bandwidth": turns * (cached + (reads if reads >= products else 0.0)),
        "launch overhead": turns * launched,
        "intra-node link": turns * near,
        "network": turns * far,
    }
    return Generation(spent, memory, at_once)


def prompt_tokens(workload: Workload, task: Reward) -> int:
    """Return the tokens of a prompt. Raises UserError if prompt and completion are not the network's sequence."""
    tokens = tokens_of(workload)
    prompt = task.prompt or tokens - task.completion
    if prompt < 1 or prompt + task.completion != tokens:
        total = task.prompt + task.completion if task.prompt else 2 * task.completion
        raise UserError(
            f"completions of {task.completion:,} tokens after prompts of {max(prompt, 0):,} in sequences of {tokens:,}",
            f"give sequences of {total:,} tokens (--seq-len {total})",
        )
    return prompt


def _sums(workload: Workload, cluster: Cluster, members: int, batch: float, e: Efficiency) -> tuple[float, float]:
    """Return seconds of the sums of one decoding step over a group, inside a node and over the network."""
    logits = next((p for x in workload.layers if x.is_logits and (p := forward_product(x))), None)
    if members == 1 or logits is None:
        return 0.0, 0.0
    sizes = np.array([batch * logits.k * CACHE_WIDTH])
    seconds, far = collective_seconds(sizes, group_view(cluster, members, 1, "tensor"), e, halves=False)
    every = COLLECTIVES * len(block_begins(workload)) * float(seconds[0])
    return (0.0, every) if far[0] else (every, 0.0)
