"""Sets of runs that divide a model: what a row says of the mesh, and which rows are left out."""

from __future__ import annotations

import pytest

from each_row import each_row
from measured_rows import case, skip
from paceline.strategy.parallelism import Parallelism
from paceline.validation.sets import case_builders, hardware_aliases, torchtitan
from paceline.validation.sets.language_models import has_experts, language_model, model_name
from paceline.validation.sets.megatron_bridge_recipes import FULL_GRAPHS_SINCE, recipe, year

UNEVEN_EXPERTS = "32 devices that share the experts do not divide the 8 of a pipeline stage (data x context x tensor)"


def mesh_of(name: str, **changes: str) -> Parallelism:
    return case(name, **changes).setting.strategy.parallelism


def test_megatron_bridge() -> None:
    row = case("megatron_bridge")
    setting = row.setting
    mesh = setting.strategy.parallelism
    assert (mesh.tensor, mesh.pipeline, mesh.virtual_stages, mesh.data, mesh.micro_batches) == (4, 8, 5, 2, 64)
    assert mesh.sequence and mesh.sharding.name == "distributed_optimizer" and mesh.recompute.name == "none"
    assert row.step_s == pytest.approx(8.0)  # 128 x 8192 tokens, 2048 a second on each of 64
    assert (row.precision, row.software, row.workload.name, row.keys.release) == (
        "fp8-current",
        "tuned",
        "llama-3-70b",
        "25.11",
    )
    assert setting.cluster.num_nodes == 8 and setting.cluster.network.bandwidth.value == 8 * 50e9


def test_megatron_bridge_shares_weights_and_trains_adapters() -> None:
    sharded = mesh_of("megatron_bridge", model="LLAMA3_8B", num_gpus="8", tp="1", pp="1", vp="", fsdp="8")
    assert sharded.sharding.name == "zero3" and sharded.data == 8 and not sharded.sequence
    adapted = case("megatron_bridge", task="LoRA Performance")
    assert adapted.workload.name == "llama-3-70b-lora" and adapted.workload.frozen > 6e10


@pytest.mark.parametrize(
    ("changes", "reason", "good"),
    [
        ({"model": "Qwen4_30B_a3B"}, case_builders.NO_WORKLOAD, True),
        ({"model": "Qwen3_30B_a3B", "vp": "1", "ep": "32"}, UNEVEN_EXPERTS, True),
        ({"precision": ""}, case_builders.PRECISION, False),
        ({"precision": "FP6"}, "precision FP6", True),
        ({"system": "DGX-A100"}, "fp8-current on a device without it", True),
        ({"tp": "7"}, case_builders.MESH, False),
        ({"num_gpus": "12"}, case_builders.MESH, False),
        ({"global_batch": "127"}, case_builders.NO_BATCH, False),
        ({"micro_batch": ""}, case_builders.NO_BATCH, False),
        ({"tokens_per_s_per_gpu": "0"}, case_builders.NO_VALUE, False),
        ({"model": "Chess-9B"}, case_builders.NO_WORKLOAD, True),
    ],
)
def test_megatron_bridge_leaves_out(changes: dict[str, str], reason: str, good: bool) -> None:
    row = skip("megatron_bridge", **changes)
    assert (row.reason, row.good) == (reason, good)


def test_what_does_not_divide_is_found_before_any_prediction() -> None:
    """Rows that are shown to the predictor are predicted too."""
    assert "80 blocks" in skip("megatron_bridge", vp="12").reason


def test_megatron_bridge_divides_sequences() -> None:
    mesh = mesh_of("megatron_bridge", cp="2")
    assert (mesh.context, mesh.data, mesh.micro_batches) == (2, 1, 128)


def test_dgxc() -> None:
    row = case("dgxc")
    mesh = row.setting.strategy.parallelism
    assert (mesh.tensor, mesh.pipeline, mesh.data, mesh.micro_batches, mesh.sequence) == (4, 1, 8, 4, True)
    assert (row.step_s, row.precision, row.workload.name) == (2.0, "bf16", "nemotron-4-15b")
    megatron = case(
        "dgxc", model="NeMo Megatron", num_gpus="128", global_batch="256", micro_batch="1", seq_len="2048", pp="8", vp="12"
    )
    assert megatron.workload.name == "gpt3-175b" and megatron.setting.strategy.parallelism.virtual_stages == 12


def test_dgxc_shortens_a_model_and_tunes_with_packed_sequences() -> None:
    short = case("dgxc", model="Llama 3.1 405b", layers="8", micro_batch="1", tp="8", cp="1", vp="NA")
    assert short.workload.name == "llama-3-405b-of-8-layers" and short.workload.num_parameters < 4e10
    tuned = case("dgxc", model="Llama3 70b Finetuning LORA", num_gpus="8", micro_batch="", tp="2", pp="4", vp="20")
    assert tuned.setting.strategy.micro_batch_size == 1 and tuned.workload.name == "llama-3-70b-lora"


