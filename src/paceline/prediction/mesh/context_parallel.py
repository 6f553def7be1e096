"""One device's part of a network whose samples are divided by tokens, and the group's exchange for attention.

Every layer works on its own tokens, with whole weights. Only attention needs the others. In a ring, keys and values pass from
device to device while attention works on the present ones (Liu et al. 2023, Ring Attention, arXiv:2310.01889). With
all-to-all, each device gets all tokens of some heads for attention (Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509).
A chunked scan does so in both cases (Megatron-Core, ``MambaContextParallel``).
The devices of the group add up their gradients as replicas do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.errors import UserError
from paceline.prediction.mesh.tensor_parallel import Collective, Share, fewer_tokens
from paceline.strategy.context_exchange import ContextExchange
from paceline.workload.layers import Layer, Operation
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_FP32 = 4.0


@once
def token_share(workload: Workload, context: int, exchange: ContextExchange) -> Share:
    """Return one device's share of ``workload``, cached for equal arguments as long as the workload lives.

    Args:
        context: devices of the group, at least 2.
        exchange: ``ring`` or ``all_to_all``.

    Raises:
        UserError: a network without attention; tokens, or with all-to-all heads, that do not divide among the devices.
    """
    if not workload.attends:
        raise UserError(f"context parallelism of {context}: {workload.name} has no attention", "give context=1")
    layers = [layer.divided(tuple(_own_part(o, context) for o in layer.operations), context) for layer in workload.layers]
    own = replace(workload, layers=tuple(layers), input_bytes=workload.input_bytes / context)
    collectives = tuple(c for i, layer in enumerate(workload.layers) for c in _collectives(i, layer, context, exchange))
    _check_tokens(workload, context)
    return Share(own, collectives)


def _own_part(o: Operation, context: int) -> Operation:
    """Return a device's part of an operation: its tokens, or its heads of a chunked scan."""
    if o.kind != "scan":
        return fewer_tokens(o, context)
    return replace(o, flops=o.flops / context, bytes=o.bytes / context, batch=o.batch / context)


def _check_tokens(workload: Workload, context: int) -> None:
    """Raise UserError if the tokens of a sequence do not divide. A mean of several lengths need not be whole."""
    for layer in workload.layers:
        attends = (o for o in layer.operations if o.grows == "batch" and o.kind != "scan" and not o.backward)
        queries = next((o.m for o in attends), 0.0)
        if queries and (queries < context or (queries == int(queries) and queries % context)):
            raise UserError(
                f"the {queries:g} tokens of {layer.name} do not divide among {context} devices of context parallelism",
                "give a context that divides the sequence, or another sequence length",
            )


def _collectives(index: int, layer: Layer, context: int, exchange: ContextExchange) -> Iterator[Collective]:
    """Yield the exchanges that the attention of a layer needs."""
    forward = next((o for o in layer.operations if o.grows == "batch" and not o.backward), None)
    if forward is None:
        return
    if forward.kind == "scan":
        for backward in (False, True):
            yield Collective(index, backward, "gather", layer.activation_bytes / context, group="context")
        return
    queries = _FP32 * forward.m * forward.k * forward.batch
    # A kernel reads queries, keys and values, and writes one number per query (unfused: the scores too).
    keys_values = 2 * _FP32 * forward.n * forward.k * forward.batch
    if forward.kind == "attention":
        keys_values = forward.bytes - 2 * queries - _FP32 * forward.m * forward.batch
    if exchange.passes_around:
        yield Collective(index, False, "gather", keys_values, beside=1.0, group="context")
        yield Collective(index, True, "gather", 2 * keys_values, beside=1.0, group="context")  # and their gradients
        return
    if forward.batch % context:
        raise UserError(
            f"the {forward.batch:g} heads of {layer.name} do not divide among {context} devices",
            "give a divisor of the heads, or context_exchange='ring'",
        )
    for backward in (False, True):
        yield Collective(index, backward, "gather", (2 * queries + keys_values) / context, group="context")
