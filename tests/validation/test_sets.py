"""Every adapter: what a row says, in the units of a step, and why another row is left out."""

from __future__ import annotations

import pytest

from each_row import each_row
from measured_rows import USUAL, case, outcome, skip
from paceline.validation.case import Case, Skip
from paceline.validation.sets import NAMES, adapter, case_builders, hardware_aliases


def test_mlperf() -> None:
    one = case("mlperf")
    setting = one.setting
    assert one.workload.name == "resnet-50" and one.software == "tuned"
    assert case("mlperf", round="v0.7").software == "eager"
    assert one.step_s == pytest.approx(0.1)  # 3200 samples at 32000 a second
    assert setting.strategy.global_batch_size == 3200 and setting.strategy.precision == "fp16"
    assert (setting.cluster.num_nodes, setting.cluster.devices_per_node) == (2, 8)
    assert setting.cluster.network.bandwidth.value == 8 * 25e9  # the storage ports do not count
    assert not skip("mlperf", throughput_source="run_average").good
    assert not skip("mlperf", throughput_source="", throughput_samples_per_s="").good
    assert skip("mlperf", accelerator="Abacus-9").good
    assert skip("mlperf", benchmark="chess").good
    assert not skip("mlperf", global_batch="8").good
    assert not skip("mlperf", benchmark="gpt3", accelerator="H100-SXM5-80GB").good  # it does not fit, and no division is given


def test_mlperf_counts_tpus_as_one_torus_and_a_batch_by_its_pieces() -> None:
    one = case("mlperf", accelerator="TPU-v4", num_nodes="16", accel_per_node="4", num_accel="64", global_batch="6400")
    torus = one.setting.cluster
    assert (torus.num_nodes, torus.devices_per_node, one.keys.nodes) == (8, 8, 16)
    assert torus.network.bandwidth.value == 8 * torus.intra_link.bandwidth.value
    assert one.setting.strategy.precision == "bf16"
    split = case("mlperf", grad_accum="2")
    assert split.setting.strategy.parallelism.micro_batches == 2 and split.step_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("accelerator", "attention"), [("A100-SXM4-80GB", ""), ("H100-SXM5-80GB", ""), ("NVIDIA L40S", "eager"), ("A30", "")]
)
def test_mlperfs_bert_fuses_attention_on_the_chips_of_its_kernel(accelerator: str, attention: str) -> None:
    assert case("mlperf", benchmark="bert", accelerator=accelerator).attention == attention


@pytest.mark.parametrize(
    ("said", "workload", "optimizer"),
    [
        ("rnnt", "rnnt", "lamb"),
        ("gnn", "rgat", "adam"),
        ("rgat", "rgat", "adam"),
        ("dlrm", "dlrm", "sgd"),
        ("dlrm_dcnv2", "dlrm-dcnv2", "momentum"),
        ("flux1", "flux1", "adam"),
    ],
)
def test_mlperf_knows_the_benchmarks_of_other_rounds(said: str, workload: str, optimizer: str) -> None:
    one = case("mlperf", benchmark=said, accelerator="H100-SXM5-80GB")
    strategy = one.setting.strategy
    assert (one.workload.name, strategy.optimizer) == (workload, optimizer)
    assert strategy.parallelism.sharding.name == ("zero3" if workload == "flux1" else "ddp")


def test_mlperf_divides_experts_among_as_few_devices_as_they_fit_on() -> None:
    many = {"num_nodes": "32", "accel_per_node": "8", "num_accel": "256", "global_batch": "4096"}
    groups = {}
    for chip in ("H100-SXM5-80GB", "B200"):
        mesh = case("mlperf", benchmark="deepseekv3_671b", accelerator=chip, **many).setting.strategy.parallelism
        groups[chip] = mesh.expert
    assert groups == {"H100-SXM5-80GB": 64, "B200": 16}  # 654 of 671 G parameters are experts'
    piped = case("mlperf", benchmark="deepseekv3_671b", accelerator="B200", pp="4", **many).setting.strategy.parallelism
    assert (piped.pipeline, piped.expert) == (4, 4)
    small = case("mlperf", benchmark="gpt-oss-20b", accelerator="H100-SXM5-80GB").setting.strategy.parallelism
    assert small.expert == 1 and small.whole


@pytest.mark.parametrize(("round_", "said"), [("v1.1", "ssd"), ("v2.0", "retinanet"), ("v3.1", "retinanet")])
def test_ssd_is_retinanet_from_round_2(round_: str, said: str) -> None:
    assert outcome("mlperf", benchmark="ssd", round=round_).keys.model == said