@pytest.mark.parametrize(
    ("changes", "reason", "good"),
    [
        ({"pp": "41"}, case_builders.MESH, False),  # a garbled 1
        ({"tokens_per_s": "5"}, "step time and tokens a second do not agree", False),
        ({"table_title": "Maxtext Llama3 70b BF16 (FSDP+DP MBS=2)"}, "FSDP among an unknown number of devices", False),
        ({"model": "Mixtral 8x7b"}, case_builders.EXPERTS, True),
        ({"model": "Grok 3"}, case_builders.EXPERTS, True),
        ({"precision": ""}, case_builders.PRECISION, False),
        ({"micro_batch": ""}, case_builders.NO_BATCH, False),
    ],
)
def test_dgxc_leaves_out(changes: dict[str, str], reason: str, good: bool) -> None:
    row = skip("dgxc", **changes)
    assert (row.reason, row.good) == (reason, good)


def test_megatron_bridge_divides_experts_across_the_other_dimensions() -> None:
    row = case("megatron_bridge", model="Qwen3_235B_a22B", num_gpus="256", seq_len="4096", tp="2", vp="4", ep="32")
    mesh = row.setting.strategy.parallelism
    assert (mesh.tensor, mesh.pipeline, mesh.expert, mesh.expert_tensor, mesh.data) == (2, 8, 32, 1, 16)
    assert row.workload.name == "qwen-3-235b-a22b" and mesh.expert_replicas.data == 1
    assert mesh.expert_overlap and mesh.expert_exchange.name == "all_to_all"
    alone = mesh_of("megatron_bridge", model="Qwen3_30B_a3B", seq_len="4096", tp="1", pp="1", vp="", ep="1")
    assert not alone.expert_overlap and alone.expert_exchange.name == "all_to_all"


@pytest.mark.parametrize(("devices", "experts"), [("8", 2), ("16", 4), ("32", 8), ("64", 8)])
def test_dgxc_divides_groks_experts_as_its_scripts_do(devices: str, experts: int) -> None:
    row = case("dgxc", model="Grok 1 314b", num_gpus=devices, layers="2", micro_batch="1", tokens_per_s="", vp="NA")
    mesh = row.setting.strategy.parallelism
    assert (mesh.expert, mesh.expert_tensor, mesh.tensor, mesh.sequence) == (experts, 4, 4, True)
    assert row.workload.name == "grok-1-of-2-layers"
    assert any(p.shape == (128256, 6144) and "logits" in p.name for p in row.workload.parameters)


def test_torchtitan_divides_experts() -> None:
    mesh = mesh_of("torchtitan", model="DeepSeek-V3", technique="", parallelism="FSDP 256, EP 32")
    assert (mesh.expert, mesh.data, mesh.sharding.name) == (32, 256, "zero3")


def test_dgxc_counts_a_strange_text_in_a_mesh_column() -> None:
    assert skip("dgxc", vp="12.91 s").keys.model == ""


def test_torchtitan() -> None:
    row = case("torchtitan")
    mesh = row.setting.strategy.parallelism
    assert (mesh.tensor, mesh.data, mesh.sharding.name, mesh.recompute.name, mesh.micro_batches) == (8, 32, "zero3", "full", 1)
    assert (row.precision, row.precision_from, row.software) == ("fp8-current", "row", "tuned")
    assert row.step_s == pytest.approx(16.0)  # 32 x 16 sequences of 8192 tokens, 1024 a second on each of 256
    assert case("torchtitan", technique="eager").software == "eager" and case("torchtitan", technique="").precision == "bf16"
    piped = mesh_of("torchtitan", parallelism="FSDP 4, TP 8, PP 8", local_batch="32", technique="Interleaved 1F1B")
    assert (piped.pipeline, piped.data, piped.virtual_stages, piped.micro_batches) == (8, 4, 2, 16)
    assert mesh_of("torchtitan", global_batch="1024").micro_batches == 2


def test_torchtitan_checkpoints_every_second_product() -> None:
    row = case("torchtitan", activation_ckpt="selective op")
    assert row.setting.strategy.parallelism.recompute.name == "selective:op" and row.samples == 512
    assert mesh_of("torchtitan", activation_ckpt="none").recompute.name == "none"
    every = mesh_of("torchtitan", activation_ckpt="selective 2")
    assert (every.recompute.name, every.recompute_layers) == ("full", 40)  # of 80 blocks


