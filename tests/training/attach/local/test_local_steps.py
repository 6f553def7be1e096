"""Local steps on several processes: the weights of a simulation, every codec's sums, uneven data, NaN, a lost rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import local_oracle as oracle
import paceline
from distributed import launch_and_let_fail, launch_once
from paceline.strategy import GradientExchange, LocalSteps, busiest_sent
from paceline.strategy.strategy import Strategy
from paceline.training.attach.local.local_steps import LocalSync

STEPS = 13
CASES: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 4},
    "ring": {"sync_every": 5, "exchange": "ring"},
    "plain mean": {"sync_every": 3, "outer_lr": 1.0, "outer_momentum": 0.0, "inner": "sgd"},
    "fragments": {"sync_every": 6, "fragments": 3},
    "beside": {"sync_every": 4, "sync_delay": 3},
    "streaming": {"sync_every": 6, "fragments": 2, "sync_delay": 2, "mixing": 0.25},
}
PARTS = {1: [[0, 1, 2, 3, 4]], 2: [[0, 1], [2, 3, 4]], 3: [[0, 1], [2, 3], [4]]}


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def begin(rank: int, inner: str = "adamw", exchange: str = "", compression: str = "dense", **local: Any) -> Any:
    model = oracle.network(rank)  # rank 0's weights reach all
    sync = paceline.attach_local(model, GradientExchange(compression, exchange), **local)
    return model, oracle.optimizer(inner, model), sync


def train_every_case(rank: int, workers: int) -> dict[str, torch.Tensor]:
    found = {}
    for name, case in CASES.items():
        model, optimizer, sync = begin(rank, **case)
        for x in oracle.samples(rank, STEPS):
            oracle.local_step(model, optimizer, x)
            sync.step()
        found[name] = flat(model)
    return found


@pytest.mark.everyday("diloco-2", "ring-2", "plain mean-2", "fragments-2", "beside-2", "streaming-2")
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_a_simulation(workers: int, name: str) -> None:
    found = launch_once(train_every_case, workers)
    case = CASES[name]
    every, fragments, delay = case["sync_every"], case.get("fragments", 1), case.get("sync_delay", 0)
    expected = oracle.simulated(
        workers,
        STEPS,
        every=every,
        inner=case.get("inner", "adamw"),
        lr=case.get("outer_lr", 0.7),
        momentum=case.get("outer_momentum", 0.9),
        parts=PARTS[fragments],
        at=[(f + 1) * every // fragments % every for f in range(fragments)],
        delay=delay,
        share=case.get("mixing", 0.5 if delay else 0.0),
    )
    for rank in range(workers):
        weights = np.concatenate([w.reshape(-1) for w in expected[rank]])
        np.testing.assert_allclose(found[rank][name].numpy(), weights, rtol=1e-4, atol=2e-6)


def every_step(rank: int, workers: int) -> list[torch.Tensor]:
    """Local SGD with an exchange in each step, and synchronous SGD on the same samples."""
    model, optimizer, sync = begin(rank, "sgd", sync_every=1, outer_lr=1.0, outer_momentum=0.0)
    plain = oracle.network()
    other = oracle.optimizer("sgd", plain)
    for x in oracle.samples(rank, STEPS):
        oracle.local_step(model, optimizer, x)
        sync.step()
        other.zero_grad()
        (plain(x) - x[:, :3]).square().mean().backward()
        for p in plain.parameters():
            dist.all_reduce(p.grad)
            p.grad /= workers
        other.step()
    return [flat(model), flat(plain)]


def test_an_exchange_in_every_step_with_a_plain_mean_is_synchronous_sgd() -> None:
    for local, synchronous in launch_once(every_step, 3):
        torch.testing.assert_close(local, synchronous, rtol=1e-5, atol=1e-6)


COMPRESSED = [
    ("bf16", ""),
    ("terngrad", ""),
    ("terngrad", "hierarchical"),
    ("int8", "ring"),
    ("int4", "allgather"),
    ("sign", ""),
    ("topk", ""),
    ("topk", "sharded"),
    ("inceptionn-scaled", ""),
]


def conserve(rank: int, workers: int) -> list[Any]:
    """Per compression: what was delivered, what is still owed, and the pseudo-gradients, all summed; bytes; weights."""
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    found = []
    for compression, exchange in COMPRESSED:
        model, optimizer, sync = begin(rank, "sgd", exchange, compression, sync_every=3, fragments=2)
        taken, delivered = torch.zeros(flat(model).numel()), torch.zeros(flat(model).numel())
        sent = []
        record(sync, taken, delivered)
        for x in oracle.samples(rank, 9):
            oracle.local_step(model, optimizer, x)
            if sync.step():
                sent.append(sync.meter.sent_bytes)
        owed = torch.zeros_like(taken)
        if sync.feedback is not None:
            for t in sync.tensors:
                if t.name in sync.feedback.state()["residual"]:
                    owed[t.offset :][: t.elements] = sync.feedback.state()["residual"][t.name]
        dist.all_reduce(taken)
        dist.all_reduce(owed)
        with sync.shared_weights():
            found.append([taken, owed, delivered * workers, sent, flat(model)])
    return found


def record(sync: LocalSync, taken: torch.Tensor, delivered: torch.Tensor) -> None:
    """Add up what every fragment gives to the exchange, and what the outer step gets."""
    for fragment in sync.fragments:
        first = fragment.tensors[0].offset

        def difference(into: torch.Tensor, whole: Any = fragment.difference, first: int = first) -> torch.Tensor:
            out: torch.Tensor = whole(into)
            taken[first : first + out.numel()] += out
            return out

        def move(mean: torch.Tensor, whole: Callable[..., None] = fragment.move, first: int = first) -> None:
            delivered[first : first + mean.numel()] += mean
            whole(mean)

        fragment.difference, fragment.move = difference, move  # type: ignore[method-assign]


@pytest.mark.parametrize(("index", "name"), list(enumerate(COMPRESSED)))
def test_delivered_and_owed_are_the_pseudo_gradients(index: int, name: tuple[str, str]) -> None:
    ranks = [found[index] for found in launch_once(conserve, 3)]
    taken, owed, delivered = ranks[0][:3]
    assert all(torch.equal(ranks[0][4], other[4]) for other in ranks[1:]), "shared weights differ"
    remembers = name[0] in ("sign", "topk", "inceptionn-scaled")
    assert bool(owed.any()) is remembers
    if remembers:
        torch.testing.assert_close(delivered + owed, taken, rtol=1e-4, atol=1e-5)
    else:
        assert 0 < (delivered - taken).norm() < 3 * taken.norm()


@pytest.mark.parametrize(("index", "name"), list(enumerate(COMPRESSED)))
def test_bytes_are_those_that_the_strategy_describes(index: int, name: tuple[str, str]) -> None:
    ranks = [found[index] for found in launch_once(conserve, 3)]
    compression, exchange = name
    if compression == "inceptionn-scaled":  # its lengths depend on the values
        return
    strategy = Strategy.of(
        world_size=3, global_batch_size=21, compression=compression, exchange=exchange, sync_every=3, fragments=2
    )
    specs = _specs()
    phases = [phases for _, phases in strategy.exchange_phases(specs, specs)]
    turn = [0, 1] * 3
    for rank, found in enumerate(ranks):
        assert found[3] == [sum(phase.sent(rank) for phase in phases[f]) for f in turn]
    whole = busiest_sent([phase for of in phases for phase in of])
    assert strategy.wire_bytes_per_device(specs, specs) == -(-whole // 3)


def _specs() -> list[Any]:
    from paceline.training.exchanges.gradients.tensor_layout import numbered

    return list(numbered(oracle.network().named_parameters()).values())


def uneven(rank: int, workers: int, delay: int, fragments: int) -> list[Any]:
    """Rank r takes 5 + 4 r steps."""
    model, optimizer, sync = begin(rank, sync_every=4, sync_delay=delay, fragments=fragments)
    for x in oracle.samples(rank, 5 + 4 * rank):
        oracle.local_step(model, optimizer, x)
        sync.step()
    sync.finish()
    before = flat(model)
    sync.finish()  # nobody trains: nothing moves, the outer momentum either
    return [before, flat(model), sync.step_number]


@pytest.mark.everyday("4-1")
@pytest.mark.parametrize(("delay", "fragments"), [(0, 1), (0, 2), (2, 2), (4, 1)])
def test_ranks_with_unequal_numbers_of_steps_end_with_the_same_weights(delay: int, fragments: int) -> None:
    ranks = launch_once(uneven, 3, delay=delay, fragments=fragments)
    assert len({step for _, _, step in ranks}) == 1
    for before, after, _ in ranks:
        assert torch.equal(before, ranks[0][0]) and torch.equal(after, before)
    assert not torch.equal(ranks[0][0], flat(oracle.network()))


def several(rank: int, workers: int, names: list[str]) -> list[Any]:
    """Call functions of this file one after another in one group of processes, and return their results."""
    return [globals()[name](rank, workers) for name in names]


ON_TWO = (
    "buffers",
    "spoil_buffers",
    "owe_through_infinite_buffers",
    "warm_up",
    "sent_by_fragment",
    "return_and_end",
    "diverge",
)


def on_two(name: str) -> list[Any]:
    """Return what each of two ranks returns."""
    return [results[ON_TWO.index(name)] for results in launch_once(several, 2, names=ON_TWO)]


class Normed(nn.Module):
    """With BatchNorm, whose statistics no optimizer moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def buffers(rank: int, workers: int) -> list[torch.Tensor]:
    model = Normed()
    sync = paceline.attach_local(model, sync_every=2)
    for x in oracle.samples(rank, 2)[:2]:
        model(x)
        own = model.norm.running_mean.clone()
        sync.step()
    dist.all_reduce(own)
    return [own / workers, model.norm.running_mean.clone(), model.norm.num_batches_tracked.clone()]


