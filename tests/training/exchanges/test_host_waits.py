"""On a GPU neither calls of the engine nor waits of the host grow with the ranks, and all ranks get the host's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.codecs import PayloadError
from paceline.strategy import GradientExchange
from paceline.strategy.exchanges.exchange import Exchange
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from queued_kernels import play

CHUNK = 1 << 13
TENSORS = {"first": 3 * CHUNK, "second": 2 * CHUNK + 77, "third": 1500, "bias": 130}
DENSE = ("bias",)
STEPS = 2

CASES = {
    "int8:sharded": (3, 2),
    "int8:ring": (None, 2),
    "terngrad:sharded": (3, 2),
    "topk:allgather": (3, 2),
    "sign:parameter_server": (3, 2),
    "inceptionn-scaled:sharded": (6, 14),
}
"""Most calls and waits of a group for each way: of six chunks, and one of a dense tensor. A ring has two calls for each further
rank. INCEPTIONN's lengths depend on the values: the host reads them once for the messages of a chunk."""


def step_of(way: str, wire: LocalWire, halves: bool = False, steps: int = STEPS) -> tuple[int, dict[str, torch.Tensor]]:
    """Exchange ``steps`` groups. Returns the calls of the last, the means and the residuals."""
    compression, exchange = way.split(":")
    setup = make_setup(GradientExchange(compression, exchange), wire, Sample())
    assert setup is not None
    offsets = np.cumsum([0, *TENSORS.values()])
    specs = [TensorSpec(name, (n,), int(at)) for (name, n), at in zip(TENSORS.items(), offsets, strict=False)]
    layout = Layout(specs, DENSE, setup.codec.alignment)
    for step in range(steps):
        rng = np.random.default_rng([wire.rank, step])
        kind = torch.float16 if halves else torch.float32
        parts = {n: torch.from_numpy(rng.standard_normal(c).astype(np.float32)).to(kind) for n, c in TENSORS.items()}
        workspace = torch.empty(room(setup, layout))
        before = wire.calls
        assert not exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=workspace, seed=3, step=step))
    residuals = dict(setup.feedback.residual._by_name) if setup.feedback else {}
    return wire.calls - before, parts | {f"residual of {name}": values for name, values in residuals.items()}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "chunk_elements", CHUNK)


@pytest.mark.everyday("int8:sharded", others="long")
@pytest.mark.parametrize("way", CASES)
def test_calls_and_waits_do_not_grow_with_ranks(way, small_chunks, monkeypatch):
    on_host = LocalGroup(3).run(lambda wire: step_of(way, wire))
    waits = play(monkeypatch)
    calls, asked = {}, {}
    for n in (2, 3, 4, 8):
        waits.clear()
        ranks = LocalGroup(n).run(lambda wire: step_of(way, wire))
        calls[n], asked[n] = ranks[0][0], waits.total() / n / STEPS
        for (_, results), (_, wanted) in zip(ranks if n == 3 else [], on_host, strict=n == 3):
            for name, values in results.items():
                assert np.array_equal(values.numpy(), wanted[name].numpy()), f"{name}: the host has other bits"
    most_calls, most_waits = CASES[way]
    assert all(count <= (most_calls or 1 + 2 * (n - 1)) for n, count in calls.items()), calls
    assert all(count <= most_waits for count in asked.values()), asked
    assert calls[4] < on_host[0][0] * (3 if way == "int8:ring" else 1), "chunks share calls"


@pytest.mark.long
def test_fp16_gradients_are_asked_once_more(small_chunks, monkeypatch):
    waits = play(monkeypatch)
    LocalGroup(4).run(lambda wire: step_of("int8:sharded", wire, halves=True))
    assert waits.total() / 4 / STEPS <= 3


@pytest.mark.everyday("int8:ring", others="long")
@pytest.mark.parametrize("way", ["int8:sharded", "int8:ring", "int8:allgather"])
def test_a_damaged_message_is_told_by_every_rank_that_uses_it(way, small_chunks, monkeypatch):
    """It is found only after sums that lack it were sent: every rank refuses these by their checksum."""
    play(monkeypatch)
    send = LocalWire.shift if way == "int8:ring" else LocalWire.all_to_all
    hurt = []

    def damaged(wire: LocalWire, outgoing: Any, *rest: Any) -> Any:
        if wire.rank == 1 and not hurt:
            message = outgoing if torch.is_tensor(outgoing) else outgoing[2]
            message[40] ^= 1
            hurt.append(message)
        return send(wire, outgoing, *rest)

    monkeypatch.setattr(LocalWire, send.__name__, damaged)

    def told(wire: LocalWire) -> str:
        try:
            step_of(way, wire, steps=1)
        except PayloadError as error:
            return str(error)
        return ""

    errors = LocalGroup(3).run(told)
    assert "a message of rank 1: " in errors[2]
    assert all(errors) if way != "int8:allgather" else errors == ["", "", errors[2]], errors