@pytest.mark.parametrize(
    ("text", "tensor", "pipeline", "context"),
    [
        ("FSDP 32, TP 8", 8, 1, 1),
        ("FSDP=8 x TP=8 x PP=4", 8, 4, 1),
        ("3D: fsdp8 tp8 pp16", 8, 16, 1),
        ("8-way TP, 4-way PP, FSDP", 8, 4, 1),
        ("FSDP (dp 8), CP 4", 1, 1, 4),
        ("FSDP", 1, 1, 1),
        ("", 1, 1, 1),
    ],
)
def test_torchtitan_reads_the_mesh(text: str, tensor: int, pipeline: int, context: int) -> None:
    sizes = torchtitan.dimensions(text)
    assert (sizes["tensor"], sizes["pipeline"], sizes["context"]) == (tensor, pipeline, context)


def test_torchtitan_leaves_out() -> None:
    assert skip("torchtitan", parallelism="TP 7").reason == case_builders.MESH
    assert "has no experts" in skip("torchtitan", parallelism="FSDP 32, TP 8, EP 2").reason
    assert skip("torchtitan", gpu="A100").reason == "fp8-current on a device without it"
    assert skip("torchtitan", local_batch="").reason == case_builders.NO_BATCH
    assert case("torchtitan", local_batch="", global_batch="512").samples == 512


def test_megatron_table() -> None:
    row = case("megatron_table")
    mesh = row.setting.strategy.parallelism
    assert (mesh.tensor, mesh.sequence, mesh.recompute.name, mesh.sharding.name, mesh.micro_batches) == (
        8,
        True,
        "selective",
        "ddp",
        1,
    )
    assert row.step_s == 1.5 and row.precision == "fp16" and row.workload.name == "gpt-48x6144"
    full = mesh_of("megatron_table", recompute="full")
    assert full.recompute.name == "full" and not full.sequence
    large = mesh_of("megatron_table", num_gpus="64", pp="8", interleave="3", global_batch="64", micro_batch="1")
    assert (large.pipeline, large.virtual_stages, large.micro_batches) == (8, 3, 64)
    assert skip("megatron_table", dp="3").reason == case_builders.MESH
    assert skip("megatron_table", recompute="half").good


def test_mlperf_predicts_what_states_its_division() -> None:
    gpt3 = {
        "round": "v3.0",
        "benchmark": "gpt3",
        "accelerator": "H100-SXM5-80GB",
        "num_nodes": "64",
        "num_accel": "512",
        "global_batch": "2048",
        "grad_accum": "128",
        "tp": "4",
        "pp": "8",
        "cp": "1",
        "throughput_samples_per_s": "128",
    }
    row = case("mlperf", **gpt3)
    mesh = row.setting.strategy.parallelism
    assert (mesh.tensor, mesh.pipeline, mesh.virtual_stages, mesh.data, mesh.micro_batches) == (4, 8, 12, 16, 128)
    assert (row.precision, row.precision_from, row.step_s) == ("fp8", "submission", 16.0)
    assert (row.setting.strategy.parallelism.gather_bits, row.setting.strategy.parallelism.gradient_bits) == (16, 16)
    blackwell = gpt3 | {"accelerator": "NVIDIA B200-SXM-180GB"}
    assert [case("mlperf", **blackwell | {"round": r}).precision for r in ("v5.0", "v5.1")] == ["fp8", "nvfp4"]
    assert case("mlperf", **blackwell | {"round": "v5.0"}).setting.strategy.parallelism.gather_bits == 8
    gaudi = gpt3 | {"accelerator": "Gaudi2", "submitter": "Intel-HabanaLabs", "tp": "8"}
    assert [case("mlperf", **gaudi | {"round": r}).precision for r in ("v3.0", "v3.1")] == ["bf16", "fp8"]
    assert case("mlperf", **gpt3 | {"cp": "2"}).setting.strategy.parallelism.context == 2
    assert skip("mlperf", **gpt3 | {"tp": "5"}).reason == case_builders.MESH
    small = case("mlperf", **gpt3 | {"global_batch": "256", "grad_accum": "16"})
    assert small.setting.strategy.parallelism.micro_batches == 16  # a batch below the devices, above the replicas


@pytest.mark.parametrize(
    ("accelerator", "batch", "precision"),
    [
        ("H100-SXM5-80GB", "768", "fp8"),  # 48 a device
        ("H100-SXM5-80GB", "96", "fp16"),
        ("A100-SXM-80GB", "768", "fp16"),
        ("NVIDIA L40S", "768", "fp16"),
    ],
)
def test_mlperf_runs_bert_in_fp8_where_the_submissions_say_so(accelerator: str, batch: str, precision: str) -> None:
    assert case("mlperf", benchmark="bert", accelerator=accelerator, global_batch=batch).precision == precision


