"""A bad gradient in one unit of a sharded model: the whole step is dense or skipped on every rank, and leaves no trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distributed import launch_once
from paceline.strategy import ring_bytes
from paceline.training.attach.shards.step_verdict import StepVerdict, Verdict
from paceline.training.exchanges.wires.collectives import WireError
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from sharded_nonfinite import BAD, FIRST, LAST, PLAIN, behaviours, cases, counts

EVERYDAY: dict[int, list[tuple[str, str]]] = {
    2: [(case, run) for case in cases(2) for run in (LAST, "without")]
    + [*((case, FIRST) for case in ("sign", "momentum", "int8", "accumulated")), ("sign", "infinite"), ("shared", "")],
    3: [*(("sign, ring", run) for run in (LAST, "without", FIRST)), ("sign", LAST), ("shared", "")],
    4: [],
}
"""Runs of each number of ranks that happen every day: each case, and odd shards."""


def pairs(run: str, *without: str, workers: tuple[int, ...] = (2, 3, 4)) -> list[Any]:
    """Return each number of ranks with each of its cases."""
    return [
        pytest.param(number, case, marks=[] if (case, run) in EVERYDAY[number] else [pytest.mark.full])
        for number in workers
        for case in cases(number)
        if case not in without
    ]


def ranks(workers: int, case: str, run: str) -> list[Any]:
    """Return the outcome of a run on each rank. Runs of every day share a launch, and the others."""
    everyday = EVERYDAY[workers]
    rest = [(name, one) for name in cases(workers) for one in (LAST, FIRST, "without") if (name, one) not in everyday]
    others = [*rest, ("sign", "infinite"), ("shared", "replicas" if workers == 4 else "")]
    runs = everyday if (case, run) in everyday else others if workers < 4 else [*rest, others[-1]]
    return [results[runs.index((case, run))] for results in launch_once(behaviours, workers, runs=tuple(runs))]


@pytest.mark.parametrize(("workers", "case"), pairs(LAST))
def test_a_bad_gradient_behind_compressed_units_skips_the_step_on_every_rank(workers: int, case: str) -> None:
    for rows in ranks(workers, case, LAST):
        bad = rows[BAD]
        assert all(bool(values.isnan().all()) for values in bad["gradients"].values())
        assert bad["same residuals"] and bad["same weights"] and [row["counted"] for row in rows] == [0, 1, 1]
        assert [row["steps"] for row in rows] == [1, 2, 3]
        assert not rows[BAD + 1]["same weights"]
        assert case == "int8" or not rows[BAD + 1]["same residuals"]


@pytest.mark.parametrize(("workers", "case"), pairs("without", "int8"))
def test_a_step_that_was_skipped_leaves_no_trace(workers: int, case: str) -> None:
    """Of codecs that draw nothing at random: the steps behind it are those of a run that never saw it."""
    both = ranks(workers, case, LAST), ranks(workers, case, "without")
    for rows, without in zip(*both, strict=True):
        for found, wanted in zip([row for row in rows if row["step"] != BAD], without, strict=True):
            for what in ("gradients", "weights"):
                assert all(torch.equal(found[what][name], wanted[what][name]) for name in wanted[what])
            assert all(torch.equal(a, b) for a, b in zip(found["kept"], wanted["kept"], strict=True))
            assert max(float(values.abs().max()) for values in wanted["kept"]) > 0


@pytest.mark.parametrize(("workers", "case"), pairs(FIRST))
def test_a_bad_gradient_in_the_first_unit_makes_the_step_dense(workers: int, case: str) -> None:
    """Where all ranks see it. In HSDP only the owners of its shard do, and with tensor parallelism those of its part; the
    others have sent theirs compressed, so the step is skipped."""
    rows = [rank[BAD] for rank in ranks(workers, case, FIRST)]
    skipped = case in ("replicas", "tensor parallel")
    for row in rows:
        assert row["same residuals"] and row["same weights"] and row["counted"] == 1
        bad = {name: int(values.isnan().sum()) for name, values in row["gradients"].items()}
        if skipped:
            assert bad == {name: values.numel() for name, values in row["gradients"].items()}
        else:
            assert bad == {name: int(name == f"{FIRST}.weight") for name in bad}


@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3])
def test_an_infinity_counts_as_well(workers: int) -> None:
    for rows in ranks(workers, "sign", "infinite"):
        assert rows[BAD]["same residuals"] and rows[BAD]["same weights"] and rows[BAD]["counted"] == 1


@pytest.mark.parametrize("workers", [2, 3])
def test_where_the_last_units_exchange_tells_all_nothing_else_is_sent(workers: int) -> None:
    assert {row["noted"] for rows in ranks(workers, "sign", LAST) for row in rows} == {0}


@pytest.mark.everyday("2", "3")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_unit_that_is_reduced_twice_in_a_step_loses_nothing(workers: int) -> None:
    """Delivered and owed are all that there was (Karimireddy et al. 2019, section 4), also of HSDP."""
    for found in ranks(workers, "shared", "replicas" if workers == 4 else ""):
        assert found["owed"].keys() >= {"again.weight", "into.weight"}
        for name, wanted in found["wanted"].items():
            kept = found["owed"].get(name, torch.zeros(()))
            torch.testing.assert_close(found["delivered"][name] + kept, wanted, rtol=1e-4, atol=1e-5)


MESHES = ("replicas", "tensor parallel")


@pytest.mark.everyday("2-meshes0-names0", "4-meshes1-names1")
@pytest.mark.parametrize(
    ("workers", "meshes", "names"),
    [(2, ("",), (*PLAIN,)), (4, MESHES, ("dense",)), (3, ("",), (*PLAIN,)), (4, ("", *MESHES), (*PLAIN,))],
)
def test_of_a_compression_that_has_nan_every_rank_counts_the_step_though_one_sees_it(
    workers: int, meshes: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Two fp32 numbers are sent, over a ring of all ranks; over the shards of a replica; over two dimensions in turn."""
    for found in launch_once(counts, workers, meshes=meshes, names=names):
        assert len(found) >= len(meshes)
        for name, (counted, sent) in found.items():
            rings = {"replicas": [2], "tensor parallel": [2, 2]}.get(name.partition(":")[0], [workers])
            assert counted == [1, 1] and sent == sum(ring_bytes(8, ranks) for ranks in rings), name


