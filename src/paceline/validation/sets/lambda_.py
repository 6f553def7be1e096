"""Lambda's PyTorch benchmark (``lambda_single_node.csv``): NVIDIA's examples on one node, mixed precision or fp32/TF32.

The listed batch is that of all devices. BERT is fine-tuned on SQuAD, 384 tokens. The rows of WaveGlow and Tacotron 2 all ran
in full precision: the benchmark asks for ``--amp-run``, which NVIDIA's script of its time calls ``--amp``, and options that
it does not know are ignored (DeepLearningExamples, PyTorch/SpeechSynthesis/Tacotron2/train.py; the rates of both rows are
equal on every card).
"""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("system", "model", "precision", "unit")
NUMBERS = ("num_gpus", "batch_per_gpu_listed", "throughput")
WORKLOADS = {
    "resnet50": ("resnet-50", "momentum"),
    "ssd": ("ssd-resnet50", "momentum"),
    "gnmt": ("gnmt", "adam"),
    "transformerxlbase": ("txl-base-softmax", "lamb"),
    "transformerxllarge": ("txl-large-softmax", "adam"),
    "waveglow": ("waveglow", "adam"),
    "tacotron2": ("tacotron2", "adam"),
    "bert_base_squad": ("bert-base-squad", "adam"),
    "bert_large_squad": ("bert-large-squad", "adam"),
}
ALWAYS_FULL = ("waveglow", "tacotron2")
PADDING = 1.27
"""Tokens of a batch of GNMT with what fills its sentences up to the longest, over those without: batches come from five buckets
of sentences of up to 50 tokens (DeepLearningExamples, PyTorch/Translation/GNMT/seq2seq/data/sampler.py, ``BucketingSampler``).
Not measured: lengths drawn with a mean of 25 tokens and a standard deviation of half of that give 1.26 to 1.29."""
PER_SAMPLE = {"gnmt": 54 / PADDING, "transformerxlbase": 192, "transformerxllarge": 256, "waveglow": 8000, "tacotron2": 566}
"""Units of a sample that the rate counts: tokens of a pair of sentences of WMT English-German, 27 steps on either side; words
of a segment; audio samples of a segment (lambdal/deeplearning-benchmark, config_v2); frames of a clip of LJ Speech without
padding, 6.57 s at the mean (DeepLearningExamples, Tacotron2/tacotron2/data_function.py, ``output_lengths``).
"""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("system"))
    devices = row.whole("num_gpus") or 1
    keys = Keys(model, device.name if device else row.text("system"), devices, 1, "")
    batch, rate = row.whole("batch_per_gpu_listed"), row.positive("throughput")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or batch % devices:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    name, optimizer = WORKLOADS.get(model, ("", ""))
    workload = case_builders.named(name, **({"seq_len": 384, "fused_attention": False} if model.startswith("bert") else {}))
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    full = "tf32" if "tf32" in device.peak_flops else "fp32"
    mixed = "16" in row.text("precision") and model not in ALWAYS_FULL
    precision = case_builders.half(device) if mixed else full
    try:
        setting = case_builders.setting(hardware_aliases.cluster(device, devices, 1), batch // devices, precision, optimizer)
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    step_s = batch * PER_SAMPLE.get(model, 1) / rate
    return Case(keys=keys, workload=workload, setting=setting, software="ordinary", step_s=step_s)
