"""``predict --asynchronous`` and ``--servers``: one object, a range, what is unknown; a mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import answer, run

JOB = "predict lenet5 --device V100 --nodes 4 --network 10Gb/s --global-batch 256"


def test_asynchronous(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = answer(capsys, f"{JOB} --asynchronous --servers 2")
    assert data["low_samples_per_s"] < data["samples_per_s"] < data["high_samples_per_s"]
    assert data["servers"] == 2 and data["staleness_effect"] is None and data["limit"] and data["assumptions"]
    assert (data["strategy"]["exchange"], data["strategy"]["servers"]) == ("parameter_server", 2)
    beside = answer(capsys, JOB)
    assert data["synchronous"]["strategy"] == beside["strategy"]
    assert data["synchronous"]["samples_per_s"] == beside["samples_per_s"]
    code, text, err = run(capsys, f"{JOB} --asynchronous --servers 2 --report {tmp_path}")
    assert (code, err) == (0, "") and max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 80
    for word in ("throughput", "80 % range", "limited by", "staleness", "median", "unknown", "synchronous", "add --why"):
        assert word in text
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 2 and "Share of the updates" in page and "unknown" in page


def test_servers_among_the_workers_are_set_beside_those_apart(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"{JOB} --asynchronous --exchange parameter_server --servers 2")
    beside = answer(capsys, f"{JOB} --exchange parameter_server --servers 2")
    assert data["synchronous"]["step_time_s"] == beside["step_time_s"] and beside["strategy"]["servers"] == 2
    assert any("2 of the workers" in said for said in beside["assumptions"])


def test_a_network_of_ones_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    data = answer(capsys, f"{JOB.replace('lenet5', 'my_network:network')} --asynchronous")
    assert data["workload"] == "my_network:network" and data["samples_per_s"] > 0


def test_more_servers_in_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    small = "plan resnet-50 --device V100 --network 10Gb/s --max-nodes 4 --global-batch 256 --sharding ddp --precision fp32"
    only = f"{small} --exchange parameter_server --compression dense"
    one, two = (answer(capsys, f"{only} {given}")["best"] for given in ("", "--servers 1 --servers 2 --servers 4"))
    assert two["strategy"]["servers"] in (2, 4) and two["time_s"] < one["time_s"]
    said = answer(capsys, f"{small} --why-not exchange=parameter_server,servers=2")["why_not"]
    assert "over parameter_server of 2: " in said and "slower" in said
    few = answer(capsys, f"{only} --servers 3")
    assert any("3 servers need as many workers" in x["reason"] for x in few["excluded"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{JOB} --asynchronous --servers 0", "0 servers; give a whole number from 1 up"),
        (f"{JOB} --asynchronous --servers 9", "give at most 4: a part stays whole"),
        (f"{JOB} --asynchronous --compression terngrad", "with compression terngrad cannot be predicted"),
        (f"{JOB} --asynchronous --sharding zero1", "with sharding zero1 cannot be predicted"),
        (f"{JOB} --asynchronous --exchange ring", "with exchange ring cannot be predicted"),
        (f"{JOB} --asynchronous --grad-accum 2", "with 2 micro steps cannot be predicted"),
        (f"{JOB} --asynchronous --tensor 2", "with a network that several devices hold together cannot be predicted"),
        (f"{JOB} --asynchronous --expert 2", "with a network that several devices hold together cannot be predicted"),
        (f"{JOB} --asynchronous --devices-per-node 2", "2 asynchronous workers on one network link"),
        (f"{JOB} --asynchronous --server-device V1000", "unknown device 'V1000'"),
        (f"{JOB} --server-device V100", "leave --server-device out"),
        ("predict lenet5 --device V100 --global-batch 256 --asynchronous", "no network to their servers"),
        (f"{JOB} --servers 2", "exchange 'allreduce' has no 2 servers; name exchange parameter_server"),
        (f"{JOB} --servers 5 --exchange parameter_server", "5 servers among 4 workers"),
        ("plan lenet5 --device V100 --max-nodes 1 --global-batch 8 --servers 0", "0 servers"),
        (f"{JOB.replace('predict', 'explain')} --asynchronous", "unknown option '--asynchronous'"),
        ("train --model lenet5 --data digits --servers 2", "unknown option '--servers'"),
    ],
)
def test_a_mistake_is_one_line(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command)
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err
