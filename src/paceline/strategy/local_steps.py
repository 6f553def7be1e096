"""Local steps between exchanges: Local SGD and DiLoCo, described.

Each worker takes ``sync_every`` steps of its own optimizer. Then the workers average their pseudo-gradients, the weights at the
last exchange minus the weights now, and an outer step of SGD with Nesterov momentum moves the shared weights by that mean
(Douillard et al. 2023, DiLoCo, arXiv:2311.08105, Algorithm 1). With an outer rate of 1 and no momentum it is the mean of the
weights: Local SGD (Stich 2019, ICLR, arXiv:1805.09767). Fragments of the network can take turns, and an exchange can run beside
the next steps (Douillard et al. 2025, Streaming DiLoCo, arXiv:2501.18512).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from numbers import Real

from paceline.errors import UserError, check_count, shown
from paceline.strategy.buckets import T
from paceline.strategy.compression import Compression

OUTER_LR = 0.7
OUTER_MOMENTUM = 0.9
"""Of the outer step: DiLoCo, section 3.1."""
MIXING = 0.5
"""Share of the worker's own weights where an exchange runs beside its steps: Streaming DiLoCo takes equal shares."""

_COUNTS = (
    ("sync_every", "steps from one exchange to the next", 1),
    ("fragments", "fragments", 1),
    ("sync_delay", "steps beside which an exchange runs", 0),
)
_NUMBERS = (("outer_lr", 1e-6, 10.0), ("outer_momentum", 0.0, 0.9999), ("mixing", 0.0, 0.9999))


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSteps:
    """How often workers exchange, and what they make of the mean.

    Attributes:
        sync_every: steps of each worker from one exchange of a fragment to its next; 1: an exchange in every step.
        fragments: parts of the network, whole layers in model order and about equal in size, that take turns: each is exchanged
            every ``sync_every`` steps, at steps of its own.
        sync_delay: steps that an exchange has, beside which it runs; 0: the workers wait for it.
        mixing: share of a worker's own weights in what it goes on from when a delayed exchange arrives; None: 0.5. Without a
            delay nothing of them is kept, and all workers go on from the same weights.
        outer_lr, outer_momentum: of the outer step.

    Raises:
        UserError: a number out of range, more fragments than steps, a delay that lasts until after the next exchange, a mixing
            factor without a delay.
    """

    sync_every: int = 1
    fragments: int = 1
    sync_delay: int = 0
    mixing: float | None = None
    outer_lr: float = OUTER_LR
    outer_momentum: float = OUTER_MOMENTUM

    def __post_init__(self) -> None:
        for name, what, least in _COUNTS:
            object.__setattr__(self, name, check_count(getattr(self, name), what, least))
        for name, low, high in _NUMBERS:
            value = getattr(self, name)
            if name == "mixing" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
                raise UserError(f"{name}={shown(value)}", f"give a number from {low:g} to {high:g}")
            object.__setattr__(self, name, float(value))
        if self.sync_every == 1 and (self.fragments > 1 or self.sync_delay):
            what = f"{self.fragments} fragments" if self.fragments > 1 else f"a delay of {self.sync_delay} steps"
            raise UserError(f"{what} with an exchange in every step", "give sync_every too")
        if self.fragments > self.sync_every:
            raise UserError(
                f"{self.fragments} fragments in {self.sync_every} steps: one is exchanged in a step",
                f"give at most {self.sync_every} fragments, or more steps between exchanges",
            )
        if self.sync_delay > self.sync_every // self.fragments:
            raise UserError(
                f"an exchange beside {self.sync_delay} steps, with {self.fragments} of them every {self.sync_every} steps",
                f"give a delay of at most {self.sync_every // self.fragments}: one exchange ends before the next begins",
            )
        if self.mixing is not None and not self.sync_delay:
            raise UserError(
                f"mixing={shown(self.mixing)} without a delay: all workers go on from the same weights",
                "leave it out, or give sync_delay",
            )

    def check_compression(self, compression: Compression) -> None:
        """Raises UserError for a compression whose exchange pseudo-gradients cannot take."""
        every = f"sync_every {self.sync_every}"
        if compression.low_rank:
            raise UserError(
                f"{every} does not go with {compression.name}, which works in DDP's buckets", "give another compression"
            )
        if compression.option_values.get("momentum") and self.outer_momentum:
            raise UserError(
                f"{every} does not go with a momentum of {compression.name} beside that of the outer step",
                "give outer_momentum 0, or leave the compression's momentum out",
            )

    @property
    def own_share(self) -> float:
        """Share of a worker's own weights in what it goes on from."""
        if not self.sync_delay:
            return 0.0
        return MIXING if self.mixing is None else self.mixing

    def due(self, step: int) -> int | None:
        """The fragment whose exchange begins behind step number ``step``, counted from 1; None: there is none."""
        at = step % self.sync_every
        for fragment in range(self.fragments):
            if at == (fragment + 1) * self.sync_every // self.fragments % self.sync_every:
                return fragment
        return None

    def split(self, parameters: Sequence[T]) -> list[list[T]]:
        """The tensors of each fragment. ``parameters``: in model order.

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
        """Bytes a step, rounded up, where ``sync_every`` steps together send so many."""
        return -(-bytes_of_round // self.sync_every)

    @property
    def title(self) -> str:
        """In words: how often, and by which rule."""
        plain = self.outer_lr == 1 and not self.outer_momentum
        rule = "the mean of the weights" if plain else f"an outer rate of {self.outer_lr:g}, momentum {self.outer_momentum:g}"
        turns = f", {self.fragments} fragments in turn" if self.fragments > 1 else ""
        beside = f", beside {self.sync_delay} steps" if self.sync_delay else ""
        return f"an exchange every {self.sync_every} steps{turns}{beside}: {rule}"


EVERY_STEP = LocalSteps()
"""An exchange of gradients in every step."""


def _layers(parameters: Sequence[T]) -> list[list[T]]:
    """Tensors that follow each other and belong to one module."""
    layers: list[list[T]] = []
    before = None
    for tensor in parameters:
        owner = tensor.name.rpartition(".")[0] or tensor.name  # a tensor of the model itself stands alone
        if owner != before:
            layers.append([])
        layers[-1].append(tensor)
        before = owner
    return layers
