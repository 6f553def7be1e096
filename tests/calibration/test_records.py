"""Measured steps from files: what a run or a table of jobs teaches a prediction, and every mistake in one line."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import samples
from paceline import hardware
from paceline.calibration.imports.job_table import add_row
from paceline.calibration.records import observations, recorded_choices
from paceline.errors import UserError
from paceline.prediction import fit, predict
from paceline.rundir import RunDir
from paceline.strategy import DenseRule, Strategy
from paceline.workload import Workload

HEAD = "workload,device,devices_per_node,nodes,network,global_batch,precision,step_s,sync_s\n"


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "jobs.csv"
    path.write_text(head + "".join(f"{row}\n" for row in rows))
    return path


def step(nodes: int, batch: int) -> tuple[object, ...]:
    cluster = hardware.cluster("V100", 8, nodes, "10Gb/s")
    return Workload.named("resnet-50"), cluster, Strategy.of(world_size=8 * nodes, global_batch_size=batch, precision="fp16")


def test_a_table_of_slow_jobs_makes_the_prediction_slower_and_narrower(tmp_path):
    plain = predict(*step(2, 1024))
    rows = [f"resnet-50,V100,8,2,10Gb/s,{b},fp16,{1.5 * predict(*step(2, b)).step_time_s}," for b in (512, 1024, 2048)]
    seen = observations([table(tmp_path, *rows)])
    learnt = fit(seen).step(*step(2, 1024))
    assert len(seen) == 3
    assert 1.3 < learnt.step_time_s / plain.step_time_s < 1.6
    assert learnt.high_s / learnt.low_s < plain.high_s / plain.low_s
    beyond = fit(seen).step(*step(8, 4096))
    assert any("beyond what was observed" in sentence for sentence in beyond.assumptions)
    assert beyond.high_s / beyond.low_s > learnt.high_s / learnt.low_s


def test_choices_and_lengths_of_a_row_are_its_strategys(tmp_path):
    head = "workload,device,global_batch,step_s,seq_len,sharding,grad_accum,recompute,devices_per_node,optimizer\n"
    seen = observations([table(tmp_path, "gpt2,A100,64,0.5,512,zero3,2,yes,8,adam", head=head)])[0]
    assert seen.workload.sample == Workload.named("gpt2", 512).sample and seen.sync_s is None
    s = seen.strategy
    mesh = s.parallelism
    assert (mesh.sharding.name, mesh.micro_batches, mesh.recompute.name) == ("zero3", 2, "full")
    assert (s.micro_batch_size, s.optimizer) == (4, "adam")


def test_a_run_teaches_what_it_ran_on(tmp_path):
    _, cluster, strategy = step(1, 256)
    record = replace(
        samples.record("dense"), workload="resnet-50", strategy=strategy.to_json(), cluster=asdict(cluster), exposed_comm_s=0.0
    )
    RunDir(tmp_path).add_record("dense", record)
    seen = observations([tmp_path])
    assert seen[0].cluster == cluster and seen[0].strategy == strategy and seen[0].step_s == record.step_time_s


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("resnet-5,V100,8,1,,256,fp16,0.3,", "row 1 (line 2): unknown workload 'resnet-5'"),
        ("resnet-50,V99,8,1,,256,fp16,0.3,", "row 1 (line 2): unknown device 'V99'"),
        ("resnet-50,V100,8,2,,256,fp16,0.3,", "row 1 (line 2): 2 nodes have no network"),
        ("resnet-50,V100,8,1,,257,fp16,0.3,", "row 1 (line 2): global batch 257 does not divide"),
        ("resnet-50,V100,8,1,,256,fp16,fast,", "row 1 (line 2), column step_s: 'fast' is not a number"),
        ("resnet-50,V100,8,1,,256,fp16,0,", "row 1 (line 2), column step_s: '0' is not a number above 0"),
        ("resnet-50,V100,8,1,,256,fp16,0.3,0.4", "0.4 s of waiting in a step of 0.3 s"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, words):
    with pytest.raises(UserError) as error:
        observations([table(tmp_path, row)])
    assert words in str(error.value)


def test_a_table_without_a_column_and_a_run_without_a_machine_are_said(tmp_path):
    with pytest.raises(UserError, match="lacks the column step_s"):
        observations([table(tmp_path, "resnet-50,V100,8", head="workload,device,global_batch\n")])
    RunDir(tmp_path / "run").add_record("dense", samples.record("dense"))
    with pytest.raises(UserError, match="do not name their devices"):
        observations([tmp_path / "run"])
    with pytest.raises(UserError, match="no run directory"):
        observations([tmp_path / "none"])
    (tmp_path / "train.log").write_text("iteration 1\n")
    for name in ("train.log", "none.log"):
        with pytest.raises(UserError, match=f"no table of jobs; .*paceline records import .*{name}"):
            observations([tmp_path / name])


def test_a_divided_job_is_read_as_divided_and_no_column_is_lost(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    head = "workload,device,devices_per_node,global_batch,precision,sharding,tensor,sequence,pipeline,grad_accum,step_s,#note\n"
    table.write_text(head + "llama-3-8b,H100,8,8,bf16,zero1,4,yes,2,4,1.9,first try\n", encoding="utf-8")
    (seen,) = observations([table])
    mesh = seen.strategy.parallelism
    assert (mesh.tensor, mesh.sequence, mesh.pipeline, mesh.data, mesh.micro_batches) == (4, True, 2, 1, 4)
    table.write_text(head.replace("#note", "tensors") + "llama-3-8b,H100,8,8,bf16,zero1,4,yes,2,4,1.9,3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"unknown column of jobs.csv 'tensors'; nearest: tensor, .*write #NAME for a remark"):
        observations([table])
    table.write_text(head + "llama-3-8b,H100,8,8,bf16,zero1,4,maybe,2,4,1.9,\n", encoding="utf-8")
    with pytest.raises(UserError, match="column sequence: 'maybe' is not yes or no"):
        observations([table])


@pytest.mark.parametrize(
    ("choices", "cells"),
    [
        (
            {"compression": "topk", "options": {"density": 0.001, "warmup_steps": 7}},
            {"options": "density=0.001,warmup_steps=7"},
        ),
        ({"compression": "inceptionn", "options": {"bound": 2**-7}}, {"options": "bound=0.0078125"}),
        ({"compression": "terngrad", "clip": None}, {"clip": "none"}),
        (
            {"compression": "terngrad", "clip": 3, "dense_rule": DenseRule(min_elements=5, names=("*.a", "b"))},
            {"clip": "3.0", "dense_rule": "min-elements=5,last-layer=yes,dense=*.a,dense=b"},
        ),
        ({"compression": "terngrad"}, {}),
        ({"compression": "int8", "residual_bits": 32}, {}),
    ],
)
def test_choices_of_several_parts_are_written_and_read(tmp_path: Path, choices: dict[str, Any], cells: dict[str, str]) -> None:
    strategy = Strategy.of(world_size=8, global_batch_size=64, **choices)
    row = recorded_choices(strategy)
    assert {name: row[name] for name in ("options", "clip", "dense_rule") if name in row} == cells
    job = {"workload": "lenet5", "device": "A100", "devices_per_node": "8", "global_batch": "64", "step_s": "0.1"}
    add_row(tmp_path / "jobs.csv", {**job, **row})
    assert observations([tmp_path / "jobs.csv"])[0].strategy == strategy


def test_parts_that_a_cell_does_not_state_are_those_of_its_compression(tmp_path: Path) -> None:
    head = "workload,device,global_batch,step_s,compression,dense_rule,options\n"
    (seen,) = observations([table(tmp_path, "lenet5,A100,64,0.1,int8,min-elements=5,", head=head)])
    assert seen.strategy.gradient_exchange.dense_rule == DenseRule(min_elements=5, last_layer=False)
    with pytest.raises(UserError, match=r"jobs.csv, row 1 \(line 2\), column options: option '0.01' is not NAME=NUMBER"):
        observations([table(tmp_path, "lenet5,A100,64,0.1,topk,,0.01", head=head)])
