"""Data about devices, links and clusters, with a source for every number.

>>> from paceline import hardware
>>> hardware.device("a100").peak("bf16").value
312000000000000.0
>>> hardware.cluster("gtx1080", devices_per_node=4, num_nodes=8, network_text="10Gb/s").world_size
32
"""

from paceline.hardware.catalogue import device, devices, find, link, links
from paceline.hardware.cluster import Cluster, cluster
from paceline.hardware.device import Device, Fact, Link
from paceline.hardware.instances import Instance, instance, instances
from paceline.hardware.levels import Level
from paceline.hardware.networks import network
from paceline.hardware.nics import Nic, nic, nics
from paceline.hardware.precision import BYTES_PER_ELEMENT, PRECISIONS, RECIPES, Precision, QuantisationRecipe
from paceline.hardware.switches import Aggregation, aggregation, aggregations

__all__ = [
    "BYTES_PER_ELEMENT",
    "PRECISIONS",
    "RECIPES",
    "Aggregation",
    "Cluster",
    "Device",
    "Fact",
    "Instance",
    "Level",
    "Link",
    "Nic",
    "Precision",
    "QuantisationRecipe",
    "aggregation",
    "aggregations",
    "cluster",
    "device",
    "devices",
    "find",
    "instance",
    "instances",
    "link",
    "links",
    "network",
    "nic",
    "nics",
]