def test_pollux_sia() -> None:
    one = case("pollux_sia")
    assert (one.step_s, one.sync_s, one.software) == (0.5, 0.1, "ordinary")
    assert one.samples == 32 * 8
    uneven = case("pollux_sia", num_gpus="11", num_nodes="4", placement="2333")
    assert uneven.setting.cluster.node_sizes == (2, 3, 3, 3) and uneven.samples == 32 * 11
    unsaid = case("pollux_sia", num_gpus="10", num_nodes="3", placement="scal:3n/10g")
    assert unsaid.setting.cluster.node_sizes == (4, 3, 3), "as even as they go"
    assert skip("pollux_sia", gpu="Abacus-9").good
    longer = skip("pollux_sia", sync_time_s="0.6")
    assert not longer.good and longer.reason == "synchronisation longer than its step"


def test_tf_benchmarks() -> None:
    one = case("tf_benchmarks")
    setting = one.setting
    assert one.step_s == pytest.approx(2.0) and setting.strategy.gradient_exchange.exchange.name == "sharded"
    assert setting.cluster.network.bandwidth.value == 1.25e9
    alone = case("tf_benchmarks", num_nodes="1", num_gpus="8", gpu="P100-SXM2-16GB", variable_update="parameter_server/cpu")
    assert (
        alone.setting.cluster.intra_link.kind == "pcie"
        and alone.setting.strategy.gradient_exchange.exchange.name == "allreduce"
    )
    nccl = case("tf_benchmarks", num_nodes="1", num_gpus="8", gpu="P100-SXM2-16GB", variable_update="replicated/nccl")
    assert nccl.setting.cluster.intra_link.kind == "nvlink"


def test_lambda() -> None:
    one = case("lambda")
    assert one.step_s == pytest.approx(0.25) and one.setting.strategy.micro_batch_size == 256
    assert one.precision == "fp16" and case("lambda", precision="fp32/tf32").precision == "tf32"
    assert case("lambda", precision="fp32/tf32", system="LambdaCloud 2x V100 16GB").precision == "fp32"
    assert skip("lambda", model="chess").good
    clips = case("lambda", model="tacotron2", batch_per_gpu_listed="128", throughput="72448")
    assert clips.step_s == pytest.approx(1.0) and clips.precision == "tf32"
    flow = case("lambda", model="waveglow", batch_per_gpu_listed="32", throughput="128000")
    assert flow.step_s == pytest.approx(2.0) and flow.precision == "tf32"  # its option for mixed precision was ignored
    words = case("lambda", model="transformerxllarge", batch_per_gpu_listed="16", throughput="4096")
    assert words.step_s == pytest.approx(1.0) and words.workload.name == "txl-large-softmax"
    pairs = case("lambda", model="gnmt", unit="tokens/s", throughput="27648")
    assert pairs.step_s == pytest.approx(1 / 1.27)  # the sentences of the table have no padding, those of the rate some


def test_nvidia_dle() -> None:
    one = case("nvidia_dle")
    assert one.step_s == pytest.approx(0.1) and one.precision == "fp16"
    assert case("nvidia_dle", precision="fp32").precision == "tf32"
    xl = {"model_dir": "LanguageModeling/Transformer-XL", "batch_per_gpu": "8"}
    large = case("nvidia_dle", **xl, section="Large model", throughput="24576")
    assert large.step_s == pytest.approx(1.0) and large.workload.name == "txl-large"
    assert case("nvidia_dle", **xl).workload.name == "txl-base"
    assert not skip("nvidia_dle", batch_per_gpu="").good and not skip("nvidia_dle", throughput="0").good
    assert not skip("nvidia_dle", batch_per_gpu="1048576", throughput="22.0").good  # 22.59 million were meant


