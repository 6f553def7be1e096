"""Steps of hosts that share processors: closed forms, and the kept rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from lab_errors import errors, table  # noqa: E402
from rows import read  # noqa: E402
from shared_hosts import messages, shared_hosts  # noqa: E402

from paceline.workload import Workload  # noqa: E402


def test_processors_bound_a_step_that_no_link_bounds():
    known, net = replace(shared_hosts(), hop_s=0.0), Workload.named("alexnet")
    host = known.exchange_s(net, 8, "terngrad", 66e6)
    assert host == pytest.approx(
        net.num_parameters * known.element_s["terngrad"]
        + 66e6 * known.byte_s["terngrad"]
        + known.message_s * messages(net, 8, "terngrad")
    )
    slow, fast = (replace(known, processors=count).step("alexnet", 8, "10Gb/s", "terngrad", 0.16) for count in (1, 8))
    assert slow == pytest.approx(8 * host, rel=0.1) and fast < slow / 2


def test_each_chunk_is_a_push_and_a_pull_with_every_peer():
    table, chunk = Workload.named("lenet5"), 1 << 21
    assert table.num_parameters < chunk
    assert messages(table, 4, "terngrad") % (2 * 3) == 0
    assert messages(table, 8, "terngrad") / messages(table, 4, "terngrad") == pytest.approx(7 / 3)


def test_the_kept_rows_are_those_of_the_code():
    kept = read(BENCHMARKS / "results" / "lab_errors.csv")
    row = next(r for r in kept if (r["network"], r["hosts"], r["link"], r["method"]) == ("googlenet", 8, "10Gb/s", "terngrad"))
    measured = next(
        r
        for r in read(BENCHMARKS / "results" / "speedup_lab.csv")
        if (r["network"], r["hosts"], r["link"], r["compression"]) == ("googlenet", 8, "10Gb/s", "terngrad")
    )
    now = shared_hosts().step("googlenet", 8, "10Gb/s", "terngrad", measured["compute_s"])
    assert errors(measured, "terngrad", "", now)["now_s"] == pytest.approx(row["now_s"], rel=1e-3)
    assert "| WA, 4 hosts | 8 | 12.7 % |" in table(kept)
