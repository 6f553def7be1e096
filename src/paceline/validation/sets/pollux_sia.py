"""Step and synchronisation times of the Pollux and Sia clusters (``pollux_sia_dataparallel.csv``): PyTorch DDP.

The file does not name the precision. ImageNet runs at more than the fp32 peak of a 2080 Ti, so it is mixed; the rest follows
fp32, on the A100 with TF32, which was then PyTorch's default.

``aws`` is g4dn.12xlarge, ``rtx`` eight 2080 Ti a node, ``dgx-ext`` DGX A100. The step time includes the synchronisation.
A placement such as ``24`` lists the devices of each node; where it does not, they are spread as evenly as they go.
Networks: AWS instance table (50 Gb/s); Jayaram Subramanya et al. 2023, Sia, SOSP, section 4 (50 Gb/s; 8 x 200 Gb/s).
"""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("model", "cluster", "gpu", "placement")
NUMBERS = ("num_nodes", "num_gpus", "local_batch", "step_time_s", "sync_time_s")
WORKLOADS = {
    "cifar10": ("resnet-18-cifar", "momentum"),
    "imagenet": ("resnet-50", "momentum"),
    "bert": ("bert-base-squad", "adam"),
    "yolov3": ("yolov3", "momentum"),
    "deepspeech2": ("deepspeech2", "momentum"),
    "ncf": ("ncf", "adam"),
}
MIXED = {"imagenet"}
NETWORKS = {"aws": "50Gb/s", "rtx": "50Gb/s", "dgx": "8x InfiniBand HDR", "dgx-ext": "8x InfiniBand HDR"}
UNKNOWN_NETWORK = "25Gb/s"
"""Network of a cluster that is not in the table. Rows of that cluster, where the fit sees them, correct the bandwidth."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, cluster, device = row.text("model"), row.text("cluster"), hardware_aliases.device(row.text("gpu"))
    devices, nodes = row.whole("num_gpus") or 1, row.whole("num_nodes") or 1
    keys = Keys(model, device.name if device else row.text("gpu"), devices, nodes, cluster)
    batch, step, sync = row.whole("local_batch"), row.positive("step_time_s"), row.number_of("sync_time_s")
    if step is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or devices < nodes:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if sync is not None and sync > step:
        return Skip(keys, case_builders.LONG_WAIT, good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    name, optimizer = WORKLOADS.get(model, ("", ""))
    workload = case_builders.named(name, **({"seq_len": 384, "fused_attention": False} if model == "bert" else {}))
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    between = hardware_aliases.network_named(NETWORKS.get(cluster, UNKNOWN_NETWORK)) if nodes > 1 else None
    full = "tf32" if "tf32" in device.peak_flops else "fp32"
    precision = case_builders.half(device) if model in MIXED else full
    try:
        machines = hardware_aliases.cluster(device, _sizes(row.text("placement"), devices, nodes), nodes, between)
        setting = case_builders.setting(machines, batch, precision, optimizer)
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    return Case(
        keys=keys,
        workload=workload,
        setting=setting,
        software="ordinary",
        step_s=step,
        sync_s=sync,
        precision_from="usual",
    )


def _sizes(placement: str, devices: int, nodes: int) -> tuple[int, ...]:
    """Return the devices of each node."""
    digits = tuple(int(digit) for digit in placement) if placement.isdecimal() else ()
    stated = len(digits) == nodes and sum(digits) == devices and 0 not in digits
    return digits if stated else case_builders.spread(devices, nodes)