def test_nvidia_dle_knows_what_each_directory_trains() -> None:
    bert = {"model_dir": "LanguageModeling/BERT", "section": "Pre-training NVIDIA DGX A100", "batch_per_gpu": "16"}
    assert not skip("nvidia_dle", **bert, seq_len="512").good  # sequences in bins by their length
    assert not skip("nvidia_dle", **bert, seq_len="512", framework_dir="PaddlePaddle").good
    padded = case("nvidia_dle", **bert, seq_len="512", framework_dir="TensorFlow")
    assert padded.workload.sample == "sequence of 512 tokens" and not padded.workload.fuses_attention
    assert case("nvidia_dle", **bert, seq_len="128").workload.name == "bert-large-mlm"
    assert case("nvidia_dle", **bert, seq_len="128", framework_dir="PaddlePaddle").workload.attends  # one fused kernel
    tuned = bert | {"section": "Fine-tuning NVIDIA DGX A100"}
    assert case("nvidia_dle", **tuned).workload.name == "bert-large-squad"
    electra = case("nvidia_dle", **tuned | {"model_dir": "LanguageModeling/ELECTRA"})
    assert (electra.workload.name, electra.workload.sample) == ("bert-base-squad", "sequence of 384 tokens")
    assert skip("nvidia_dle", **bert | {"model_dir": "LanguageModeling/ELECTRA"}).good
    tokens = {"model_dir": "Translation/Transformer", "batch_per_gpu": "2700"}
    assert case("nvidia_dle", **tokens, throughput="43200").step_s == pytest.approx(8 * 2700 / 43200)
    users = {"model_dir": "Recommendation/DLRM", "batch_per_gpu": "8"}  # thousands
    assert case("nvidia_dle", **users, throughput="65536000").step_s == pytest.approx(0.001)
    unet = {
        "model_dir": "Segmentation/nnUNet",
        "gpu": "A100-SXM",
        "section": "NVIDIA DGX A100 (8x A100 80G)",
        "batch_per_gpu": "2",
    }
    volume = case("nvidia_dle", **unet, raw="3 | 8 | 2 | 219.16")
    assert (volume.workload.name, volume.keys.device) == ("unet3d", "A100 SXM 80GB")
    assert skip("nvidia_dle", **unet, raw="2 | 8 | 64 | 8000").good


def test_vtrain_divides_the_network_as_the_row_does() -> None:
    one = case("vtrain")
    assert one.step_s == 0.25 and one.workload.name == "gpt-12x1024"
    assert one.setting.strategy.parallelism.micro_batches == 2 and one.samples == 64
    mesh = case("vtrain", tp="2", pp="2", dp="2").setting.strategy.parallelism
    assert (mesh.tensor, mesh.pipeline, mesh.data, mesh.devices, mesh.micro_batches) == (2, 2, 2, 8, 8)
    assert skip("vtrain", pp="2", dp="8").reason == case_builders.NO_BATCH


def test_neusight() -> None:
    one = case("neusight")
    assert (one.step_s, one.precision, one.published) == (0.4, "fp32", {"NeuSight": 0.44, "Habitat": 0.9})
    assert one.workload.name == "bert-large" and one.setting.strategy.micro_batch_size == 4
    four = case("neusight", option="dp4")
    assert four.setting.cluster.world_size == 4 and four.setting.strategy.micro_batch_size == 1
    assert not skip("neusight", option="tp4").good and not skip("neusight", mode="inf").good
    assert skip("neusight", option="fusion").good and skip("neusight", model="switchxl4").good


def test_llmfoundry() -> None:
    one = case("llmfoundry")
    setting = one.setting
    assert one.step_s == pytest.approx(2.0) and one.precision == "bf16"
    assert (setting.cluster.num_nodes, setting.cluster.network.bandwidth.value) == (2, 200e9)
    strategy = setting.strategy
    assert (strategy.parallelism.sharding.name, strategy.parallelism.recompute.name, strategy.parallelism.micro_batches) == (
        "zero3",
        "full",
        2,
    )
    assert strategy.micro_batch_size == 4 and one.workload.sample == "sequence of 2048 tokens"
    assert case("llmfoundry", num_gpus="8").setting.cluster.num_nodes == 1
    assert skip("llmfoundry", act_cpu_offload="True").good and skip("llmfoundry", precision="int8").good


@pytest.mark.parametrize(
    ("gpu", "precision", "said"),
    [
        ("h100_80gb", "bf16", "bf16"),
        ("h100_80gb", "amp_fp8", "fp8"),
        ("h100_80gb", "FP8", "fp8"),
        ("h100_80gb_fp8", "bf16", "fp8"),
        ("H200-SXM-141GB fp8", "amp_bf16", "fp8"),
        ("NVIDIA B200-SXM-180GB", "amp_fp8", "fp8"),
    ],
)
def test_llmfoundry_in_fp8(gpu: str, precision: str, said: str) -> None:
    assert case("llmfoundry", gpu=gpu, precision=precision).precision == said


def test_fp8_on_a_device_without_it_is_left_out() -> None:
    assert skip("llmfoundry", gpu="a100_80gb_fp8").reason == "fp8 on a device without it"


@pytest.mark.parametrize("name", NAMES)
def test_every_set_reads_its_usual_row_and_an_unknown_device(name: str) -> None:
    made = outcome(name)
    assert isinstance(made, Case) or made.good
    column = next(c for c in ("accelerator", "gpu", "system", "device") if c in USUAL[name])
    strange = skip(name, **{column: "Abacus-9"})
    assert strange.good and strange.keys.device == "Abacus-9"


