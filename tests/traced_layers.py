"""What a trace says of one layer, by its name."""

from __future__ import annotations

from paceline.workload import Layer, Workload


def layer(table: Workload, name: str) -> Layer:
    """The layer of that name."""
    return next(entry for entry in table.layers if entry.name == name)


def work(layer: Layer, quantity: str) -> float:
    """A quantity of a layer; ``bytes_forward`` sums the bytes of the operations of its forward pass."""
    if hasattr(layer, quantity):
        return float(getattr(layer, quantity))
    field, way = quantity.rsplit("_", 1)
    return sum(float(getattr(o, field)) for o in layer.operations if o.backward == (way == "backward"))


def launched(layer: Layer, again: float) -> float:
    """Launches of a layer's passes. A kernel that adds gradients of one tensor counts as ``again`` of one."""
    forward, backward = work(layer, "calls_forward"), work(layer, "calls_backward")
    memory = sum(o.calls for o in layer.operations if o.backward and o.kind == "memory")
    return forward + backward - (1 - again) * max(0.0, memory - forward)


def products(table: Workload, name: str) -> list[tuple[float, ...]]:
    """(batch, m, n, k) and the letter that grows, of every product of a layer."""
    return [(o.batch, o.m, o.n, o.k, o.grows) for o in layer(table, name).operations if o.kind != "memory"]
