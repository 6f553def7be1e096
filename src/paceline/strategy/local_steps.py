"""Local steps between exchanges: description of Local SGD and DiLoCo.

Each worker takes ``sync_every`` steps with its local optimizer. Then the workers average their pseudo-gradients, the weights at
the last exchange minus the weights now, and an outer step of SGD with Nesterov momentum moves the shared weights by that mean
(Douillard et al. 2023, DiLoCo, arXiv:2311.08105, Algorithm 1). With an outer rate of 1 and no momentum this is Local SGD, the
mean of the weights (Stich 2019, ICLR, arXiv:1805.09767). Fragments of the network can take turns, and an exchange can overlap
the next steps (Douillard et al. 2025, Streaming DiLoCo, arXiv:2501.18512).

A worker may be a group of devices that adds its gradients in every step and shards the network (FSDP2, HSDP). Residuals that
decay replace the outer momentum in SparseLoCo (Sarfi et al. 2025, arXiv:2508.15706, Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from paceline.errors import UserError
from paceline.strategy.buckets import T
from paceline.strategy.choices.choice import FIGURES, RUNS, EmitRule, Need, Trained, check_needs, check_values, choice
from paceline.strategy.choices.choice_values import RealNumber, WholeNumber
from paceline.strategy.codec_place import IN_CARD
from paceline.strategy.compression.compression import Compression
from paceline.strategy.worker_counts import check_workers

OUTER_LR = 0.7
OUTER_MOMENTUM = 0.9
"""Momentum of the outer step: DiLoCo, section 3.1."""
MIXING = 0.5
"""Default share of a worker's own weights if its steps overlap an exchange: Streaming DiLoCo takes equal shares."""

