"""``plan``, ``whatif`` and ``explain`` on the command line: one object, a range, the assumptions; a mistake is one line."""

from __future__ import annotations

import pytest

from command import answer, run
from paceline.exit_codes import ExitCode
from planning_commands import JOB, PLAN, SMALL


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{PLAN} --goal soonest", "legal: fastest, cheapest, deadline=6h, budget=500"),
        (f"{PLAN} --goal deadline=2h", "goal deadline=2 h needs an amount of training"),
        (f"{PLAN} --goal deadline=1s --samples 1e9", "the nearest takes"),
        (f"{PLAN} --goal budget=1 --samples 1e9", "the nearest takes $"),
        (f"plan vgg-16 {SMALL} --goal budget=5", "goal budget=$5.00 needs an amount of training"),
        (f"plan lenet5 {SMALL} --target mlperf", "unknown MLPerf convergence curve 'lenet5'"),
        (f"{PLAN} --target soon", "give mlperf, a CSV file of global_batch"),
        (f"{PLAN} --target none.csv", "cannot read none.csv"),
        (f"plan lenet5 {SMALL} --global-batch 64 --epochs 3", "or --samples instead of --epochs"),
        (f"{PLAN} --epochs 3 --samples 5", "give one of them"),
        (f"{PLAN} --samples -5", "give a positive number"),
        (f"{PLAN} --compression terngrat", "did you mean terngrad"),
        (f"{PLAN} --why-not colour=red", "unknown choice 'colour'"),
        (f"{PLAN} --price cheap", "is not a price"),
        (f"{PLAN} --penalty terngrad=none", "is not a factor"),
        (f"{PLAN} --max-loss -1", "give points of accuracy from 0 up"),
        (f"{PLAN} --global-batch 0", "whole number"),
        ("plan resnet-50 --device A100 --max-nodes 2 --global-batch 64", "2 nodes have no network"),
        ("plan resnet-50 --device A100 --max-nodes 0 --global-batch 64", "--max-nodes 0"),
        (
            "plan resnet-50 --device A100 --devices-per-node 8 --devices-per-node 4 --max-nodes 1 --global-batch 64",
            "once for each",
        ),
        ("plan resnet-50 --device A100 --max-nodes 1 --global-batch 7 --devices-per-node 0", "devices_per_node is 0"),
        (
            "plan gpt2 --device T4 --nodes 1 --global-batch 4096 --grad-accum 8 --sharding ddp --precision fp32",
            "GiB are missing",
        ),
        (f"whatif {JOB} --change notes+1", "nearest: nodes"),
        (f"whatif {JOB} --change network=0Gb/s", "positive bandwidth"),
        (f"whatif {JOB} --global-batch 1020 --change nodes+1", "does not divide among 16 workers"),
        (f"whatif {JOB} --change nodes+2 --scaling linear", "unknown scaling 'linear'"),
        (
            "predict resnet-50 --device T4 --devices-per-node 3 --nodes 1000000000 --network 1Gb/s --global-batch 3000000000",
            "at most 1,048,576",
        ),
        ("predict resnet-50 --device T4 --devices-per-node 17 --global-batch 17", "PCIe 3.0 x16 joins at most 16"),
        (
            "predict resnet-50 --device T4 --nodes 5000 --network 1Gb/s --global-batch 5000 --exchange ring",
            "give at most 4,096 workers",
        ),
        ("predict resnet-50 --device T4 --devices-per-node 4 --global-batch 8 --exchange hierarchical", "needs several nodes"),
        ("plan resnet-50 --device T4 --network 1Gb/s --max-nodes 1000000000", "at most 1,048,576"),
        (f"{PLAN} --optimizer adan", "did you mean adam"),
        (f"predict {JOB} --optimizer adan", "did you mean adam"),
        (f"{PLAN} --software best", "unknown framework 'best'"),
        (f"explain {JOB} --software best", "unknown framework 'best'"),
        (f"whatif {JOB} --change nodes=1000000000", "at most 1,048,576"),
        (f"explain {JOB} --run nowhere", "no run directory"),
        (f"explain {JOB} --trace /proc/no/trace.json", "cannot write"),
    ],
)
def test_a_mistake_is_one_line(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command)
    unmet = any(words in err for words in ("the nearest takes", "fits on no device"))
    assert code == (ExitCode.NO if unmet else ExitCode.MISTAKE) and out == "", err
    assert err.count("\n") == 1 and err.startswith("paceline: "), err
    assert said in err


@pytest.mark.long
def test_what_does_not_fit_is_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("predict", "explain"):
        code, out, _ = run(capsys, f"{command} mpt-70b --device T4 --global-batch 1")
        assert code == ExitCode.NO and out.startswith("DOES NOT FIT: 1,31") and out.splitlines()[0].endswith("on each device.")
        data = answer(capsys, f"{command} mpt-70b --device T4 --global-batch 1")
        assert not data["fits"] and data["missing_bytes"] > 2**39 and data["memory"]["context"] > 2**28


def test_a_network_that_nothing_uses_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "predict lenet5 --device V100 --network 10Gb/s --global-batch 8")
    assert any(a.endswith("is not used: there is one node.") for a in data["assumptions"])


def test_the_error_on_held_out_runs_stands_beside_each_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (f"predict {JOB}", f"explain {JOB}", f"whatif {JOB} --change nodes+1", f"{PLAN} --compression dense"):
        data = answer(capsys, command)
        said = data["assumptions"] if "assumptions" in data else data["base"]["assumptions"]
        assert any(a.startswith("On held-out published runs of this kind (ordinary") for a in said), command
    nodes = answer(capsys, f"predict {JOB}")["held_out_error"]
    alone = answer(capsys, "predict resnet-50 --device V100 --global-batch 64 --software tuned")["held_out_error"]
    assert 0 < nodes < 1 and 0 < alone < 1 and nodes != alone
