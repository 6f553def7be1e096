"""Latencies of transformers on one GPU (``neusight_model_latency.csv``): fp32 without TF32, forward and backward, no update.

The file holds NeuSight's, Habitat's, Li et al.'s and a roofline's predictions of the same rows. Rows of inference are no
training steps; attention is as eager PyTorch computes it; ``dp4`` is data parallel on four GPUs.
"""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases
from paceline.workload import TransformerShape, Workload

TEXTS = ("model", "gpu", "mode", "option")
NUMBERS = (
    "seq_len",
    "batch",
    "measured_ms",
    "neusight_pred_ms",
    "roofline_pred_ms",
    "habitat_pred_ms",
    "li_et_al_pred_ms",
)
PUBLISHED = {
    "NeuSight": "neusight_pred_ms",
    "roofline": "roofline_pred_ms",
    "Habitat": "habitat_pred_ms",
    "Li et al.": "li_et_al_pred_ms",
}
WORKLOADS = {
    "bert_large": "bert-large",
    "gpt2_large": "gpt2-large",
    "gpt3_27": "gpt3-2.7b",
    "opt_13": "opt-1.3b",
}
GPT3_XL = TransformerShape(layers=24, hidden=3072, heads=24, vocabulary=50257, context=2048)
"""24 heads of 128 as in the paper's table, and so 3072 wide: the times are those of 2.7 billion parameters."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, option, device = row.text("model"), row.text("option"), hardware_aliases.device(row.text("gpu"))
    devices = int(option[2:]) if option.startswith("dp") and option[2:].isdigit() else 1
    keys = Keys(model, device.name if device else row.text("gpu"), devices, 1, "")
    batch, length, measured = row.whole("batch"), row.whole("seq_len"), row.positive("measured_ms")
    published = {name: value / 1e3 for name, column in PUBLISHED.items() if (value := row.positive(column)) is not None}
    if row.text("mode") != "train":
        return Skip(keys, "inference, no training step", good=False)
    if option.startswith(("tp", "pp")):
        return Skip(keys, case_builders.PARALLEL, good=False)
    if measured is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if option and devices == 1:
        return Skip(keys, f"option {option}")
    if batch is None or batch % devices:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    workload = _workload(model, length)
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    setting = case_builders.setting(hardware_aliases.cluster(device, devices, 1), batch // devices, "fp32", "sgd")
    return Case(
        keys=keys,
        workload=workload,
        setting=setting,
        software="ordinary",
        step_s=measured / 1e3,
        published=published,
        precision_from="submission",
    )


def _workload(model: str, length: int | None) -> Workload | None:
    if model == "gpt3_xl":
        return Workload.from_shape(GPT3_XL, length or 2048, name="gpt3-xl", fused_attention=False)
    return case_builders.named(WORKLOADS.get(model), seq_len=length, fused_attention=False)