def conclude(seen: list[list[tuple[bool, bool, bool]]], lossy: bool = True) -> list[Verdict]:
    """Each rank sees its own units: (bad, encodes, all ranks agreed)."""

    def rank(wire: Any) -> Verdict:
        verdict = StepVerdict([wire], lossy)
        for bad, encodes, agreed in seen[wire.rank]:
            verdict.seen(bad, encodes, wire if agreed else None)
        first = verdict.conclude()
        assert not verdict.nonfinite and verdict.conclude()() == Verdict(False, False)
        return first()

    return LocalGroup(len(seen)).run(rank)


def test_ranks_that_saw_different_things_say_the_same() -> None:
    good, bad = (False, True, False), (True, False, False)
    assert conclude([[good, bad], [good, good], [good, good]]) == [Verdict(True, True)] * 3
    assert conclude([[bad, bad], [bad, bad]]) == [Verdict(True, False)] * 2
    assert conclude([[bad, good], [good, good]]) == [Verdict(True, True)] * 2  # the other has sent its units
    assert conclude([[good], [good]]) == [Verdict(False, False)] * 2


def test_a_compression_that_has_nan_skips_nothing_and_all_count() -> None:
    assert conclude([[(True, False, False)], [(False, False, False)]], lossy=False) == [Verdict(True, False)] * 2


@pytest.mark.parametrize("bad", [False, True])
def test_of_a_rank_that_is_lost_the_own_view_is_left(bad: bool) -> None:
    """The next exchange names it."""

    def lost() -> torch.Tensor:
        raise WireError("gone")

    wire: Any = SimpleNamespace(note=lambda numbers: lost, device=torch.device("cpu"))
    verdict = StepVerdict([wire], lossy=False)
    verdict.seen(bad, False, None)
    assert verdict.conclude()() == Verdict(bad, False)
    with pytest.raises(WireError):
        StepVerdict([wire], lossy=True).conclude()
