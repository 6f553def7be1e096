"""Families of networks: measurements of one network are evidence for its family."""

from __future__ import annotations

from paceline.workload.layers import FROZEN, LayerTable

CONVOLUTIONAL = "convolutional networks"
DECODER = "transformer decoders"
ENCODER = "transformer encoders"
ENCODER_DECODER = "transformers of encoder and decoder"
MIXED = "networks of convolutions and attention"
RECURRENT = "recurrent networks"
GRAPH = "graph networks"
OTHER = "networks of no known family"

_KINDS = {
    "LSTM": RECURRENT,
    "GRU": RECURRENT,
    "RNN": RECURRENT,
    "GraphAttention": GRAPH,
    "CausalAttention": DECODER,
    "RelativeAttention": DECODER,
}
"""Layers that tell the family by themselves, the strongest first. Relative attention is that of Transformer-XL's decoder."""
_CONVOLVES = 0.1
"""Share of the FLOPs of convolutions from which they are more than the way into a network, such as a ViT's patches."""


def family(table: LayerTable) -> str:
    """Return the name of the family, by the kinds of its layers: recurrent before attention, attention before convolutions."""
    layers = [layer for layer in table.layers if layer.kind != FROZEN]
    kinds = {layer.kind for layer in layers}
    if known := next((_KINDS[kind] for kind in _KINDS if kind in kinds), ""):
        return known
    operations = [operation for layer in layers for operation in layer.operations]
    convolves = sum(o.flops for o in operations if o.kind == "conv") > _CONVOLVES * sum(o.flops for o in operations)
    causal = {o.causal for o in operations if o.kind == "attention"}
    if causal or table.attends:
        if convolves:
            return MIXED
        return ENCODER_DECODER if len(causal) == 2 else DECODER if True in causal else ENCODER
    return CONVOLUTIONAL if convolves else OTHER