def test_batch_norms_statistics_are_averaged() -> None:
    for mean, found, count in on_two("buffers"):
        torch.testing.assert_close(found, mean)
        assert mean.any() and count == 2


def spoil(rank: int, workers: int) -> list[Any]:
    """Rank 1 has an infinite weight in the second round, of three."""
    found = []
    for compression in ("dense", "terngrad", "sign"):
        model, optimizer, sync = begin(rank, compression=compression, sync_every=2, fragments=2)
        spoilt = []
        for number, x in enumerate(oracle.samples(rank, 6), start=1):
            oracle.local_step(model, optimizer, x)
            if number == 3:
                owed = sync.feedback.state()["residual"] if sync.feedback else {}
                with sync.shared_weights():
                    shared = flat(model)
                if rank == 1:
                    next(model.parameters()).data.view(-1)[7] = float("inf")
            sync.step()
            if number == 3:
                now = sync.feedback.state()["residual"] if sync.feedback else {}
                spoilt = [torch.equal(flat(model), shared), all(torch.equal(owed[n], now[n]) for n in owed), sync.returned]
        with sync.shared_weights():
            found.append([*spoilt, sync.returned, flat(model)])
    return found


def test_an_infinite_pseudo_gradient_returns_all_ranks_to_the_shared_weights() -> None:
    ranks = launch_once(spoil, 3)
    for rank in ranks:
        for case, first in zip(rank, ranks[0], strict=True):
            back, residual, returned, in_all, weights = case
            assert back and residual and returned == in_all == 1
            assert torch.isfinite(weights).all() and torch.equal(weights, first[4])


