"""What may be seen is seen and not scored; what may not be seen changes nothing; a bad file is one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from measured_rows import columns, write
from paceline import hardware
from paceline.cli import main
from paceline.csv_rows import read
from paceline.validation import Info, validate
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import adapter, case_builders
from paceline.validation.validate import _visible
from paceline.workload import Workload

KEYS = ["points", "coverage", "mape", "median", "p90", "worst", "interval_share", "baselines", "groups", "skipped"]
MORE = ["baseline_points", "mape_on_baseline_rows"]
FILES = {
    "mlperf": "mlperf_training",
    "pollux_sia": "pollux_sia_dataparallel",
    "neusight": "neusight_model_latency",
    "llmfoundry": "llmfoundry_mpt_fsdp",
    "tf_benchmarks": "tf_benchmarks_2017_k80_p100",
    "vtrain": "vtrain_megatron_a100",
    "nvidia_dle": "nvidia_dle",
    "lambda": "lambda_single_node",
    "megatron_bridge": "megatron_bridge_h100",
    "dgxc": "nvidia_dgxc_h100_bf16",
    "megatron_bridge GB200": "megatron_bridge_gb200",
    "mlperf v4": "mlperf_training_v4",
    **{
        f"published {file}": file
        for file in (
            "simumax_b200",
            "sailor",
            "internevo_a100",
            "xtuner_qwen3_235b_h800",
            "nemo_automodel_h100",
            "bigscience_jean_zay",
            "dlperf_v100",
            "nemo_megatron_launcher_a100",
            "flagperf_nvidia",
            "qwen_finetune_a100",
            "litgpt_a100_lora",
            "ms_swift_a100_lora",
            "maxtext_tpu_gpu",
            "aws_neuron_trn1",
            "gaudi_optimum_habana_ci",
        )
    },
}
"""Files by set; what follows the first word says which rows of the set."""

PUBLISHED = [
    ("mlperf", "up_to=16", 0.18, 4),
    pytest.param("mlperf", "one_node", 0.149, 1, marks=pytest.mark.full),
    ("mlperf", "none", 0.152, 3),
    ("neusight", "none", 0.089, 1),
    pytest.param("pollux_sia", "up_to=8", 0.077, 7, marks=pytest.mark.full),  # as long as all others
    ("llmfoundry", "none", 0.093, 4),
    ("llmfoundry", "one_device", 0.054, 5),
    ("lambda", "none", 0.149, 4),
    ("tf_benchmarks", "none", 0.339, 3),
    pytest.param("tf_benchmarks", "one_device", 0.114, 1, marks=pytest.mark.full),
    ("nvidia_dle", "none", 0.248, 9),
    ("vtrain", "none", 0.296, 96),
    pytest.param("vtrain", "up_to=2", 0.086, 12, marks=pytest.mark.full),
    ("megatron_bridge", "none", 0.109, 7),
    ("dgxc", "none", 0.1, 18),
    ("mlperf v4", "none", 0.108, 8),
    ("published internevo_a100", "none", 0.049, 6),
    ("published dlperf_v100", "none", 0.213, 17),
]
"""Set, what is seen, the MAPE of docs/validation.md, and which of the rows are taken."""


def scales(name: str = "lambda") -> list[dict[str, str]]:
    """One model on 1 to 8 devices."""
    return [
        {"num_gpus": str(n), "system": f"{n}x RTX 4090", "batch_per_gpu_listed": str(256 * n), "throughput": str(1000 * n)}
        for n in (1, 2, 4, 8)
    ]


@pytest.mark.parametrize(
    ("info", "points", "seen"), [("none", 4, 0), ("one_device", 3, 1), ("one_node", 0, 4), ("up_to=2", 2, 2)]
)
def test_rows_seen_are_not_scored(info: str, points: int, seen: int, tmp_path: Path) -> None:
    done = validate("lambda", write(tmp_path / "a.csv", "lambda", scales()), Info.parse(info))
    assert (done.total["points"], done.seen) == (points, seen) and done.total["coverage"] == 1


def test_what_is_not_seen_changes_no_prediction(tmp_path: Path) -> None:
    """Predicted seconds follow from error and measurement: a change of hidden rows moves only their own."""
    rows = scales()
    first = validate("lambda", write(tmp_path / "a.csv", "lambda", rows), Info.parse("up_to=2"))
    rows[3]["throughput"] = "1"
    second = validate("lambda", write(tmp_path / "b.csv", "lambda", rows), Info.parse("up_to=2"))
    four = [next(g for g in d.groups if g["by"] == "scale" and g["name"] == "4") for d in (first, second)]
    assert four[0] == four[1]


def test_reasons_are_counted(tmp_path: Path) -> None:
    rows = [{}, {"accelerator": "Abacus-9"}, {"accelerator": "Abacus-9"}, {"throughput_source": "run_average"}]
    done = validate("mlperf", write(tmp_path / "a.csv", "mlperf", rows))
    assert list(done.skipped.values()) == [2, 1] and done.total["coverage"] == pytest.approx(1 / 3)


def test_the_command_prints_the_keys_and_a_narrow_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "a.csv", "mlperf", [{}, {"accelerator": "Abacus-9"}]))
    assert main(["validate", "mlperf", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data)[: len(KEYS)] == KEYS and data["points"] == 1 and set(MORE) <= set(data)
    assert {"by", "name", *KEYS[:8]} <= set(data["groups"][0])
    assert main(["validate", "mlperf", path, "--info", "one_node", "--why"]) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80 and "device not in the catalogue" in out and "2 rows" in err


def bad(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "bad.csv is empty"),
        ("\n", "bad.csv is empty"),
        ("a,b\n1,2\n", "bad.csv lacks the columns system, "),
        (",".join(columns("lambda")) + "\n", "bad.csv has a header and no rows"),
        (",".join(columns("lambda")) + "\n1,2\n", "bad.csv, row 1 (line 2): 2 values for 7 columns"),
        (",".join(columns("lambda")) + ",unit\n" + "1," * 7 + "1\n", "bad.csv has the column unit twice"),
        (",".join(columns("mlperf")) + "\n" + "x," * 15 + "x\n", "lacks the columns system"),
    ],
)
def test_a_bad_file_is_one_line(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "lambda", bad(tmp_path, text)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lamda", "x.csv"], "nearest: lambda"),
        (["lambda", "nowhere.csv"], "cannot read nowhere.csv"),
        (["lambda", "."], "cannot read ."),
        (["lambda", "x.csv", "--info", "up_to=x"], "up_to=8"),
        (["lambda", "x.csv", "--info", "one_nod"], "did you mean one_node?"),
        (["lambda", "x.csv", "--hold-out", "devices"], "did you mean device?"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err


def test_a_row_that_cannot_be_read_is_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", "lambda", [{}, {"throughput": "many"}, {"num_gpus": "2.5"}])
    assert main(["validate", "lambda", str(path), "--why"]) == 0
    out, err = capsys.readouterr()
    assert "a.csv, row 2 (line 3), column throughput: 'many' is not a number from 0 up and 1 more" in err
    assert "no number in column throughput" in out and "3 rows, 1 can be modelled" in err


def test_peak_memory_is_scored_where_a_file_gives_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"model": "Llama 3.2 1B", "num_gpus": "8", "parallelism": "FSDP", "local_batch": "2", "seq_len": "2048"}
    path = write(tmp_path / "a.csv", "torchtitan", [small, {**small, "peak_mem_gib": ""}])
    done = validate("torchtitan", path)
    (first, second) = done.points
    assert first.estimate.memory_bytes > 2**30 and second.memory_error is None
    assert done.total["memory_mape"] == abs(first.estimate.memory_bytes / 2**36 - 1) and done.total["memory_points"] == 1
    assert main(["validate", "torchtitan", str(path)]) == 0
    assert "Peak memory of a device: off by" in capsys.readouterr().out


def test_a_row_that_no_cluster_has_does_not_end_the_run(tmp_path: Path) -> None:
    many = {"num_nodes": "1", "accel_per_node": "90", "num_accel": "90", "global_batch": "9000", "accelerator": "A40"}
    done = validate("mlperf", write(tmp_path / "a.csv", "mlperf", [{}, many]))
    assert done.total["points"] == 1 and list(done.skipped) == ["90 devices in a node: PCIe 4.0 x16 joins at most 16"]


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00a,b\n")
    assert main(["validate", "lambda", str(tmp_path / "a.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def shared(name: str, file: str = "") -> Path:
    folder = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2].parent / "shared")) / "data" / "measured"
    path = folder / f"{file or FILES[name]}.csv"
    if not path.exists():
        pytest.skip("needs the published measurements: PACELINE_SHARED names the folder with data/measured")
    return path


MANY = {
    **dict.fromkeys((name for name in FILES if name.startswith("published")), 20),
    **{"vtrain": 15, "pollux_sia": 15, "megatron_bridge": 12, "dgxc": 12, "llmfoundry": 9, "megatron_bridge GB200": 15},
}
"""Rows of one kind in a file: the everyday test reads one of them."""
ROWS = [(name, file, MANY.get(name, 1)) for name, file in (*FILES.items(), ("mlperf", "mlperf_training_v2_v3"))]
ALL_ROWS = [pytest.param(name, FILES[name], 1, marks=pytest.mark.full) for name in MANY]


@pytest.mark.parametrize(("name", "file", "every"), [*ROWS, *ALL_ROWS])
def test_every_row_of_the_measured_files_is_read(name: str, file: str, every: int) -> None:
    """A case or a reason, and never an error."""
    reader = adapter(name.split()[0])
    rows = reader.joined(read(shared(name, file), (*reader.texts, *reader.numbers)))
    outcomes = [reader.read(row) for row in rows[::every]]
    assert any(isinstance(row, Case) for row in outcomes) and all(isinstance(row, Case | Skip) for row in outcomes)
    reasons = {row.reason for row in outcomes if isinstance(row, Skip)}
    assert len(reasons) < 12 and all(reasons)


@pytest.mark.parametrize(("name", "info", "published", "every"), PUBLISHED)
def test_the_error_is_what_the_docs_say(name: str, info: str, published: float, every: int, tmp_path: Path) -> None:
    """A quarter more than the published MAPE at most, on every so many rows of a file."""
    head, *rows = shared(name).read_text(encoding="utf-8").splitlines(keepends=True)
    thin = tmp_path / "thin.csv"
    thin.write_text("".join([head, *rows[::every]]), encoding="utf-8")
    assert validate(name.split()[0], thin, Info.parse(info)).total["mape"] < 1.25 * published


def test_of_another_release_a_row_teaches_nothing_where_the_same_has_any() -> None:
    def case(release: str, model: str = "resnet") -> Case:
        keys = Keys(model, "V100", 8, 1, "someone", release)
        setting = case_builders.setting(hardware.cluster("V100", 8, 1), 32, "fp16", "momentum")
        return Case(keys=keys, workload=Workload.named("resnet-50"), setting=setting, software="tuned", step_s=0.1)

    old, new, other = case("v1"), case("v2"), case("v2", "ssd")
    shown = _visible([old, new, other], Info.parse("one_node"))
    assert list(shown(case("v2"))) == [new] and list(shown(case("v1"))) == [old]
    assert list(shown(case("v3"))) == [old, new, other]
    assert list(_visible([old, new, other], Info.parse("one_device"))(case("v3"))) == [old, new]
