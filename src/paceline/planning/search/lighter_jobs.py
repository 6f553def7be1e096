"""Lighter jobs for devices that are too small: weights next to adapters in 4 bits, state in host memory, shorter sequences.

They come before other devices. Jobs with the fewest changes are first, and each is predicted to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.search.nearest_fit import ADAPTERS, BITS, LOSS, NARROW, SHORTER, ChangeSearch, Fitting
from paceline.prediction import ORDINARY, StepPredictor
from paceline.prediction.passes.offload import can_offload, offloads
from paceline.strategy import Strategy
from paceline.strategy.offload import OFFLOAD_CHECKPOINTS, OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS
from paceline.strategy.sharding import ZERO3
from paceline.strategy.updates.weight_update import BF16, IN_BACKWARD
from paceline.workload.builders.adapters.lora import ALL, USUAL_RANK, LoRA
from paceline.workload.table import Workload


@dataclass(frozen=True)
class AdjustableJob:
    """Parts of a job that may become lighter.

    Attributes:
        made: returns the network with adapters, by their text, on sequences of so many tokens; 0: as asked.
        lora: adapters of the job; None without.
        tokens: tokens of a sequence; 0 if samples are no sequences, or if the length is fixed.
    """

    made: Callable[[str, int], Workload]
    lora: LoRA | None = None
    tokens: int = 0


LEAST_POWER = 8
"""Binary logarithm of the shortest sequence to try."""
_FEW = 4
"""Number of lighter jobs to name."""
_MOVED = (
    *(OFFLOAD_OPTIMIZER.name, OFFLOAD_CHECKPOINTS.name, OFFLOAD_WEIGHTS.name),
    f"{OFFLOAD_WEIGHTS.name}+{OFFLOAD_CHECKPOINTS.name}",
)
"""State to move to the host, the least first. Checkpoints are the inputs of recomputed blocks."""
IN_PARTS = "chunked"
"""The loss in parts of the tokens, which writes no logits of all of them."""
_FASTER = 1.5
"""Speedup from which a lighter job of one change more is named too."""
_NARROW: Mapping[str, Any] = {"optimizer": "paged_adamw_8bit", "update": IN_BACKWARD, "stored_weights": BF16}
"""Full fine-tuning of least memory, as torchtune's recipes for one device have it."""
_ADAPTED = LoRA(USUAL_RANK, (ALL,))
"""Adapters to offer for a network that is trained whole."""


def lighter_jobs(
    job: AdjustableJob, cluster: Cluster, strategy: Strategy, *, predictor: StepPredictor = ORDINARY
) -> tuple[Fitting, ...]:
    """Return changes of the job itself with which it fits the same devices, those of the fewest kinds first.

    Weights next to adapters in 4 bits, the loss in parts, state in host memory, shorter sequences, and in place of fp32 weights
    adapters, or bf16 weights with paged 8-bit state. They are tried one by one, then several together until some fit, with
    those of one change more that are much faster. Each may also shard, recompute and take micro steps, and is predicted to fit.
    """
    packed = None if job.lora is None or job.lora.bits else replace(job.lora, bits=4, double=True)
    parts = strategy.choice("loss") != IN_PARTS and any(layer.is_logits for layer in job.made(_text(job), 0).layers)
    steps = (
        [BITS] * (packed is not None) + [LOSS] * parts + ["offload"] * offloads(cluster.device) + [SHORTER] * (job.tokens > 0)
    )
    sets = [list(combinations(steps, size)) for size in (1, 2, 3)]
    if job.lora is None:
        sets = [[*sets[0], (ADAPTERS,), (ADAPTERS, BITS), (NARROW,)], [(ADAPTERS, BITS, *of) for of in sets[0]]]
    found: list[Fitting] = []
    for kinds in sets:
        fits = [fit for of in kinds if (fit := _lighter(job, of, cluster, strategy, predictor)) is not None]
        if found:  # more changes are worth naming if they are much faster
            best = max(fit.prediction.samples_per_s for fit in found)
            more = [fit for fit in fits if SHORTER not in fit.kinds and fit.prediction.samples_per_s > _FASTER * best]
            return tuple([*found, *more][:_FEW])
        found = fits
    return tuple(found[:_FEW])


def _lighter(
    job: AdjustableJob, kinds: tuple[str, ...], cluster: Cluster, strategy: Strategy, predictor: StepPredictor
) -> Fitting | None:
    """Return the job with these changes and the best strategy that fits; None if none does."""
    adapters = job.lora
    if ADAPTERS in kinds:
        adapters = _ADAPTED
    if BITS in kinds and adapters is not None:
        adapters = replace(adapters, bits=4, double=True)
    if NARROW in kinds:
        shared = {"sharding": ZERO3.name} if strategy.parallelism.replica_count > 1 else {}
        try:
            strategy = strategy.changed(**shared).changed(**_NARROW)
        except UserError:  # another precision, or a division that has fp32 weights
            return None
    text = adapters.text if adapters is not None else ""
    if LOSS in kinds:
        strategy = strategy.changed(loss=IN_PARTS)
    lengths = _shorter(job.tokens) if SHORTER in kinds else (0,)
    for tokens in lengths:
        try:
            network = job.made(text, tokens)
        except UserError:  # experts with adapters have no 4 bits, or the network has one fixed length
            return None
        best = _fitting_strategy(network, cluster, strategy, predictor, "offload" in kinds)
        if best is not None:
            step = predictor.step(network, cluster, best)
            changed = text if adapters != job.lora else ""
            if step.fit == "fits":
                return Fitting(kinds=kinds, cluster=cluster, strategy=best, prediction=step, lora=changed, tokens=tokens)
    return None


def _text(job: AdjustableJob) -> str:
    return job.lora.text if job.lora is not None else ""


def _shorter(tokens: int) -> tuple[int, ...]:
    """Return the lengths to try, powers of two, the longest first."""
    return tuple(1 << power for power in range(max(0, tokens - 1).bit_length() - 1, LEAST_POWER - 1, -1))


def _fitting_strategy(
    network: Workload, cluster: Cluster, strategy: Strategy, predictor: StepPredictor, offload: bool
) -> Strategy | None:
    """Return the fastest strategy that fits, with micro steps, recomputation and sharding as needed; None if none does."""
    strategy = strategy.settled(network, cluster)
    model = predictor.uncorrected.changed(calibration=None, loader=0.0, free=frozenset())
    search = ChangeSearch(network, model)
    if offload and not can_offload(network.num_parameters, cluster):
        return None
    moved = _MOVED if offload else ("",)
    fitting = search.fitting([] if offload else [(cluster, strategy)])
    for where in moved:
        fitting = fitting or search.fitting(search.whole(cluster, strategy, where))
    return min(fitting, key=lambda of: of[0])[1][1] if fitting else None


def with_lighter(
    fitting: Sequence[Fitting], job: AdjustableJob, cluster: Cluster, strategy: Strategy, predictor: StepPredictor
) -> tuple[Fitting, ...]:
    """Return the changes of ``nearest_fit`` with lighter jobs before other devices, those of one change first.

    There are none if the job fits the same devices without offload.
    """
    here = [fit for fit in fitting if fit.cluster == cluster]
    if any("offload" not in fit.kinds for fit in here):
        return tuple(fitting)
    lighter = [
        fit for fit in lighter_jobs(job, cluster, strategy, predictor=predictor) if not here or fit.kinds != ("offload",)
    ]
    single = [fit for fit in lighter if len(fit.kinds) == 1]
    several = [fit for fit in lighter if len(fit.kinds) > 1]
    return (*single, *here, *several, *(fit for fit in fitting if fit.cluster != cluster))
