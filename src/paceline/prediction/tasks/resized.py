"""Networks of token sequences with another number of tokens, and with samples that attend to themselves alone."""

from __future__ import annotations

from dataclasses import replace

from paceline.errors import UserError
from paceline.prediction.tasks.forward_only import of_tokens
from paceline.workload.layers import Layer, Operation
from paceline.workload.prepared import once
from paceline.workload.table import Workload


@once
def with_tokens(workload: Workload, tokens: float) -> Workload:
    """Return the network that computes this many tokens of each sequence.

    Work on tokens grows with their number, that of attention with its square, or with its window.

    Raises:
        UserError: samples that are no sequences.
    """
    share = tokens / sequence_tokens(workload)
    return workload if share == 1 else replace(workload, layers=tuple(_resized(layer, share) for layer in workload.layers))


@once
def with_documents(workload: Workload, share: float) -> Workload:
    """Return the network whose tokens attend to this share of their sequence, as those of packed samples do."""
    return replace(workload, layers=tuple(_attending(layer, share) for layer in workload.layers))


@once
def with_sequences(workload: Workload, count: int) -> Workload:
    """Return the network whose samples are this many sequences each, such as pairs."""
    if count == 1:
        return workload
    layers = tuple(of_tokens(layer, float(count)) for layer in workload.layers)  # by the dimension that a batch multiplies
    return replace(workload, layers=layers, input_bytes=workload.input_bytes * count)


def sequence_tokens(workload: Workload) -> int:
    """Return the tokens of a sequence. Raises UserError for a network of other samples."""
    if not workload.tokens:
        raise UserError(
            f"a sample of {workload.name} is {workload.sample}: only sequences differ in length",
            "leave tokens_per_sample out",
        )
    return workload.tokens


def _resized(layer: Layer, share: float) -> Layer:
    if not any(_attends(layer, o) for o in layer.operations):
        return of_tokens(layer, share)
    scores = layer.kind == "Attention" and not any(o.kind == "attention" for o in layer.operations)
    kept = share**2 if scores else share  # scores are kept too
    half = layer.activation_bytes_half
    return replace(
        layer,
        operations=tuple(_attention(o, share) if _attends(layer, o) else o for o in layer.operations),
        activation_bytes=layer.activation_bytes * kept,
        activation_bytes_half=None if half is None else half * kept,
    )


def _attends(layer: Layer, o: Operation) -> bool:
    return o.kind == "attention" or layer.kind == "Attention"


def _attention(o: Operation, share: float) -> Operation:
    """Return an operation of attention on this share of the tokens. Written scores are most of the bytes."""
    if o.kind == "attention":
        seen = min(o.sliding, o.n) if o.sliding else o.n
        keys = min(o.sliding, o.n * share) if o.sliding else o.n * share
        return replace(o, m=o.m * share, n=o.n * share, flops=o.flops * share * keys / seen, bytes=o.bytes * share)
    longest = max(o.m, o.n)
    sizes = {name: getattr(o, name) * (share if getattr(o, name) == longest else 1) for name in ("m", "n", "k")}
    return replace(o, flops=o.flops * share**2, bytes=o.bytes * share**2, **sizes)


def _attending(layer: Layer, share: float) -> Layer:
    def less(o: Operation) -> Operation:
        if o.kind != "attention" or (o.sliding and o.sliding <= o.n * share):
            return o
        keys = o.n * share
        seen = min(o.sliding, o.n) if o.sliding else o.n
        return replace(o, n=keys, flops=o.flops * keys / seen, sliding=0.0)

    return replace(layer, operations=tuple(map(less, layer.operations)))
