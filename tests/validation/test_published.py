"""Rows of any source in common columns: the case that each states, in made-up values, and the reason of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from each_row import each_row
from measured_rows import case, columns, outcome, skip, write
from paceline.csv_rows import Row, read
from paceline.validation import validate
from paceline.validation.case import Case, Skip
from paceline.validation.sets.published import joined, options
from paceline.validation.sets.published.quantities import measured
from paceline.workload import Workload


def test_a_row_of_megatron() -> None:
    one = case("published")
    mesh = one.setting.strategy.parallelism
    assert one.step_s == pytest.approx(1.5) and one.published == {"simulator": pytest.approx(1.4)}
    assert (mesh.tensor, mesh.data, mesh.micro_batches, mesh.sequence) == (2, 4, 8, True)
    assert mesh.sharding.name == "distributed_optimizer" and one.software == "tuned" and one.overlap is None
    assert case("published", other_options="all overlap switched off (TP, p2p)").overlap is False
    whole = Workload.named("llama-3-70b", 4096)
    block = (whole.num_parameters - one.workload.num_parameters) / 72
    assert one.workload.num_parameters == pytest.approx(whole.num_parameters - 72 * block) and block > 8e8


@each_row(
    ("metric", "value", "seconds"),
    [
        ("step_time_s", "2", 2.0),
        ("iteration_time_ms", "1,500", 1.5),
        ("samples_per_s", "16", 2.0),  # 32 samples a step
        ("tokens_per_s_per_device", "8192", 2.0),  # 32 x 4096 tokens of 8 devices
        ("tokens_per_s_total", "65536", 2.0),
        ("minutes_per_1000_iterations", "5 min", 2.4),  # an iteration is one of 8 micro batches
    ],
)
def test_units_of_time(metric: str, value: str, seconds: float) -> None:
    assert case("published", metric=metric, value=value, peer_prediction="").step_s == pytest.approx(seconds)


def test_flops_are_of_the_model_or_of_the_hardware() -> None:
    said = {"metric": "tflops_per_device", "value": "400", "peer_prediction": ""}
    model = case("published", **said, recompute="full")
    hardware = case("published", **said, recompute="full (hardware TFLOPs are published)")
    assert model.step_s == pytest.approx(32 * model.workload.flops_per_sample / (8 * 400e12))
    assert hardware.step_s == pytest.approx(model.step_s * 4 / 3)


def test_memory_joins_the_step_of_its_run(tmp_path: Path) -> None:
    time, memory = {"value": "1500"}, {"metric": "peak_allocated_GiB", "value": "40", "peer_prediction": "41"}
    alone = memory | {"global_batch": "64"}
    path = write(tmp_path / "rows.csv", "published", [time, memory, alone])
    rows = joined(read(path, columns("published")))
    assert [row.text("memory") for row in rows] == ["40", ""]
    done = validate("published", path)
    assert [point.case.step_s for point in done.points] == [1.5, 0.0]
    assert done.total["points"] == 1 and done.total["memory_points"] == 2 and done.total["coverage"] == 1.0
    assert done.total["memory_baselines"] == {"simulator": pytest.approx(0.025)}
    assert done.points[0].case.memory_bytes == 40 * 2**30


@each_row(
    ("changes", "parameters"),
    [
        ({"model": "GPT hidden 1024 layers 6", "other_options": "heads 16; vocabulary 51200"}, 0.13e9),
        ({"model": "GPT 52B", "pp": "16", "num_devices": "64", "num_nodes": "8"}, 52e9),
        ({"model": "GPT (candidates) 20B", "other_options": "NHIDDEN=14400 (20B: 8 layers, 200B: 80 layers)"}, 20.7e9),
        ({"model": "MaxText 16B", "other_options": "global_parameter_scale=16", "framework": "MaxText"}, 16e9),
        ({"model": "T5 3B", "framework": "NeMo Megatron", "seq_len": "512"}, 2.78e9),
        ({"model": "BERT 4B", "framework": "NeMo Megatron", "seq_len": "512"}, 3.9e9),
        ({"model": "HuggingFace BERT-Large Ph2 pre-training"}, 0.335e9),
        ({"model": "sft_Qwen2-7B"}, 7.6e9),
        ({"model": "resnet50-pytorch", "tp": ""}, 25.6e6),
        ({"model": "unet3d-pytorch", "tp": "", "seq_len": ""}, 31.2e6),
    ],
)
def test_networks_by_their_texts(changes: dict[str, str], parameters: float) -> None:
    assert case("published", **changes).workload.num_parameters == pytest.approx(parameters, rel=0.04)


@each_row(
    ("changes", "reason"),
    [
        ({"device": "8xRTX-3090 + 8xTitan-RTX"}, "several kinds of devices in one run"),
        ({"model": "dpo_llama-7b"}, "fine-tuning other than of all weights or with LoRA"),
        ({"recompute": "moonlight"}, "recompute moonlight"),
        ({"model": "chess"}, "model not among the workloads"),
        ({"seq_len": ""}, "sequence length not stated"),
        ({"seq_len": "padded to the longest in a batch"}, "sequences of unknown length"),
        ({"value": "OOM"}, "no measurement in the row"),
        ({"metric": "gradient_reduce_time_s"}, "no measurement in the row"),
        ({"num_devices": "9", "num_nodes": "2"}, "nodes of unequal size, or of an unknown one"),
        ({"global_batch": "", "micro_batch": ""}, "batch not given, or smaller than the devices"),
        ({"dp_sharding": "none (several GPUs: layers spread by device_map)"}, "layers spread over the devices"),
        ({"other_options": "published TFLOPs 2900"}, "step time and FLOPs do not agree"),
        ({"num_devices": "0"}, "number of devices or nodes below 1"),
        ({"num_devices": "-8"}, "number of devices or nodes below 1"),
        ({"metric": "step_time_s", "value": "1e999"}, "no measurement in the row"),
        ({"value": "1"}, "faster than the chip's peak"),
        ({"precision": "fp8"}, ""),
        ({"precision": "nvfp4"}, "nvfp4 on a device without it"),
    ],
)
def test_reasons(changes: dict[str, str], reason: str) -> None:
    if reason:
        assert skip("published", **changes).reason.startswith(reason)
    else:
        assert case("published", **changes).precision == "fp8"


def test_devices_that_the_name_of_a_machine_states() -> None:
    said = {"num_devices": "", "num_nodes": "", "tp": "1", "value": "9000"}
    assert case("published", **said, device="1CC 2x H100 80GB SXM5").keys.devices == 2


def test_memory_of_unequal_sequences_is_that_of_the_longest() -> None:
    said = {"model": "phi-1.5 1.3 B", "device": "A100 SXM 40GB", "num_devices": "1", "tp": "1", "dp_sharding": "none"}
    lengths = {"seq_len": "padded to the longest in a batch; longest: phi 1044, Falcon 1079 tokens"}
    one = case("published", **said, **lengths, metric="max_gpu_ram", value="4.8 GB", peer_prediction="")
    assert (one.step_s, one.memory_bytes, one.workload.tokens) == (0.0, 4.8e9, 1044)
    cut = said | {"seq_len": "samples truncated at max_length 512; lengths before: 3234+-2547"}
    assert case("published", **cut, metric="max_gpu_ram", value="4.8 GB", peer_prediction="").workload.tokens == 512


def test_adapters_by_their_trained_parameters() -> None:
    said = {"model": "phi-1.5 1.3 B", "num_devices": "1", "tp": "1", "global_batch": "8"}
    found = case("published", **said, other_options="finetune_lora; trainable parameters 1,572,864")
    assert found.workload.num_parameters == 1572864 and found.workload.frozen > 1.3e9
    named = case("published", **said, other_options="--lora_rank 4 --lora_target_modules query_key_value dense")
    assert named.workload.num_parameters == 24 * 4 * (2048 + 3 * 2048 + 2048 + 2048)


@each_row(
    ("options", "bits"),
    [
        ("Q-LoRA; rank 8", 4),
        ("LoRA; quantization bnb.nf4", 4),
        ("LoRA; Quantization=int8 (gptq)", 8),
        ("LoRA; quantization None", 0),
    ],
)
def test_frozen_weights_in_few_bits(options: str, bits: int) -> None:
    found = case("published", model="Qwen-7B", other_options=options, tp="1", precision="int4 base (Q-LoRA)")
    assert found.precision == "bf16" and found.workload.frozen
    assert (0 < found.workload.frozen_bits < bits + 5) if bits else not found.workload.frozen_bits


def test_a_pipeline_empties_after_each_local_batch() -> None:
    mesh = {"num_devices": "8", "pp": "4", "tp": "2", "model": "Llama3 70B (LoRA fine-tune)", "global_batch": "32"}
    whole = case("published", **mesh, value="24000")
    local = case("published", **mesh, other_options="LBS 4; GA 8; VP 10", value="24000")
    assert whole.setting.strategy.parallelism.micro_batches == 32 and whole.step_s == 24
    assert local.setting.strategy.parallelism.micro_batches == 4 and local.step_s == 3
    assert local.setting.strategy.parallelism.virtual_stages == 10 and local.workload.frozen


def test_scripts_that_recompute_say_it_for_their_rows() -> None:
    row = {
        "source": "NVIDIA-NeMo/Automodel docs/performance-summary.md @a364c125",
        "num_devices": "8",
        "recompute": "",
        "other_options": "LBS 4",
    }
    mesh = {"pp": "4", "tp": "2", "model": "Llama3 70B (LoRA fine-tune)", "global_batch": "32", "date": "2026-01-27"}
    staged = case("published", **row, **mesh, value="24000").setting.strategy.parallelism
    assert staged.recompute.name == "full" and not staged.sequence
    stated = case("published", **row | {"recompute": "none"}, **mesh, value="24000").setting.strategy.parallelism
    assert stated.recompute.name == "none"


def test_automodel_runs_kernels_of_transformers_where_devices_share_layers() -> None:
    row = {"framework": "NeMo AutoModel (PyTorch)", "model": "Llama3 8B (LoRA fine-tune)", "other_options": "LBS 4"}
    levels = [case("published", **row, tp=tp, pp=pp).software for tp, pp in (("1", "1"), ("1", "2"), ("2", "1"))]
    assert levels == ["eager", "eager", "ordinary"]
    assert case("published", **row | {"other_options": "LBS 4; Kernel Optimizations TE"}, tp="2").software == "eager"


def test_litgpt_adds_up_whole_gradients_on_several_devices() -> None:
    row = {"source": "Lightning-AI/litgpt @1 tutorials", "model": "Llama 2 7B", "framework": "LitGPT", "tp": "1"}
    row |= {
        "recompute": "not stated",
        "other_options": "LoRA",
        "metric": "max_gpu_ram",
        "value": "20 GB",
        "peer_prediction": "",
    }
    alone = case("published", **row, num_devices="1", dp_sharding="none", global_batch="8")
    several = case("published", **row, num_devices="2", dp_sharding="fsdp", global_batch="8")
    assert (alone.held_bytes, several.held_bytes) == (0, 2 * (several.workload.frozen + several.workload.num_parameters))
    assert alone.setting.strategy.parallelism.recompute.name == "none"
    assert several.setting.strategy.parallelism.recompute.name == "full"
    assert case("published", **row, num_devices="2", dp_sharding="fsdp", global_batch="2").held_bytes == 0


def test_opt_drops_no_weights_of_attention() -> None:
    shape = {"framework": "Megatron-DeepSpeed", "other_options": "no flash attention", "precision": "fp32", "seq_len": "512"}
    gpt, opt = (case("published", **shape, model=f"{name} hidden 512 layers 4").workload for name in ("GPT", "OPT"))
    scores = 4 * 4 * 512**2  # of 4 blocks with 4 heads
    assert gpt.activation_bytes - opt.activation_bytes == (4 + 1) * scores  # what dropout writes, and its mask


def test_what_a_row_leaves_out_is_inferred_only_where_it_must_be() -> None:
    small = {"model": "GPT hidden 3072 layers 32", "device": "V100-SXM2-16GB", "tp": "8", "micro_batch": "32"}
    small |= {"value": "9000"}
    shape = {"seq_len": "2048", "precision": "fp16", "dp_sharding": "", "recompute": "", "global_batch": "32"}
    assert case("published", **small, **shape).setting.strategy.parallelism.recompute.name == "full", "or it would not fit"
    fits = {"model": "GPT hidden 1024 layers 4", "device": "V100-SXM2-16GB", "tp": "8", "micro_batch": "1"}
    assert case("published", **fits, **shape).setting.strategy.parallelism.recompute.name == "none"
    assert case("published", **small, **(shape | {"recompute": "none"})).setting.strategy.parallelism.recompute.name == "none"
    spread = {"model": "GPT-OSS 20B", "ep": "-", "tp": "1", "dp_sharding": "fsdp 8", "other_options": "TE + DeepEP"}
    experts = case("published", **spread).setting.strategy.parallelism
    assert experts.expert == 8 and experts.expert_exchange.name == "once_per_node" and experts.sharding.name == "zero3"


def test_cores_of_a_chip_count_as_devices_where_the_table_says_so() -> None:
    said = {"model": "Llama2-7B pre-training", "device": "", "num_devices": "", "num_nodes": "2", "global_batch": "", "tp": ""}
    page = {"source": "aws/sdk benchmarks/trn1/table.csv", "framework": "Neuron", "seq_len": "", "dp_sharding": ""}
    row = {"other_options": "topology [8xNC(TP)x4(DP)] x 2Nodes(DP); TP counts NeuronCores", "raw": "x,1,256,AdamW"}
    row["value"] = "60000"
    one = case("published", **said, **page, **row)
    mesh = one.setting.strategy.parallelism
    assert (one.keys.device, one.keys.devices, one.keys.nodes) == ("Trainium", 32, 2)
    assert (mesh.tensor, mesh.data, one.setting.strategy.global_batch_size, one.workload.tokens) == (4, 8, 256, 4096)
    assert case("published", **said, **page, **row, date="2024-06-30").attention == "eager"
    assert case("published", **said, **page, **row, date="2024-07-03").attention == "", "NeMo of AWS fuses it since"


def test_batches_of_maxtext_are_those_of_each_device() -> None:
    said = {
        "framework": "MaxText (JAX)",
        "model": "llama-2-70b",
        "device": "TPU v5e",
        "num_devices": "256",
        "tp": "16",
        "pp": "",
    }
    said |= {
        "global_batch": "",
        "micro_batch": "1",
        "dp_sharding": "fsdp",
        "seq_len": "2048",
        "precision": "bf16",
        "num_nodes": "",
    }
    said |= {"metric": "tflops_per_device", "value": "110", "peer_prediction": "", "interconnect": "", "ep": "", "cp": ""}
    row = said | {"other_options": "config: per_device_batch_size=1", "recompute": "qkv_proj_offloaded"}
    strategy = case("published", **row).setting.strategy
    assert (strategy.global_batch_size, strategy.parallelism.tensor, strategy.micro_batch_size) == (256, 16, 16)
    assert strategy.parallelism.recompute.name == "full"
    kept = case("published", **row | {"recompute": "minimal_offloaded"}).setting.strategy
    assert kept.parallelism.recompute.name == "none"
    for policy, blocks in (("custom", 0), ("save_dot_with_context_except_mlp", 52), ("save_dot_except_mlpwi", 36)):
        parallelism = case("published", **row | {"recompute": policy}).setting.strategy.parallelism
        assert (parallelism.recompute.name, parallelism.recompute_layers) == ("full", blocks), "of 80 blocks; 0: all"


@each_row(
    ("text", "sharding", "offload"),
    [
        ("FSDP (full shard)", "zero3", "none"),
        ("ZeRO-1, group 8 (within a node)", "zero1", "none"),
        ("zero2", "zero2", "none"),
        ("fsdp 1", "ddp", "none"),
        ("none", "ddp", "none"),
        ("ZeRO-3, optimizer offload", "zero3", "optimizer"),
        ("ZeRO", "zero3", "none"),
    ],
)
def test_shardings(text: str, sharding: str, offload: str) -> None:
    row = Row({"dp_sharding": text}, 1, 2, "made_up.csv")
    assert (options.sharding(row), options.offload(row)) == (sharding, offload)


@each_row(
    ("said", "recompute", "offload"),
    [
        ({"recompute": "activations offloaded"}, "none", "activations"),
        ({"recompute": "full, offload"}, "full", "activations"),
        ({"recompute": "minimal_offloaded"}, "none", "none"),
        ({"recompute": "none", "other_options": "cpu_offloading=True cpu_offloading_num_layers=4"}, "none", "activations"),
        ({"recompute": "none", "other_options": "cpu_offloading: false"}, "none", "none"),
        ({"recompute": "full", "framework": "DeepSpeed ZeRO-3, optimizer offload, activation offload"}, "full", "optimizer"),
    ],
)
def test_activations_on_the_host(said: dict[str, str], recompute: str, offload: str) -> None:
    row = Row(said, 1, 2, "made_up.csv")
    assert (options.recompute(row), options.offload(row)) == (recompute, offload)


@each_row(
    ("precision", "framework", "said"),
    [
        ("fp32", "pytorch-1.8.0a0+52ea372", "tf32"),
        ("fp32", "pytorch-2.1", "fp32"),
        ("fp32 weights; products likely TF32", "Megatron-DeepSpeed", "tf32"),
        ("amp fp16", "PyTorch", "fp16"),
        ("Autocast:BF16+SR", "PyTorch", "bf16"),
        ("", "PyTorch", "bf16"),
    ],
)
def test_precisions(precision: str, framework: str, said: str) -> None:
    assert case("published", precision=precision, framework=framework).precision == said


@each_row(
    ("metric", "value", "kind", "number"),
    [
        ("tokens/sec/gpu", "100", "tokens", 800.0),
        ("img/s", "100", "samples", 100.0),
        ("sequences_per_s_per_device", "2", "samples", 16.0),
        ("iteration time (s)", "2", "step", 2.0),
        ("s/it", "2.5", "step", 2.5),
        ("steps_per_s", "4", "step", 0.25),
        ("mfu", "45%", "utilisation", 0.45),
        ("TFLOP/s/device", "300", "flops", 300e12),
        ("peak_memory_bytes", "2097152", "memory", 2097152.0),
        ("max_gpu_ram", "4.5 GB", "memory", 4.5e9),
        ("peak_reserved_GiB", "2", "memory", 2.0**31),
    ],
)
def test_metrics_as_people_write_them(metric: str, value: str, kind: str, number: float) -> None:
    found = measured(metric, value, 8)
    assert found is not None and (found.kind, found.value) == (kind, pytest.approx(number))


def test_unknown_metrics_and_missing_values() -> None:
    assert [measured(*pair, 8) for pair in (("loss", "2"), ("step_time_s", "-"), ("step_time_s", "OOM"), ("", "1"))] == [
        None
    ] * 4


def test_defaults_of_frameworks_where_a_row_says_nothing() -> None:
    said = {"model": "Llama-3.1-8B", "tp": "1", "dp_sharding": "", "recompute": "selective (op)", "framework": "torchtitan"}
    eager, compiled = case("published", **said), case("published", **said, other_options="torch.compile")
    mesh = eager.setting.strategy.parallelism
    assert (eager.software, compiled.software, eager.attention) == ("eager", "tuned", "fa2")
    assert mesh.sharding.name == "zero3" and mesh.recompute.name == "selective:op"
    some = case("published", **(said | {"recompute": "selective AC, every 4"})).setting.strategy.parallelism
    assert (some.recompute.name, some.recompute_layers) == ("full", 8)
    groups = {"dp_sharding": "HSDP", "num_devices": "32", "num_nodes": "4"}
    assert case("published", **(said | groups)).setting.strategy.parallelism.shard_devices == 8
    large = {"model": "llama3-70b", "num_devices": "64", "num_nodes": "8", "tp": "8", "dp_sharding": "", "recompute": "full"}
    assert case("published", **large).setting.strategy.parallelism.sharding.name == "distributed_optimizer", (
        "or it does not fit"
    )


@each_row("column", [*columns("published")])
def test_no_cell_is_an_error(column: str) -> None:
    for text in ("", "0", "½", "99999999", "layers 99999999 hidden 7; TP 0"):
        assert isinstance(outcome("published", **{column: text}), Case | Skip)


def test_the_fused_kernels_of_megatron_are_for_16_bits() -> None:
    said = {"framework": "Megatron-DeepSpeed", "device": "A100 SXM 80GB", "value": "5000"}
    assert [case("published", **said, precision=name).software for name in ("fp16", "fp32")] == ["tuned", "ordinary"]
    assert case("published", framework="HF + DeepSpeed").software == "ordinary"


IMAGES = {
    "model": "densenet121 (torchvision)", "device": "TITAN RTX", "num_devices": "1", "num_nodes": "1",
    "global_batch": "12", "micro_batch": "12", "seq_len": "", "precision": "fp32",
    "framework": "PyTorch 1.4, torchvision", "tp": "", "pp": "", "ep": "", "cp": "", "dp_sharding": "", "recompute": "",
    "other_options": "224x224; no optimizer step", "metric": "step_time_s", "value": "0.1", "peer_prediction": "",
}  # fmt: skip


def test_a_row_of_images_has_the_network_of_timm_and_its_memory_format(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []
    named = Workload.named

    def kept(name: str, *args: object, **choices: object) -> Workload:  # a table that needs no torch
        asked.append((name, choices.get("inputs")))
        return named("timm/densenet121")

    monkeypatch.setattr(Workload, "named", kept)
    one = case("published", **IMAGES)
    assert asked[-1] == ("timm/densenet121", "3x224x224") and one.setting.strategy.optimizer == "sgd"
    assert one.setting.strategy.memory_format == "" and one.setting.strategy.precision == "fp32"
    last = IMAGES | {"other_options": "memory layout channels_last; image 288; (benchmark.py default sgd)"}
    other = case("published", **last | {"model": "densenet121", "framework": "PyTorch 1.12, timm benchmark.py"})
    assert asked[-1] == ("timm/densenet121", "3x288x288") and other.setting.strategy.optimizer == "momentum"
    assert other.setting.strategy.memory_format == "channels_last"
    assert "DataParallel" in skip("published", **IMAGES | {"num_devices": "2", "global_batch": "24"}).reason
