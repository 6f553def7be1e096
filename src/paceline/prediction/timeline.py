"""One step as a schedule: who waits for whom. Seconds come from ``costs``.

The backward pass runs the layers in reverse. A bucket's exchange starts when its last gradient is ready and the exchange
of the bucket before it has ended (DDP issues them in order; Li et al. 2020, PyTorch Distributed, VLDB, section 3.2). Its
chunks are pipelined (``costs.ExchangeCost``). The optimizer waits for everything. Every start is a maximum of sums of
costs, so a step never gets slower when a cost shrinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.prediction.costs import RESOURCES, Bucket, ExchangeCost, Resource, Stage, StepCosts
from paceline.record import Event


@dataclass(frozen=True, slots=True)
class Schedule:
    """When things happen in one step, in seconds after it began.

    Attributes:
        backward_ends: of each layer, in forward order.
        exchange_starts: of each bucket.
        update_start: of the optimizer.
    """

    backward_ends: tuple[float, ...]
    exchange_starts: tuple[float, ...]
    backward_end: float
    update_start: float
    step: float

    @property
    def exposed(self) -> float:
        """Seconds in which only the exchange works."""
        return self.update_start - self.backward_end


def schedule(costs: StepCosts, buckets: tuple[Bucket, ...], overlap: bool) -> Schedule:
    """Place the pieces of a step. Without ``overlap`` the exchange begins when the backward pass has ended."""
    forward = float(costs.forward.total.sum())
    ends = (forward + np.cumsum(costs.backward.total[::-1]))[::-1].tolist()
    backward_end = ends[0] if ends else forward
    free, starts = 0.0, []
    for bucket, exchange in zip(buckets, costs.exchanges, strict=True):
        ready = max(ends[layer] for layer in bucket.layers) if overlap else backward_end
        starts.append(max(ready, free))
        free = starts[-1] + exchange.seconds
    update = max(backward_end, free)
    return Schedule(tuple(ends), tuple(starts), backward_end, update, update + sum(costs.optimizer))


def events(costs: StepCosts, placed: Schedule, layer_names: tuple[str, ...]) -> tuple[Event, ...]:
    """The schedule as bars: lanes ``compute``, ``codec`` and ``network``."""
    bars: list[Event] = []
    clock = 0.0
    for name, seconds in zip(layer_names, costs.forward.total.tolist(), strict=True):
        bars.append(Event(name=f"forward {name}", lane="compute", start_s=clock, duration_s=seconds))
        clock += seconds
    backward = list(zip(layer_names, placed.backward_ends, costs.backward.total.tolist(), strict=True))
    for name, end, seconds in reversed(backward):
        bars.append(Event(name=f"backward {name}", lane="compute", start_s=clock, duration_s=seconds))
        clock = end
    for index, (start, exchange) in enumerate(zip(placed.exchange_starts, costs.exchanges, strict=True)):
        for stage, at in _placed_stages(start, exchange):
            bars.append(Event(name=f"{stage.name} bucket {index}", lane=stage.lane, start_s=at, duration_s=stage.seconds))
    update = Event(name="optimizer", lane="compute", start_s=placed.update_start, duration_s=sum(costs.optimizer))
    return (*bars, update)


def _placed_stages(start: float, exchange: ExchangeCost) -> Iterator[tuple[Stage, float]]:
    """Each stage with its start. Chunks in a pipeline are drawn as one bar a stage, each lane without a gap between chunks:
    the network from when the first chunk is encoded, the codec's later stages up to the end.
    """
    clock = start
    for stage in exchange.before:
        yield stage, clock
        clock += stage.seconds
    end = start + exchange.seconds - sum(stage.seconds for stage in exchange.after)
    pipelined = exchange.largest < 1
    codec = [x for x in exchange.chunked if x.lane == "codec"]
    encode = [x for x in codec if x.name == "encode"]
    later = end - sum(x.seconds for x in codec if x.name != "encode")
    sent = clock + exchange.largest * sum(x.seconds for x in encode)
    for stage in exchange.chunked:
        if not pipelined:
            yield stage, clock
            clock += stage.seconds
        elif stage.lane == "network":
            yield stage, sent
            sent += stage.seconds
        elif stage.name == "encode":
            yield stage, clock
        else:
            yield stage, later
            later += stage.seconds
    for stage in exchange.after:
        yield stage, end
        end += stage.seconds


def exposed_seconds(costs: StepCosts, placed: Schedule) -> dict[Resource, float]:
    """Seconds of the step by the resource it waits for; they sum to the step.

    Compute counts in full; of an exchange, what lies between the end of the backward pass and the optimizer. From there
    on one stage always runs, because every bucket is ready. Where codec and network work at once, the slower one is waited for.
    """
    spent = dict.fromkeys(RESOURCES, 0.0)
    for part in (costs.forward, costs.backward):
        spent["compute"] += float(part.flops.sum())
        spent["memory bandwidth"] += float(part.bytes.sum())
        spent["launch overhead"] += float(part.launch.sum())
    spent["memory bandwidth"] += costs.optimizer[0]
    spent["launch overhead"] += costs.optimizer[1]
    for start, exchange in zip(placed.exchange_starts, costs.exchanges, strict=True):
        clock = start
        for stage in exchange.path():
            end = clock + stage.seconds
            spent[stage.resource] += max(0.0, end - max(clock, placed.backward_end))
            clock = end
    return spent
