"""What is learned, as data: the layer table of a network, by name or traced. Importing this needs no torch."""

from paceline.workload.catalogue import names, workload
from paceline.workload.factory import call_factory, load_factory
from paceline.workload.layers import Coverage, Layer, Operation, Parameter, Workload
from paceline.workload.trace import trace
from paceline.workload.transformer import TransformerShape, transformer

__all__ = [
    "Coverage",
    "Layer",
    "Operation",
    "Parameter",
    "TransformerShape",
    "Workload",
    "call_factory",
    "load_factory",
    "names",
    "trace",
    "transformer",
    "workload",
]