_PEERS = Trained("{name}={value:g}, whose workers are peers of one run", "call paceline.attach_local with peers in your script")
"""Rule of choices that only peers have, which the workers of ``train`` are not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSteps:
    """Interval of the workers' exchanges, and the outer step that applies the mean.

    Attributes:
        sync_every: steps of each worker from one exchange of a fragment to its next; 1: an exchange in every step.
        fragments: parts of the network, whole layers in model order and about equal in size, that take turns: each is exchanged
            every ``sync_every`` steps, at different steps.
        sync_delay: steps that overlap an exchange; 0: the workers wait for it.
        mixing: share of a worker's own weights in the weights it continues from when a delayed exchange arrives; None: 0.5.
            Without a delay the share is 0, and all workers continue from the same weights.
        outer_lr, outer_momentum: learning rate and momentum of the outer step.
        round_deadline_s: seconds that the peers of ``attach_local(peers=...)`` wait at an exchange for those that are late;
            0: an exchange takes place among those that are ready; None: they wait for every live peer.
        max_age: outer steps by which a late peer's pseudo-gradient may be old and still count. With 0 a late peer takes the
            shared weights, and its own steps since its last exchange are lost.
        residual_decay: factor of a residual of error feedback before the next pseudo-gradient is added; 1 keeps it.
        worker_devices: neighbouring devices of one worker, which exchange gradients in every step. 0: those that share one
            copy of the network (``Parallelism.shard_devices``), or one device if the network is not sharded.

    Raises:
        UserError: a number out of range, more fragments than steps, a delay that lasts until after the next exchange, a mixing
            factor without a delay, an age without a deadline.
    """

    sync_every: int = choice(
        1,
        WholeNumber("steps from one exchange to the next"),
        "steps that each worker takes alone before the workers exchange how far they have come (default {default}: gradients)",
        metavar="H",
        example="32",
        title=lambda local: local.title,
        title_rank=-1,
        train=RUNS,
        source="Stich 2019, arXiv:1805.09767",
        grouped_by=lambda steps: steps > 1,
        emit=EmitRule("an exchange every {value} steps", "call paceline.attach_local in the script's loop"),
        strategy_needs=(
            Need(
                lambda s: s.parallelism.sharding.weights or not s.parallelism.sharding.shares_out,
                "sync_every {value} does not go with {of.parallelism.sharding}, whose owners update weights for all workers",
                "give sharding ddp, or zero2 or zero3 within each worker",
            ),
            Need(
                lambda s: s.parallelism.whole,
                "sync_every {value} does not go with a network that several devices hold together",
                "divide it no further than by data",
            ),
            Need(
                lambda s: not s.parallelism.offload.optimizer,
                "sync_every {value} does not go with offload {of.parallelism.offload}",
                "give offload none",
            ),
            lambda s: s.local.check_compression(s.description),
            check_workers,
        ),
    )
    fragments: int = choice(
        1,
        WholeNumber("fragments"),
        "with --sync-every: parts of the network that are exchanged in turn (default {default})",
        metavar="F",
        example="4",
        train=RUNS,
        needs=(
            Need(
                lambda local: local.sync_every > 1,
                "{value} fragments with an exchange in every step",
                "give sync_every too",
            ),
            Need(
                lambda local: local.fragments <= local.sync_every,
                "{value} fragments in {of.sync_every} steps: one is exchanged in a step",
                "give at most {of.sync_every} fragments, or more steps between exchanges",
            ),
        ),
        source="Douillard et al. 2025, arXiv:2501.18512",
    )
    sync_delay: int = choice(
        0,
        WholeNumber("steps that overlap an exchange", 0),
        "with --sync-every: steps that overlap an exchange (default {default}: workers wait for it)",
        metavar="D",
        example="8",
        train=RUNS,
        needs=(
            Need(
                lambda local: local.sync_every > 1,
                "a delay of {value} steps with an exchange in every step",
                "give sync_every too",
            ),
            Need(
                lambda local: local.sync_delay <= local.longest_delay,
                "an exchange that overlaps {value} steps, with {of.fragments} of them every {of.sync_every} steps",
                "give a delay of at most {of.longest_delay}: one exchange ends before the next begins",
            ),
        ),
        source="Douillard et al. 2025, arXiv:2501.18512",
        affects=("time", "numerics"),
    )
    mixing: float | None = choice(
        None,
        RealNumber(0.0, 0.9999, optional=True),
        f"with --sync-delay: share of a worker's own weights in those it continues from (default {MIXING:g})",
        metavar="A",
        example="0.5",
        train=replace(RUNS, read_as="own_share"),
        needs=(
            Need(
                lambda local: local.sync_delay > 0,
                "mixing={value} without a delay: all workers continue from the same weights",
                "leave it out, or give sync_delay",
            ),
        ),
        source="Douillard et al. 2025, arXiv:2501.18512",
        affects=("numerics",),
    )
    outer_lr: float = choice(
        OUTER_LR,
        RealNumber(1e-6, 10.0),
        "with --sync-every: rate of the outer step; 1 without momentum is Local SGD (default {default})",
        metavar="RATE",
        example="0.7",
        train=RUNS,
        source="Douillard et al. 2023, arXiv:2311.08105, section 3.1",
        affects=("numerics",),
    )
    outer_momentum: float = choice(
        OUTER_MOMENTUM,
        RealNumber(0.0, 0.9999),
        "with --sync-every: Nesterov momentum of the outer step (default {default})",
        metavar="M",
        example="0.9",
        train=RUNS,
        source="Douillard et al. 2023, arXiv:2311.08105, section 3.1",
        affects=("time", "memory", "numerics"),
    )
    round_deadline_s: float | None = choice(
        None,
        RealNumber(0.0, 86_400.0, optional=True),
        "with --sync-every: seconds that an exchange waits for late peers; 0: for none (default: for every live peer)",
        option="round-deadline",
        metavar="SECONDS",
        example="30",
        later=True,
        train=_PEERS,
        needs=(
            Need(
                lambda local: local.sync_every > 1,
                "a deadline of {value:g} s with an exchange in every step",
                "give sync_every too",
            ),
            Need(
                lambda local: local.fragments == 1,
                "a deadline of {value:g} s with {of.fragments} fragments: peers exchange the whole network",
                "leave fragments out, or round_deadline_s",
            ),
            Need(
                lambda local: not local.sync_delay,
                "a deadline of {value:g} s with a delay of {of.sync_delay} steps: peers wait for their exchange",
                "leave sync_delay out, or round_deadline_s",
            ),
        ),
        strategy_needs=(lambda s: s.local.check_peers(s.gradient_exchange),),
        title="late peers are left out after {value:g} s",
        source="Douillard et al. 2026, arXiv:2604.21428 (grace window); torchft 0.2.0 (join timeout of a quorum)",
        affects=(*FIGURES, "numerics"),
    )
    max_age: int = choice(
        0,
        WholeNumber("outer steps", 0),
        "with --round-deadline: outer steps by which a late peer's change may be old and still count (default {default})",
        metavar="K",
        example="2",
        later=True,
        train=_PEERS,
        needs=(
            Need(
                lambda local: local.round_deadline_s is not None,
                "an age of {value} outer steps without a deadline: every exchange waits for all peers",
                "give round_deadline_s too, or leave max_age out",
            ),
        ),
        title="changes up to {value} outer steps old count",
        source="Liu et al. 2024, arXiv:2401.09135",
        affects=("bytes", "time", "numerics"),
    )
    residual_decay: float = choice(
        1.0,
        RealNumber(0.0, 1.0),
        "with --sync-every: factor of a residual before the next pseudo-gradient is added, for a compression with residuals "
        "(default {default})",
        metavar="F",
        example="0.95",
        title="residuals decay by {value:g}",
        listed_by_name=True,
        later=True,
        train=RUNS,
        strategy_needs=(lambda s: s.local.check_residuals(s.description),),
        source="Sarfi et al. 2025, SparseLoCo, arXiv:2508.15706, Algorithm 1",
        affects=("numerics",),
    )
    worker_devices: int = choice(
        0,
        WholeNumber("devices of a worker", 0),
        "with --sync-every: neighbouring devices of a worker, which exchange gradients in every step "
        "(default: those that share one copy)",
        metavar="N",
        example="8",
        title="workers of {value} devices",
        listed_by_name=True,
        later=True,
        train=RUNS,
        source="Douillard et al. 2023, arXiv:2311.08105, section 2: a worker may be many devices",
        affects=FIGURES,
    )

    def __post_init__(self) -> None:
        check_values(self)
        check_needs(self)

    @property
    def longest_delay(self) -> int:
        """Steps from one exchange of any fragment to the next."""
        return self.sync_every // self.fragments

    def check_compression(self, compression: Compression) -> None:
        """Raise UserError for a compression whose exchange cannot carry pseudo-gradients."""
        every = f"sync_every {self.sync_every}"
        if compression.low_rank:
            raise UserError(
                f"{every} does not go with {compression.name}, which works in DDP's buckets", "give another compression"
            )
        if compression.option_values.get("momentum") and self.outer_momentum:
            raise UserError(
                f"{every} does not go with a momentum of {compression.name} and a momentum of the outer step",
                "give outer_momentum 0, or leave the compression's momentum out",
            )

    def check_residuals(self, compression: Compression) -> None:
        """Raise UserError for a decay of residuals that a compression does not keep."""
        if self.residual_decay != 1 and not compression.error_feedback:
            raise UserError(
                f"residual_decay {self.residual_decay:g} of {compression.name}, which keeps no residuals",
                "leave it out, or give a compression with error feedback, such as topk",
            )

    def check_peers(self, exchange: Any) -> None:
        """Raise UserError for a gradient exchange that peers do not have. ``exchange``: a ``GradientExchange``."""
        if exchange.exchange.uses_nodes or exchange.exchange.uses_switch or exchange.codec_at is IN_CARD:
            card = " with a codec in the network card" if exchange.codec_at is IN_CARD else ""
            given = f"exchange {exchange.exchange}{card} with peers, which send to each other directly"
            raise UserError(given, "give another exchange, or leave round_deadline_s and peers out")

    @property
    def own_share(self) -> float:
        """Share of a worker's own weights in the weights it continues from after an exchange."""
        if not self.sync_delay:
            return 0.0
        return MIXING if self.mixing is None else self.mixing

    def due(self, step: int) -> int | None:
        """Return the fragment whose exchange starts after step number ``step``, counted from 1; None without one."""
        at = step % self.sync_every
        for fragment in range(self.fragments):
            if at == (fragment + 1) * self.sync_every // self.fragments % self.sync_every:
                return fragment
        return None

    def split(self, parameters: Sequence[T]) -> list[list[T]]:
        """Return the tensors of each fragment. ``parameters``: in model order.

        Raises:
            UserError: fewer layers than fragments.
        """
        if self.fragments == 1:
            return [list(parameters)]
        layers = _layers(parameters)
        if len(layers) < self.fragments:
            raise UserError(
                f"{self.fragments} fragments of a network with {len(layers)} trained layers",
                f"give at most {len(layers)} fragments",
            )
        sizes = [sum(prod(tensor.shape) for tensor in layer) for layer in layers]
        whole, done, first, parts = sum(sizes), 0, 0, list[list[T]]()
        for fragment in range(self.fragments):
            last, left = first + 1, self.fragments - fragment - 1
            done += sizes[first]
            limit = whole * (fragment + 1) / self.fragments
            while last < len(layers) - left and (not left or done + sizes[last] / 2 <= limit):
                done += sizes[last]
                last += 1
            parts.append([tensor for layer in layers[first:last] for tensor in layer])
            first = last
        return parts

    def per_step(self, bytes_of_round: int) -> int:
        """Return the bytes per step, rounded up, from the bytes of ``sync_every`` steps."""
        return -(-bytes_of_round // self.sync_every)

    @property
    def title(self) -> str:
        """Description in words: interval, fragments, overlap and rule."""
        plain = self.outer_lr == 1 and not self.outer_momentum
        rule = "the mean of the weights" if plain else f"an outer rate of {self.outer_lr:g}, momentum {self.outer_momentum:g}"
        turns = f", {self.fragments} fragments in turn" if self.fragments > 1 else ""
        overlap = f", overlapping {self.sync_delay} steps" if self.sync_delay else ""
        return f"an exchange every {self.sync_every} steps{turns}{overlap}: {rule}"


EVERY_STEP = LocalSteps()
"""An exchange of gradients in every step."""


def _layers(parameters: Sequence[T]) -> list[list[T]]:
    """Group consecutive tensors that belong to one module."""
    layers: list[list[T]] = []
    before = None
    for tensor in parameters:
        owner = tensor.name.rpartition(".")[0] or tensor.name  # a tensor of the model itself is a layer
        if owner != before:
            layers.append([])
        layers[-1].append(tensor)
        before = owner
    return layers
