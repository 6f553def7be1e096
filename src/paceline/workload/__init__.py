"""Networks as data: the layer table of a network, by name or traced. The import does not need torch."""

from paceline.workload.builders.adapters.lora import LoRA
from paceline.workload.builders.experts import Experts
from paceline.workload.builders.latent_attention import LatentAttention
from paceline.workload.builders.transformer import TransformerShape
from paceline.workload.catalogue import names
from paceline.workload.factory import call_factory, load_factory
from paceline.workload.layers import Coverage, Layer, Operation, Parameter
from paceline.workload.table import Workload

__all__ = [
    "Coverage",
    "Experts",
    "LatentAttention",
    "Layer",
    "LoRA",
    "Operation",
    "Parameter",
    "TransformerShape",
    "Workload",
    "call_factory",
    "load_factory",
    "names",
]
