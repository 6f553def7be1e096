"""Names that SkyPilot and dstack have for devices and providers, and what a file rents at one of them.

SkyPilot: ``sky/utils/gpu_names.py``, the fetchers of its catalogues and ``sky/clouds``. dstack: its catalogue ``gpuhunt`` and
``BackendType`` of ``dstack/_internal/core/models/backends/base.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.planning.emit.job import PORT, SCRIPT, EmittedJob
from paceline.planning.emit.optimizer import optimizer_import
from paceline.planning.emit.script import hooked

_LARGE_CLOUDS: Mapping[str, str] = {
    "K80": "K80",
    "P100 PCIe 16GB": "P100",
    "P100 SXM2": "P100",
    "V100 SXM2 16GB": "V100",
    "V100 PCIe 16GB": "V100",
    "V100 SXM2 32GB": "V100-32GB",
    "V100 PCIe 32GB": "V100-32GB",
    "T4": "T4",
    "A10": "A10",
    "A10G": "A10G",
    "A100 SXM 40GB": "A100",
    "A100 PCIe 40GB": "A100",
    "A100 SXM 80GB": "A100-80GB",
    "A100 PCIe 80GB": "A100-80GB",
    "L4": "L4",
    "L40": "L40",
    "L40S": "L40S",
    "H100 SXM": "H100",
    "H100 PCIe": "H100",
    "H200": "H200",
    "GH200": "GH200",
    "B200": "B200",
    "B300": "B300",
    "GB200": "GB200",
    "GB300": "GB300",
}
_RUNPOD: Mapping[str, str] = {
    **{f"RTX {number}": f"RTX{number.replace(' ', '-')}" for number in ("3070", "3080", "3080 Ti", "3090", "3090 Ti")},
    **{f"RTX {number}": f"RTX{number.replace(' ', '-')}" for number in ("4080", "4080 SUPER", "4090", "5080", "5090")},
    **{f"RTX {number} Ada": f"RTX{number}-Ada" for number in ("2000", "4000", "5000", "6000")},
    **{f"RTX A{number}": f"RTXA{number}" for number in ("4000", "4500", "5000", "6000")},
    "RTX PRO 6000 Server": "RTXPRO6000",
    "RTX PRO 6000": "RTXPRO6000-WK",
    "A30": "A30",
    "A40": "A40",
    "H100 NVL": "H100-NVL",
    "MI300X": "MI300X",
}
"""Devices of RunPod, by its catalogue in SkyPilot (``sky/catalog/data_fetchers/fetch_runpod.py``)."""
SKYPILOT_NAMES: Mapping[str, str] = {**_LARGE_CLOUDS, **_RUNPOD}
"""SkyPilot's names of devices. If clouds use one name for two of them, its optimizer may rent either."""
_TWO_MEMORIES = ("A100", "V100")
"""Devices for which dstack uses one name for two sizes of memory."""
_RTX = ("2060", "2070", "2080", "2080 Ti", "3060", "3070", "3080", "3090", "4070", "4080", "4090", "5070", "5080", "5090")
DSTACK_NAMES: Mapping[str, str] = {
    **{name: clouds.partition("-")[0] for name, clouds in _LARGE_CLOUDS.items() if name != "K80"},
    **{f"RTX {number}": f"RTX{number.replace(' ', '')}" for number in _RTX},
    "RTX A6000": "A6000",
    "RTX 6000 Ada": "RTX6000Ada",
    "RTX PRO 6000": "RTXPRO6000",
    "RTX PRO 6000 Server": "RTXPRO6000",
    "H100 NVL": "H100NVL",
    "H200 NVL": "H200NVL",
    **{name: name for name in ("A16", "A40", "MI210", "MI300X", "MI325X", "MI350X", "MI355X")},
}
"""dstack's names of devices."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Names of a provider in both tools, empty where one does not rent there.

    Attributes:
        tiers: whether SkyPilot chooses between networks there (``CUSTOM_NETWORK_TIER`` of ``sky/clouds``).
    """

    skypilot: str
    dstack: str
    tiers: bool = False


PROVIDERS: Mapping[str, Provider] = {
    "AWS": Provider("aws", "aws", tiers=True),
    "Azure": Provider("azure", "azure"),
    "Crusoe": Provider("", "crusoe"),
    "DigitalOcean": Provider("do", "digitalocean"),
    "GCP": Provider("gcp", "gcp", tiers=True),
    "Lambda": Provider("lambda", "lambda"),
    "Nebius": Provider("nebius", "nebius", tiers=True),
    "OCI": Provider("oci", "oci"),
    "RunPod": Provider("runpod", "runpod"),
    "Vast": Provider("vast", "vastai"),
    "Verda": Provider("verda", "verda"),
    "Vultr": Provider("", "vultr"),
}
"""Providers by their names in price listings."""


@dataclass(frozen=True, slots=True)
class Rented:
    """Nodes that a file rents.

    Attributes:
        device: the tool's name of the device. ``devices``: those of a machine, at least as many as a node of the plan has.
        provider: the provider of the plan's price, None if any will do. ``region``: that of the price, empty if unknown.
        fast: whether the plan needs a network that bypasses the kernel's TCP.
    """

    device: str
    devices: int
    provider: Provider | None
    region: str
    fast: bool


def rented(job: EmittedJob, names: Mapping[str, str]) -> Rented:
    """Return the nodes of a job. Raises UserError for a device that the tool has no name for."""
    name, price, local = job.cluster.device.name, job.price, job.cluster.devices_per_node
    if name not in names:
        raise job.refused(f"device {name}", f"the names that are known of it are {', '.join(sorted(set(names.values())))}")
    return Rented(
        device=names[name],
        devices=price.machine(local) if price else local,
        provider=PROVIDERS.get(price.seller) if price else None,
        region=price.region if price else "",
        fast=job.cluster.num_nodes > 1 and job.cluster.network.transport not in ("", "TCP"),
    )


def price_remark(job: EmittedJob) -> str:
    """Return a comment with the price that the plan counts; empty without one."""
    return f"# Priced at {job.price}.\n" if job.price else ""


def packages(job: EmittedJob) -> str:
    """Return the packages that the script imports, as arguments of pip."""
    names = ["torch", optimizer_import(job), "paceline" if hooked(job) else ""]
    return " ".join(dict.fromkeys("'paceline[train]'" if name == "paceline" else name for name in names if name))


def torchrun_line(job: EmittedJob, rank: str, head: str) -> str:
    """Return the command of a node, from the tool's variable for its rank and the first node's address."""
    where = f'--node-rank "${rank}" --master-addr "{head}" --master-port {PORT}'
    return f"torchrun --nnodes {job.cluster.num_nodes} --nproc-per-node {job.cluster.devices_per_node} {where} {SCRIPT}"
