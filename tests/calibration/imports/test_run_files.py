"""Real forms of files of runs: the kind that is recognized, the steps taken and the facts stated."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.calibration.imports.run_files import read_run
from paceline.calibration.imports.text_formats import FORMATS
from paceline.errors import UserError

FILES = Path(__file__).parent / "files"
TENSORBOARD = "events.out.tfevents.1712345678.node.1.0"
RUNS: dict[str, tuple[str, float, int, dict[str, Any]]] = {
    "all_results.json": ("Hugging Face results", 1 / 0.33, 6751, {"global_batch": 16}),
    "axolotl.log": ("Hugging Face Trainer console", 1 / 1.638, 260, {"global_batch": 16, "framework": "axolotl"}),
    "composer.log": (
        "Composer log",
        1 / 0.4016,
        2,
        {"global_batch": 512, "world_size": 16, "peak_memory_bytes": 64.29e9},
    ),
    "deepspeed.log": ("DeepSpeed log", 2.0, 3, {"global_batch": 64, "world_size": 8, "peak_memory_bytes": 15.59 * 2**30}),
    "deepspeed_pipeline.log": ("DeepSpeed log", 2.67, 3, {"global_batch": 256, "framework": "deepspeed"}),
    TENSORBOARD: ("TensorBoard event file", 1.55, 3, {}),
    "hf_trainer.log": ("Hugging Face Trainer console", 4.2, 5, {"global_batch": 16}),
    "imagenet.log": ("PyTorch ImageNet log", 0.312, 3, {}),
    "lightning_rich.log": ("Lightning progress bar", 0.5, 2, {"framework": "lightning"}),
    "lightning_tqdm.log": ("Lightning progress bar", 0.5, 2, {}),
    "llmc.log": (
        "llm.c log",
        0.30137,
        3,
        {
            "global_batch": 512,
            "seq_len": 1024,
            "world_size": 8,
            "device": "NVIDIA A100-SXM4-80GB",
            "tokens_per_s": 524288 / 0.30137,
        },
    ),
    "maxtext.log": ("MaxText log", 3.443, 3, {"global_batch": 48, "seq_len": 2048, "world_size": 4}),
    "maxtext_metrics.jsonl": ("MaxText metrics", 3.443, 3, {}),
    "megatron.log": (
        "Megatron-LM log",
        5.9127,
        3,
        {"global_batch": 128, "seq_len": 4096, "world_size": 16, "peak_memory_bytes": 41234.5 * 2**20},
    ),
    "nanochat.log": ("nanochat log", 0.5122, 3, {"tokens_per_step": 524288}),
    "nanogpt.log": ("nanoGPT log", 0.58699, 3, {"tokens_per_step": 491520}),
    "nemo.log": ("NeMo log", 12.85, 3, {"global_batch": 512}),
    "olmo.log": (
        "OLMo log",
        1 / 2.5345,
        2,
        {"tokens_per_step": 2097152, "world_size": 128, "peak_memory_bytes": 27915e6},
    ),
    "olmo_core.log": ("OLMo log", 1 / 0.15635, 2, {"tokens_per_step": 4194304, "world_size": 64}),
    "tensorboard.csv": ("CSV export", 3.105, 2, {}),
    "timm.log": ("timm log", 0.323, 3, {"global_batch": 1024}),
    "torchtitan.log": (
        "torchtitan log",
        8192 / 5771,
        3,
        {"global_batch": 8, "seq_len": 8192, "world_size": 8, "device": "NVIDIA H100 80GB HBM3", "tokens_per_s": 8 * 5771},
    ),
    "torchvision.log": ("torchvision log", 0.314, 3, {"peak_memory_bytes": 7213 * 2**20}),
    "trainer_log.jsonl": ("LLaMA-Factory trainer_log.jsonl", 3.1, 3, {"tokens_per_step": 4096, "framework": "llama-factory"}),
    "trainer_state.json": ("Hugging Face trainer_state.json", 3.0, 300, {"global_batch": 16, "tokens_per_step": 32768}),
    "unsloth.log": (
        "Hugging Face Trainer console",
        7.2,
        3,
        {"global_batch": 8, "world_size": 1, "device": "Tesla T4", "framework": "unsloth"},
    ),
    "wandb_hf.csv": ("CSV export", 3.1, 3, {}),
    "yolo.log": ("progress bar (tqdm)", 20 / 130, 2, {"framework": ""}),
    "wandb_full.csv": ("CSV export", 3.105, 2, {}),
    "wandb_history.jsonl": ("history in JSON", 3.105, 2, {}),
}
"""Kind, seconds of a step, number of steps, and facts by file. The numbers are those typed into the files."""
RATES: dict[str, tuple[float, str]] = {
    "lightning_metrics.csv": (32 / 508 + 32 / 511, "is a rate, and the size of a step is not known; give --global-batch"),
    "torchtune.txt": (64 * 1024 / 8 / 2049.3, "torchtune log. says tokens a second of a device"),
    "wandb_throughput.csv": (64 * 1024 / 8 / 3759.15, "give --global-batch, --seq-len and --cluster"),
}
"""Files with rates alone: seconds of a step of 64 sequences of 1,024 tokens on 8 devices, and the error without sizes."""
DEVICES = ("nvidia_smi.txt", "nvidia_smi_dmon.txt", "nvidia_smi_long.txt", "nvidia_smi_query.csv")


def test_each_file_is_covered() -> None:
    assert {path.name for path in FILES.iterdir()} == {*RUNS, *RATES, *DEVICES}
    kinds = {kind for kind, *_ in RUNS.values()}
    assert {form.name for form in FORMATS} - kinds == {"torchtune log"}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_read(name: str) -> None:
    kind, seconds, count, facts = RUNS[name]
    run = read_run(FILES / name)
    assert run.kind == kind
    assert run.step_s == pytest.approx(seconds, rel=1e-3)
    assert (run.steady.mean_of or len(run.steady.step_s)) == count
    assert {key: getattr(run, key) for key in facts} == {
        key: pytest.approx(value, rel=1e-3) if isinstance(value, float) else value for key, value in facts.items()
    }
    assert run.took().startswith(kind) and "\n" not in run.took()


@pytest.mark.parametrize("name", RATES)
def test_a_rate_needs_the_size_of_a_step(name: str) -> None:
    seconds, said = RATES[name]
    rate = read_run(FILES / name)
    assert rate.steps is None and rate.step_s is None and len(rate.rates) == 1 and "per s" in rate.took()
    with pytest.raises(UserError, match=said):
        _ = rate.measured_steps
    run = read_run(FILES / name, global_batch=64, seq_len=1024, world_size=8)
    assert run.step_s == pytest.approx(seconds, rel=2e-3)


@pytest.mark.parametrize("name", ["torchtitan.log", "trainer_state.json", "wandb_full.csv", "trainer_log.jsonl", "nanogpt.log"])
def test_a_packed_file_is_read_alike(name: str, tmp_path: Path) -> None:
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress((FILES / name).read_bytes()))
    assert read_run(packed).step_s == read_run(FILES / name).step_s


def test_the_output_folder_of_a_trainer_is_read(tmp_path: Path) -> None:
    for step in ("checkpoint-9", "checkpoint-10"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "trainer_state.json").write_text('{"log_history": [{"step": 9}], "global_step": 9}')
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has times at the end of the run alone: give the console's output"):
        read_run(tmp_path)
    shutil.copy(FILES / "trainer_state.json", tmp_path / "checkpoint-10")
    assert read_run(tmp_path).kind == RUNS["trainer_state.json"][0]
    shutil.copy(FILES / "trainer_log.jsonl", tmp_path)
    assert read_run(tmp_path).kind == RUNS["trainer_log.jsonl"][0]


def test_a_length_makes_the_batch_known() -> None:
    assert read_run(FILES / "nanogpt.log", seq_len=1024).global_batch == 480
    assert read_run(FILES / "maxtext_metrics.jsonl", seq_len=2048, world_size=4).global_batch == 48


def test_the_name_does_not_decide(tmp_path: Path) -> None:
    for name in ("megatron.log", "trainer_log.jsonl", TENSORBOARD):
        shutil.copy(FILES / name, tmp_path / "slurm-1.out")
        assert read_run(tmp_path / "slurm-1.out").kind == RUNS[name][0]


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("megatron.log", {"global_batch": 256}, r"states global_batch 128 \(.*\), and 256 was given; leave it out"),
        ("torchtitan.log", {"seq_len": 4096}, r"states seq_len 8192 \(line 4: .*\), and 4096 was given"),
        ("llmc.log", {"world_size": 4}, r"states world_size 8 \(line 2: "),
        (
            "nanogpt.log",
            {"global_batch": 8, "seq_len": 1024},
            r"states tokens a step 491,520 .* and 8 x 1024 = 8,192 was given",
        ),
        (
            "maxtext_metrics.jsonl",
            {"global_batch": 128, "seq_len": 4096, "world_size": 16},
            r"states tokens a step of a device 24,576 \(device tokens .* seconds of a step\), and 32,768 was given",
        ),
    ],
)
def test_a_contradiction_names_both(name: str, sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_run(FILES / name, **sizes)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.log", " \n", "a.log is empty"),
        ("a.csv", "", "a.csv is empty"),
        ("a.log", "nothing of interest\n", "no line of a step; give a log of Megatron-LM, DeepSpeed, torchtitan"),
        ("a.json", '{"a": 1, "b": 2}', "JSON of no known kind, with the keys a, b"),
        ("a.json", '{"log_history": [', "no complete JSON"),
        ("ds.json", '{"zero_optimization": {"stage": 3}}', "is a DeepSpeed configuration; it states settings"),
        ("job.sh", "#!/bin/bash\n#SBATCH --nodes=4\n", "is a Slurm script"),
        ("sacct.txt", "JobID|JobName\n1|a\n", "is a table of Slurm's jobs; paceline schedule compare reads it"),
        ("a.toml", "[training]\nseq_len = 8192\n", "is a torchtitan configuration"),
    ],
)
def test_another_file_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        read_run(tmp_path / name)