@each_row(
    ("text", "name"),
    [
        ("LLAMA3.1_405B", "llama-3-405b"),
        ("Llama 3.1 8b 24.09", "llama-3-8b"),
        ("llama3_70b", "llama-3-70b"),
        ("Llama-3.2-1B", "llama-3.2-1b"),
        ("LLAMA2-13B", "llama-2-13b"),
        ("GPT3-20B", "gpt3-20b"),
        ("Nemotron-340B", "nemotron-4-340b"),
        ("Nemotron4 15b", "nemotron-4-15b"),
        ("Nemotron-22B", "nemotron-3-22b"),
        ("Qwen2.5 72B", "qwen-2.5-72b"),
        ("Qwen3 14B", "qwen-3-14b"),
        ("Qwen3_235B_a22B", "qwen-3-235b-a22b"),
        ("Qwen3_30B_a3B (tokendrop)", "qwen-3-30b-a3b"),
        ("DeepSeekV3 (dropless)", "deepseek-v3"),
        ("DeepSeek-V3.2", ""),
        ("DeepSeek V2 Lite", "deepseek-v2-lite"),
        ("Mixtral 8x22B", "mixtral-8x22b"),
        ("Grok1 314b", "grok-1"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Kimi-K2", "kimi-k2"),
        ("Llama 4 Maverick", "llama-4-maverick"),
        ("Nemotron_3_Ultra", "nemotron-3-ultra-550b-a55b"),
        ("Nemotron_3_Nano", "nemotron-3-nano-30b-a3b"),
        ("llama-405b", ""),  # of which generation?
        ("ResNet-50", ""),
    ],
)
def test_language_models_as_tables_spell_them(text: str, name: str) -> None:
    assert model_name(text) == name


def test_mixtures_of_experts_are_known_by_name() -> None:
    for text in ("DeepSeekV3 (dropless)", "GPT OSS 120B", "Grok1 314b", "Qwen3_30B_a3B", "Mixtral 8x7B", "Llama4-Scout"):
        assert has_experts(text), text
    assert not has_experts("LLAMA3.1_405B") and language_model("Qwen3 Next 90B A9B", 4096) is None
    grok = language_model("Grok 1", 512, layers=2, vocabulary=1000)
    assert grok is not None and grok.num_parameters < 11e9 and grok.name == "grok-1-of-2-layers"


@each_row(
    ("text", "precision"),
    [
        ("FP8-CS", "fp8-current"),
        ("FP8-DS", "fp8"),
        ("FP8-SC", "fp8-block"),
        ("fp8 blockwise", "fp8-block"),
        ("FP8 (page states FP8)", "fp8"),
        ("FP8-MX", "mxfp8"),
        ("MXFP8", "mxfp8"),
        ("NVFP4", "nvfp4"),
        ("FP4", "nvfp4"),
        ("MXFP4", ""),
        ("BF16", "bf16"),
        ("fp16", "fp16"),
        ("", ""),
    ],
)
def test_precisions_as_tables_spell_them(text: str, precision: str) -> None:
    assert case_builders.low_precision(text) == precision


def test_a_domain_of_nvlink_joins_nodes() -> None:
    gb200 = hardware_aliases.device("GB200")
    assert gb200 is not None
    assert hardware_aliases.domain(gb200, 512, 4) == (64, 8) and hardware_aliases.domain(gb200, 72, 4) == (72, 1)
    rack = hardware_aliases.reference_system(gb200, 144)
    assert rack is not None and (rack.devices_per_node, rack.num_nodes) == (72, 2)
    assert rack.network.bandwidth.value == 72 * 50e9
    h100 = hardware_aliases.device("H100")
    assert h100 is not None and hardware_aliases.domain(h100, 64, 8) == (8, 8)
    assert hardware_aliases.reference_system(h100, 12) is None


def test_recipes_of_mixtures_change_with_chip_precision_and_release() -> None:
    assert year("26.06.01 NeMo Container") > FULL_GRAPHS_SINCE > year("26.04 NeMo Container")
    assert year("26.06") == pytest.approx(2026 + 5 / 12) and year("") == 0.0
    new, old = year("26.06"), year("26.04")
    assert recipe("qwen-3-30b-a3b", "Blackwell", "mxfp8", new) == {"expert_exchange": "once_per_node", "expert_overlap": True}
    assert recipe("qwen-3-30b-a3b", "Blackwell", "mxfp8", old) == {"expert_exchange": "once_per_node"}
    assert recipe("gpt-oss-120b", "Hopper", "bf16", new) == {"recompute": "selective:layernorm,moe_act"}
    assert "recompute" not in recipe("gpt-oss-120b", "Blackwell", "mxfp8", new)
    assert recipe("deepseek-v3", "Blackwell", "nvfp4", new)["recompute"] == "selective:mlp"
    assert recipe("llama-3-8b", "Hopper", "bf16", new) == {}