def spoil_buffers(rank: int, workers: int) -> list[bool]:
    """Rank 1 has infinite statistics of BatchNorm in the second round, and finite weights."""
    model = Normed()
    optimizer = oracle.optimizer("sgd", model)
    sync = paceline.attach_local(model, sync_every=2)
    for number, x in enumerate(oracle.samples(rank, 4), start=1):
        oracle.local_step(model, optimizer, x)
        if number == 4:
            with sync.shared_weights():
                shared, mean = flat(model), model.norm.running_mean.clone()
            if rank == 1:
                model.norm.running_mean[2] = float("inf")
        sync.step()
    return [sync.returned == 1, torch.equal(flat(model), shared), torch.equal(model.norm.running_mean, mean), bool(mean.any())]


def test_infinite_buffers_return_all_ranks_to_the_shared_weights_and_buffers() -> None:
    assert on_two("spoil_buffers") == [[True] * 4] * 2


def owe_through_infinite_buffers(rank: int, workers: int) -> list[bool]:
    """As ``spoil_buffers``, with a codec that owes something after the first exchange."""
    model = nn.Sequential(nn.BatchNorm1d(5), oracle.network())
    optimizer = oracle.optimizer("sgd", model)
    sync = paceline.attach_local(model, "topk", sync_every=2)
    for number, x in enumerate(oracle.samples(rank, 4), start=1):
        oracle.local_step(model, optimizer, x)
        if number == 4:
            owed = {name: values.clone() for name, values in sync.feedback.state()["residual"].items()}
            if rank == 1:
                model[0].running_mean[2] = float("inf")
        sync.step()
    after = sync.feedback.state()["residual"]
    return [
        sync.returned == 1,
        any(values.any() for values in owed.values()),
        all(map(torch.equal, owed.values(), after.values())),
    ]


def test_infinite_buffers_leave_what_is_owed_as_it_was() -> None:
    """All go back to before the exchange, so nothing of it may be owed, and nothing of what was owed be lost."""
    assert on_two("owe_through_infinite_buffers") == [[True] * 3] * 2


