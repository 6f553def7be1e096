"""Files of ``--from`` as words of a command: what wins, what is composed, and what is still asked for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from command import answer, run
from paceline.cli.arguments.file_words import split_files
from paceline.cli.arguments.own_words import Words, in_own_words
from paceline.cli.command_line import build_parser
from paceline.errors import UserError

DEEPSPEED = {
    "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
}
JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node={}8
srun torchrun --nnodes 2 --nproc_per_node 8 t.py --model_name_or_path gpt2 --per_device_train_batch_size 4 \\
  --gradient_accumulation_steps 2 --gradient_checkpointing --num_train_epochs 3
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "job.sbatch").write_text(JOB.format(""))
    (tmp_path / "h100.sbatch").write_text(JOB.format("h100:"))
    monkeypatch.chdir(tmp_path)


def read(command: str, text: str) -> Words:
    """The words of a command for these arguments."""
    parser = build_parser(command).commands()[command]
    legal = (*parser.options(), *parser.operands())
    return in_own_words(parser.prog, shlex.split(text), legal, parser.valued_options())


STEP = "gpt2 --micro-batch-size 4 --grad-accum 2 --recompute full --framework hf-trainer"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("command", "typed", "words"),
    [
        ("predict", "--from h100.sbatch", f"{STEP} --cluster '2x8 H100 SXM'"),
        ("predict", "--from job.sbatch --cluster H100", f"{STEP} --cluster '2x8 H100'"),
        ("predict", "--from job.sbatch --cluster '4 A100'", f"{STEP} --cluster '4 A100'"),
        ("predict", "--from job.sbatch --device A100", f"{STEP} --device A100 --nodes 2 --devices-per-node 8"),
        ("predict", "--from job.sbatch llama-3-8b --device A100 --nodes 1 --bs 2 --recompute none", None),
        ("ask", "--from job.sbatch --on 'H100, 400Gb/s'", f"{STEP} --on '2x8 H100, 400Gb/s'"),
        (
            "plan",
            "--from job.sbatch --cluster H100 --samples 1000",
            "gpt2 --framework hf-trainer --cluster '2x8 H100' --samples 1000 --global-batch 128 --why-not "
            "accumulation=2,recompute=full",
        ),
    ],
)
def test_words(command: str, typed: str, words: str | None) -> None:
    words = words or (
        "llama-3-8b --device A100 --nodes 1 --recompute none --micro-batch-size 2 --grad-accum 2 --framework hf-trainer "
        "--devices-per-node 8"
    )
    own = shlex.join(read(command, typed).arguments)
    assert sorted(own.split(" --")) == sorted(words.split(" --"))


@pytest.mark.usefixtures("files")
def test_what_is_said() -> None:
    found = read("predict", "--from job.sbatch ds.json --cluster 'H100, 400Gb/s RoCE' --sharding zero2")
    assert found.notes[0].startswith("Read as: paceline predict gpt2 --sharding zero2 --cluster '2x8 H100, 400Gb/s RoCE'")
    assert "--sharding zero2 is taken, not ds.json: zero_optimization.stage = 3." in found.notes
    assert "Not understood: ds.json: zero_optimization.zero_hpz_partition_size = 8." in found.notes
    assert any(note.startswith("Assumed: --framework deepspeed") for note in found.notes)
    assert any("gradient_clipping" in detail for detail in found.details)
    Path("cpu.json").write_text('{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}')
    parser = build_parser("ask").commands()["ask"]
    legal = {*parser.options(), *parser.operands()} - {"--offload"}
    typed = ["gpt2", "--from", "cpu.json", "--on", "8 H100"]
    asked = in_own_words(parser.prog, typed, legal, parser.valued_options())
    assert "paceline ask chooses itself, in spite of the files: --offload optimizer." in asked.notes


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("predict --from", "--from names no file"),
        (
            "predict --from ds.json",
            "ds.json names no network; add it: paceline predict llama-3-8b --from ... --cluster '8 H100'",
        ),
        ("predict gpt2 --from ds.json", "ds.json names no machines; add them: --cluster '8 H100'"),
        ("predict --from job.sbatch", "job.sbatch says 2 x 8 devices, but not which; add them: --cluster '2x8 H100'"),
        ("predict --from nothing.json gpt2", "cannot read nothing.json"),
        ("plan --from ds.json", "ds.json names no network"),
    ],
)
def test_what_is_still_asked_for(typed: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, typed)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


@pytest.mark.usefixtures("files")
def test_what_other_options_answer() -> None:
    assert "--cluster" not in read("predict", "gpt2 --from ds.json --records run").arguments
    assert read("ask", "gpt2 --from ds.json").arguments[0] == "gpt2"
    of_epochs = read("ask", "--from job.sbatch --on H100 --data 1000")
    assert shlex.join(of_epochs.arguments).count("--epochs 3") == 1
    assert any("samples of an epoch are unknown" in note for note in read("ask", "--from job.sbatch --on H100").notes)


@pytest.mark.usefixtures("files")
def test_a_file_and_its_options_have_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    of_file = answer(capsys, "predict --from ds.json gpt2 --cluster 8xH100 --micro-batch-size 2")
    of_options = answer(
        capsys, "predict gpt2 --cluster 8xH100 --global-batch 16 --sharding zero3 --precision bf16 --framework deepspeed"
    )
    assert of_file["step_time_s"] == of_options["step_time_s"] and of_file["read_as"]["notes"]
    assert "read_as" not in of_options


def test_paths_end_where_operands_begin(tmp_path: Path) -> None:
    assert split_files(["--from", "a.json", "b.yaml", "gpt2", "--brief"]) == (["gpt2", "--brief"], ["a.json", "b.yaml"])
    assert split_files(["x", "--deepspeed", "ds.json", "--deepspeed"]) == (["x", "--deepspeed"], ["ds.json"])
    assert split_files(["x", "--from=a", "--", "--from", "b"]) == (["x", "--", "--from", "b"], ["a"])
    with pytest.raises(UserError, match="names no file"):
        split_files(["--from", "--brief"])


@pytest.mark.usefixtures("files")
def test_logs_among_the_files_go_to_the_option_for_logs(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("step 10 loss 2.3 | 0.52 s/it\nstep 20 loss 2.2 | 0.51 s/it\n")
    words = read("diagnose", "--from h100.sbatch run.log").arguments
    assert words[words.index("--log") + 1] == "run.log"
    with pytest.raises(UserError, match="diagnose --log"):
        read("predict", "--from h100.sbatch run.log")


@pytest.mark.usefixtures("files")
def test_the_file_of_emit_is_no_network() -> None:
    parser = build_parser("plan").commands()["plan"]
    typed = ["--from", "h100.sbatch", "--on", "2x8 H100, IB", "--emit", "sbatch", "out.sh"]
    legal, listing = (*parser.options(), *parser.operands()), parser.listing_options()
    words = in_own_words(parser.prog, typed, legal, parser.valued_options(), listing).arguments
    assert words[0] == "gpt2" and "out.sh" in words


@pytest.mark.usefixtures("files")
def test_machines_without_a_device_say_how_to_keep_them() -> None:
    assert "--on '2x8 DEVICE'" in " ".join(read("ask", "--from job.sbatch").notes)


@pytest.mark.usefixtures("files")
def test_a_script_that_limits_nccl_is_evidence(tmp_path: Path) -> None:
    for line, seen in (("export NCCL_IB_DISABLE=1", True), ("# export NCCL_IB_DISABLE=1", False)):
        (tmp_path / "slow.sbatch").write_text(JOB.format("h100:").replace("srun", f"{line}\nsrun"))
        assert ("--log" in read("diagnose", "--from slow.sbatch --measured '2 s'").arguments) == seen
