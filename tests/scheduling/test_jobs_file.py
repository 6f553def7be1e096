"""Files of jobs to run for real."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.jobs_file import read_jobs
from paceline.scheduling.launch import Launch

FILE = """
[[job]]
name = "elastic"
command = "paceline train --model lenet5 --data 'mnist:my data'"
arrival = "2min"
min_devices = 1
max_devices = 4
environment = { OMP_NUM_THREADS = "1" }

[[job]]
name = "rigid"
command = ["./train.sh", "--save here"]
devices = 2
signal = "SIGUSR1"
grace = "0"
checkpoint = "saved"
directory = "code"
model = "resnet50"
batch = 256
samples = "1.2M"
weight = 2
deadline = "3h"
owner = "ann"
virtual_cluster = "vision"
device_types = ["a100", "their own"]
limit = "2h"
priority = -3
preemptible = false
min_run = "10min"
topology = "node"
queue = "gpu"
qos = "high"
"""


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "jobs.toml").write_text(text)
    return tmp_path / "jobs.toml"


def test_jobs_and_when_they_arrive(tmp_path: Path) -> None:
    (elastic, late), (rigid, now) = read_jobs(written(tmp_path, FILE))
    assert (elastic.command[-1], late, elastic.sizes) == ("mnist:my data", 120.0, (1, 2, 4))
    assert (elastic.checkpoint, elastic.directory, elastic.grace_s) == (str(tmp_path / "elastic"), str(tmp_path), 30.0)
    assert (rigid.command, now, rigid.sizes) == (("./train.sh", "--save here"), 0.0, (2,))
    assert (rigid.signal, rigid.grace_s, rigid.directory) == ("USR1", 0.0, str(tmp_path / "code"))
    assert rigid.checkpoint == str(tmp_path / "saved")
    assert (rigid.job.model, rigid.global_batch, rigid.job.samples, rigid.job.weight) == ("resnet50", 256, 1.2e6, 2.0)
    assert (rigid.job.deadline_s, rigid.job.owner, rigid.job.virtual_cluster) == (10800.0, "ann", "vision")
    assert rigid.job.device_types == ("A100 SXM 80GB", "their own")
    conditions = (rigid.job.limit_s, rigid.job.priority, rigid.job.preemptible, rigid.job.min_run_s, rigid.job.topology)
    assert (rigid.job.queue, rigid.job.qos) == ("gpu", "high")
    assert conditions == (7200.0, -3, False, 600.0, "node") and Launch.from_json(rigid.to_json()) == rigid
    assert (elastic.job.deadline_s, elastic.job.weight, elastic.global_batch, elastic.job.device_types) == (
        math.inf,
        1.0,
        64,
        (),
    )
    assert elastic.samples_left({}) == 10 * 937 * 64, "ten epochs of MNIST, whose last part of a batch is dropped"
    assert rigid.samples_left({"step": 100.0}) == 1.2e6 - 25600


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a list of jobs"),
        ("job = 3", "is not a list of jobs"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\npreemptible = 'no'", "preemptible is 'no'"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\npriority = 1.5", "priority is 1.5"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nshare = 0.5", "states a share of 0.5"),
        ("nodes = 3\n[[job]]\nname = 'a'\ncommand = 'b'", "it also has nodes"),
        ("[[job]\n", "is not TOML"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\ndevice = 2", "did you mean devices"),
        ("[[job]]\nname = 'a'", "job a has no command"),
        ('[[job]]\nname = "a"\ncommand = "\'unclosed"', r"job 1 \(a\): command .*unclosed.*: No closing quotation"),
        ("[[job]]\nname = 3\ncommand = 'b'", "job 1: its name and command are not text"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\n[[job]]\nname = 'a'\ncommand = 'c'", "two jobs are named a"),
        (
            "[[job]]\nname = 'a'\ncommand = 'b'\ndevices = 2\nmax_devices = 3",
            r"job 1 \(a\) states devices and also min_devices or max_devices",
        ),
        ("[[job]]\nname = 'a'\ncommand = 'b'\ndevices = '2'", "min_devices is '2'"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\ndevices = 0", "0 to 0 devices"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\narrival = 5", "arrival is 5; give text"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\ngrace = 'soon'", r"job 1 \(a\): grace: 'soon'"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nweight = 'much'", "weight is 'much'; give a number"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nweight = 0", "weight 0.*; give a number above 0"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\ndeadline = '0s'", "deadline is not after its arrival"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nsamples = 'some'", "samples: 'some' is not a count"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nsamples = -3", "samples -3"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\ndevice_types = 'T4'", "device_types is 'T4'; give a list"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nmodel = 'resnet50'", "a model and no batch"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nsamples = 1\nduration = '2h'", "states samples and a duration"),
        ("[[job]]\nname = 'a'\ncommand = 'paceline train --model lenet5'\nbatch = 8", "states batch, which its command says"),
        ("[[job]]\nname = 'a'\ncommand = 'b'\nenvironment = { A = 1 }", "its environment is not a table of text"),
    ],
    ids=str,
)
def test_what_is_no_job_is_named(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        read_jobs(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none.toml"):
        read_jobs(tmp_path / "none.toml")
