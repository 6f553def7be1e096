"""Times of one worker and one server, measured alone: the simulation's whole input about the job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLayer:
    """One layer of one worker.

    Attributes:
        size: bytes of its parameters, equal to those of its gradient; 0 for a layer without parameters.
        forward_s, backward_s: seconds in each profiled step, (steps,).
    """

    name: str
    size: float
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Steps of one worker and work of one server, measured (or predicted) with nothing else running.

    Attributes:
        batch_size: samples of one worker's mini-batch.
        layers: in forward order.
        update_s_per_byte: seconds that a server takes to apply one byte of a gradient.
        update_s: fixed seconds that a server takes for every gradient and its message.
        link_share: payload divided by the bytes on the link; a full-size TCP segment on Ethernet has 1448 of 1514.
        compute_spread, network_spread, server_spread: standard deviations of log(real / profiled) time of this part on the
            predicted cluster. They set the range of the throughput, not the throughput. The defaults are for a profile
            that was measured alone and links of nominal rate. A step of one worker repeats as an observed step does
            (``correction.WORK``). TCP reaches 0.6 to 0.94 of the line rate on 80 % of links (``efficiency.LOW``, ``HIGH``).
            The value for a server with several connections is an estimate.
        hosts_spread: standard deviation of the whole step, added for every doubling of the hosts, as ``Sigmas.doubling``.
            It covers effects that one worker and one server do not show.

    Raises:
        UserError: no layers, layers with different numbers of steps, or impossible numbers.
    """

    name: str
    batch_size: int
    layers: tuple[WorkerLayer, ...]
    update_s_per_byte: float = 0.0
    update_s: float = 0.0
    link_share: float = 1448 / 1514
    compute_spread: float = 0.04
    network_spread: float = 0.175
    server_spread: float = 0.3
    hosts_spread: float = 0.03

    def __post_init__(self) -> None:
        steps = {len(times) for layer in self.layers for times in (layer.forward_s, layer.backward_s)}
        if not self.layers or 0 in steps or len(steps) > 1:
            raise UserError(f"profile {self.name!r} has no layers, or layers with different numbers of steps", "profile again")
        numbers = [x for layer in self.layers for x in (layer.size, *layer.forward_s, *layer.backward_s)]
        spreads = (self.compute_spread, self.network_spread, self.server_spread, self.hosts_spread)
        numbers += [self.update_s_per_byte, self.update_s, *spreads]
        if any(not math.isfinite(x) or x < 0 for x in numbers):
            raise UserError(f"profile {self.name!r} has a negative or infinite number", "give seconds and bytes from 0 up")
        if self.batch_size < 1 or not 0 < self.link_share <= 1:
            raise UserError(
                f"profile {self.name!r}: batch size {self.batch_size}, link share {self.link_share}",
                "give a batch of at least 1 and a share of the link in (0, 1]",
            )

    @property
    def size(self) -> float:
        """Bytes of all parameters."""
        return math.fsum(layer.size for layer in self.layers)

    @property
    def steps(self) -> int:
        """Number of profiled steps."""
        return len(self.layers[0].forward_s)

    @property
    def compute_s(self) -> float:
        """Mean seconds of a worker's forward and backward pass."""
        return math.fsum(x for layer in self.layers for x in (*layer.forward_s, *layer.backward_s)) / self.steps


def assign_servers(sizes: Sequence[float], servers: int) -> tuple[int, ...]:
    """Assign a server to each tensor. Each tensor in turn goes to the server with the fewest bytes so far.

    This is TensorFlow's ``GreedyLoadBalancingStrategy`` with ``byte_size_load_fn`` (tf.contrib.training).
    """
    load = [0.0] * servers
    chosen = []
    for size in sizes:
        server = min(range(servers), key=load.__getitem__)
        load[server] += size
        chosen.append(server)
    return tuple(chosen)
