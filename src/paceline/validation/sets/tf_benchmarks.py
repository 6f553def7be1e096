"""TensorFlow's benchmarks of May 2017 (``tf_benchmarks_2017_k80_p100.csv``): five CNNs in fp32 on K80 and P100.

In one node, a parameter server sums over PCIe; between AWS servers (10 Gb/s) each worker host serves a share of them.
"""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("model", "platform", "gpu", "data", "precision", "variable_update")
NUMBERS = ("num_nodes", "num_gpus", "batch_per_gpu", "images_per_s")
WORKLOADS = {
    "AlexNet": "alexnet",
    "VGG16": "vgg-16",
    "ResNet50": "resnet-50",
    "ResNet152": "resnet-152",
    "InceptionV3": "inception-v3",
}
NETWORK = "10Gb/s"


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("gpu"))
    devices, nodes = row.whole("num_gpus") or 1, row.whole("num_nodes") or 1
    keys = Keys(model, device.name if device else row.text("gpu"), devices, nodes, f"{row.text('platform')} {row.text('data')}")
    batch, rate = row.whole("batch_per_gpu"), row.positive("images_per_s")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or devices % nodes:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    workload = case_builders.named(WORKLOADS.get(model))
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    served = row.text("variable_update").startswith("distributed") and nodes > 1
    inside = "PCIe 3.0 x16" if "parameter_server" in row.text("variable_update") else ""
    precision = row.text("precision") if row.text("precision") in device.peak_flops else "fp32"
    try:
        machines = hardware_aliases.cluster(device, devices // nodes, nodes, NETWORK if nodes > 1 else None, inside)
        setting = case_builders.setting(machines, batch, precision, "sgd", exchange="sharded" if served else "")
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    return Case(keys=keys, workload=workload, setting=setting, software="ordinary", step_s=batch * devices / rate)