@pytest.mark.parametrize("name", NAMES)
def test_text_in_a_number_leaves_the_row_out(name: str) -> None:
    for column in adapter(name).numbers:
        strange = skip(name, **{column: "fast"})
        assert strange.reason == f"no number in column {column}" and not strange.good
        assert strange.detail == f"made_up.csv, row 1 (line 2), column {column}: 'fast' is not a number from 0 up"


@each_row(
    ("text", "name"),
    [
        ("A100-SXM-80GB", "A100 SXM 80GB"),
        ("NVIDIA_A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("a100_40gb", "A100 SXM 40GB"),
        ("NVIDIA A100-PCIE-80GB (300W)", "A100 PCIe 80GB"),
        ("V100-SXM3-32GB", "V100 SXM3 32GB"),
        ("LambdaCloud 2x V100 16GB", "V100 SXM2 16GB"),
        ("H100-SXM5-80GB", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100_80gb", "H100 SXM"),
        ("H100 80GB PCIe Gen5", "H100 PCIe"),
        ("H200-SXM-141GB", "H200"),
        ("NVIDIA_L4", "L4"),
        ("T4-16GB", "T4"),
        ("RTX-2080Ti", "RTX 2080 Ti"),
        ("2x GeForce RTX 4090", "RTX 4090"),
        ("TPU-v3", "TPU v3"),
        ("NVIDIA A100-SXM-80GB CTS", "A100 SXM 80GB"),
        ("DGX-GB200", "GB200"),
        ("NVIDIA GB200 NVL72", "GB200"),
        ("AMD Instinct MI325X 256GB HBM3e", "MI325X"),
        ("Intel Gaudi 2", "Gaudi 2"),
        ("Google TPU v5p", "TPU v5p"),
        ("tpu-v6 (Trillium)", "TPU v6e"),
        ("TPU v5litepod", "TPU v5e"),
        ("Intel® Gaudi® 3 Accelerators", "Gaudi 3"),
        ("Habana Gaudi3 HL-325", "Gaudi 3"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA DGX B300", "B300"),
        ("NVIDIA B300-SXM-270GB", "B300"),
        ("AMD Instinct MI355X 288GB HBM3e", "MI355X"),
        ("NVIDIA GB300 NVL72", "GB300"),
    ],
)
def test_devices_as_files_spell_them(text: str, name: str) -> None:
    found = hardware_aliases.device(text)
    assert found is not None and found.name == name


def test_a_strange_device_is_none() -> None:
    assert [hardware_aliases.device(text) for text in ("CPU-only", "Abacus-9", "", "SXM", "80GB")] == [None] * 5


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("1x ConnectX-5 IB EDR 100Gb/Sec", 12.5e9),
        ("Management: 1x Ethernet 40Gb/Sec, Compute: 8x ConnectX-6 IB HDR 200Gb/Sec", 200e9),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/Sec, Compute: 8x ConnectX-7 IB NDR 400Gb/Sec", 400e9),
        ("2x Mellanox ConnectX-6, 100Gb/s Ethernet", 12.5e9),
        ("25Gbps", 3.125e9),
        ("4x 400Gb/s RoCE", 200e9),
        ("NVLink (a mesh), InfiniBand 100 Gb/s (1 x EDR)", 12.5e9),
        ("4 x 100 Gb/s RoCE a node", 50e9),
        ("InfiniBand，200Gb/s", 25e9),
        ("4x GH200 96GB a node, HPE Slingshot-11", 200e9),  # a port for each of 8 devices
        ("8 A100 a node, NVLink, 4 Omni-Path links a node", 50e9),
        ("NVLink 900 GB/s, 400 Gb/s per GPU", 400e9),
        ("504 GB/s", 504e9),  # no port has such a speed: bytes
        ("1 x ConnectX-6 100 GB/s Ethernet", 12.5e9),  # a port of 100 Gb/s, carelessly written
    ],
)
def test_networks_as_files_describe_them(text: str, bytes_per_s: float) -> None:
    found = hardware_aliases.network(text, 8)
    assert found is not None and found.bandwidth.value == pytest.approx(bytes_per_s)


def test_no_network_in_the_text() -> None:
    assert [hardware_aliases.network(text) for text in ("", "N/A", "to be said", "Mellanox ConnectX-6")] == [None] * 4


def test_reasons_are_few_whatever_the_row() -> None:
    made = [outcome(name, **dict.fromkeys(USUAL[name], "")) for name in NAMES]
    assert all(isinstance(one, Skip) for one in made)