def warm_up(rank: int, workers: int) -> list[int]:
    """Bytes of each exchange."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 400), nn.Linear(400, 3))
    exchange = GradientExchange("topk", "allgather", options={"density": 0.01, "warmup_steps": 5})
    sync = paceline.attach_local(model, exchange, sync_every=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    sent = []
    for x in oracle.samples(rank, 8):
        oracle.local_step(model, optimizer, x)
        if sync.step():
            sent.append(sync.meter.sent_bytes)
    return sent


def test_a_warm_up_of_the_sparsity_counts_steps() -> None:
    """It ends at step 5: the exchanges behind steps 2 and 4 are in it, those behind 6 and 8 are not."""
    for first, second, third, last in on_two("warm_up"):
        assert first > second > third == last


def sent_by_fragment(rank: int, workers: int) -> list[list[int]]:
    """With an exchange that ends before the next begins, and as the next begins."""
    found = []
    for delay in (1, 2):
        model, optimizer, sync = begin(rank, "sgd", sync_every=4, fragments=2, sync_delay=delay)
        sent = []
        for x in oracle.samples(rank, 12):
            oracle.local_step(model, optimizer, x)
            if sync.step():
                time.sleep(0.05)  # the next one is over by now
                sent.append(sync.meter.sent_bytes)
        found.append(sent)
    return found


def test_the_meter_is_that_of_the_exchange_that_has_ended() -> None:
    for soon, late in on_two("sent_by_fragment"):
        assert len(set(soon)) == 2 and late == soon[: len(late)] and len(late) >= 4


def return_and_end(rank: int, workers: int) -> list[Any]:
    """Both fragments are exchanged once; the first is spoilt the second time, and the data ends there."""
    model, optimizer, sync = begin(rank, sync_every=2, fragments=2)
    for number, x in enumerate(oracle.samples(rank, 3), start=1):
        oracle.local_step(model, optimizer, x)
        if number == 3 and rank == 1:
            next(model.parameters()).data.view(-1)[7] = float("nan")
        sync.step()
    returned, idle = flat(model), [fragment.idle for fragment in sync.fragments]
    moving = all(bool(fragment.momentum.any()) for fragment in sync.fragments)
    sync.finish()
    return [sync.returned, idle, moving, torch.equal(flat(model), returned)]


def test_who_has_returned_to_the_shared_weights_has_nothing_to_exchange() -> None:
    """Else the outer momentum would move a fragment for steps that are gone."""
    for found in on_two("return_and_end"):
        assert found == [1, [True, True], True, True]


def diverge(rank: int, workers: int) -> list[str]:
    """The shared weights of rank 1 change behind the first exchange; every second exchange compares them."""
    model, optimizer, sync = begin(rank, "sgd", sync_every=1, check_every=2)
    said = []

    def note(call: Callable[[], Any]) -> None:
        try:
            call()
            said.append("")
        except paceline.ReplicasDiverged as error:
            said.append(str(error))

    for number, x in enumerate(oracle.samples(rank, 3)):
        oracle.local_step(model, optimizer, x)  # a worker's own weights may differ
        note(sync.step)
        if number == 0:
            note(sync.check_replicas)
            sync.fragments[0].anchor.data[3] += 1e-3 * rank
            note(sync.check_replicas)
    return said


def test_shared_weights_that_differ_are_noticed_on_every_rank() -> None:
    differ = "weights of rank 1 differ from those of rank 0"
    for said in on_two("diverge"):
        assert said == ["", "", differ, "", differ]


def lose(rank: int, workers: int) -> None:
    model, optimizer, sync = begin(rank, sync_every=2, timeout_s=60.0)
    for number, x in enumerate(oracle.samples(rank, 40)):
        if rank == 1 and number == 5:
            os._exit(7)
        oracle.local_step(model, optimizer, x)
        sync.step()
        time.sleep(0.01)


def test_a_lost_rank_has_a_name_on_the_others() -> None:
    ends = launch_and_let_fail(lose, 3)
    assert ends[1].code == 7
    for rank in (0, 2):
        assert ends[rank].code == 1 and "LostRank: rank 1 is lost" in ends[rank].said, ends[rank].said
        assert ends[rank].seconds < 30


def test_a_description_says_how_often() -> None:
    assert LocalSteps(sync_every=8, fragments=2, sync_delay=1).title == (
        "an exchange every 8 steps, 2 fragments in turn, overlapping 1 steps: an outer rate of 0.7, momentum 0.9"
    )
