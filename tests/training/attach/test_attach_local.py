"""``attach_local``: what it takes, what it refuses on every rank alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline
from distributed import launch_once
from paceline.errors import UserError
from paceline.strategy import LOCAL_RECIPES, GradientExchange
from paceline.training.attach.attach_local import _exchange


def model(**changes: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def frozen() -> nn.Module:
    net = model()
    return net.requires_grad_(False)


def complex_() -> nn.Module:
    net = model()
    net.register_parameter("turn", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    return net


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (model, {"sync_every": 0}, "0 steps from one exchange"),
    (model, {"sync_every": 2.5}, "2.5 steps from one exchange"),
    (model, {"sync_every": 4, "compression": "terngard"}, "did you mean terngrad?"),
    (model, {"sync_every": 4, "compression": "sparselco"}, "muloco; did you mean sparseloco?"),
    (model, {"sync_evry": 4, "compression": "diloco"}, "sync_every"),
    (model, {"sync_every": 4, "compression": GradientExchange("int8"), "exchange": "ring"}, "belongs to the GradientExchange"),
    (model, {"sync_every": 4, "compression": "auto"}, "auto compares steps"),
    (model, {"sync_every": 4, "compression": "powersgd"}, "works in DDP's buckets"),
    (model, {"sync_every": 4, "fragments": 3}, "3 fragments of a network with 2 trained layers"),
    (model, {"sync_every": 4, "outer_lr": -1}, "outer_lr=-1"),
    (model, {"sync_every": 4, "check_every": -1}, "check_every=-1"),
    (model, {"sync_every": 4, "timeout_s": 0}, "timeout_s=0"),
    (model, {"sync_every": 4, "seed": 1.5}, "seed"),
    (lambda: DistributedDataParallel(model()), {"sync_every": 4}, "give it model.module"),
    (lambda: "model", {"sync_every": 4}, "takes a torch.nn.Module, got str"),
    (frozen, {"sync_every": 4}, "no parameter of this model is trained"),
    (complex_, {"sync_every": 4}, "turn: complex weights"),
]


def refuse(rank: int, workers: int) -> list[str]:
    said = []
    for make, arguments, _ in REFUSED:
        try:
            paceline.attach_local(make(), **arguments)
            said.append("taken")
        except UserError as error:
            said.append(str(error))
    for mine in ({"sync_every": 4 + rank}, {"sync_every": 4, "seed": rank}, {"sync_every": 0 if rank else 4}):
        try:
            paceline.attach_local(model(), **mine)
            said.append("taken")
        except UserError as error:
            said.append(str(error))
    return said


def test_what_cannot_be_is_refused_on_every_rank() -> None:
    for said in launch_once(refuse, 2):
        for (_, arguments, words), text in zip(REFUSED, said, strict=False):
            assert words in text, (arguments, text)
        differing = said[len(REFUSED) :]
        assert "disagree on local steps" in differing[0] and "disagree on seed" in differing[1]
        assert "disagree on arguments" in differing[2] and "rank 1: illegal: 0 steps" in differing[2]


def attach(rank: int, workers: int) -> list[Any]:
    torch.manual_seed(rank)
    net = model()
    net[1].bias.requires_grad_(False)
    sync = paceline.attach_local(net, GradientExchange("int8", "ring"), sync_every=1)
    moved = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    net(torch.ones(2, 4) * rank).sum().backward()
    moved.step()
    exchanged = sync.step()
    sync.finish()
    with pytest.raises(UserError, match="after finish"):
        sync.step()
    again = paceline.attach_local(model(), sync_every=4, process_group=dist.group.WORLD)
    for same in (net, torch.compile(net, backend="eager")):
        with pytest.raises(UserError, match="this model has local steps already; call attach_local once"):
            paceline.attach_local(same, sync_every=4)
    return [
        [p.detach().clone() for p in net.parameters()],
        exchanged,
        [t.name for t in sync.tensors],
        str(sync),
        again.step(),
        sync.meter.sent_bytes,
    ]


@pytest.mark.parametrize(
    ("name", "keywords", "same"),
    [
        ("int8", {"exchange": "ring"}, GradientExchange("int8", "ring")),
        ("topk", {"density": 0.01}, GradientExchange("topk", options={"density": 0.01})),
        ("sparseloco", {}, LOCAL_RECIPES["sparseloco"].exchange),
        ("sparseloco", {"density": 0.03125, "exchange": "allgather"}, None),
    ],
)
def test_keywords_of_the_exchange_are_those_of_attach(name: str, keywords: dict[str, Any], same: Any) -> None:
    made = _exchange(name, keywords, 2)
    kept = {**dict(LOCAL_RECIPES["sparseloco"].exchange.options), "density": 0.03125}
    assert made == (same or GradientExchange("topk", "allgather", options=kept))


@pytest.mark.long
def test_every_rank_begins_with_the_first_ones_weights_and_ends_with_the_same() -> None:
    ranks = launch_once(attach, 2)
    for weights, exchanged, names, text, early, sent in ranks:
        assert all(torch.equal(a, b) for a, b in zip(weights, ranks[0][0], strict=True))
        assert exchanged and not early and names == ["0.weight", "0.bias", "1.weight"] and sent > 0
        assert text.startswith("an exchange every 1 steps: an outer rate of 0.7, momentum 0.9; stochastic 8-bit integers")


def replace_layer(net: nn.Sequential) -> None:
    net[1] = nn.Linear(3, 2)


def replace_statistics(net: nn.Sequential) -> None:
    net[2].running_mean = torch.zeros(2)  # type: ignore[assignment]


def assign(net: nn.Sequential) -> None:
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)


REPLACED: list[tuple[Any, str]] = [
    (lambda net: net.to(torch.float64), "0.weight"),
    (replace_layer, "1.weight"),
    (assign, "0.weight"),
    (replace_statistics, "2.running_mean"),
]


def what_is_said(use: Callable[[], object]) -> str:
    try:
        use()
    except UserError as error:
        return str(error)
    return "taken"


def go_on_with_other_tensors(rank: int, workers: int) -> list[list[str]]:
    said = []
    for replace, _ in REPLACED:
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.BatchNorm1d(2))
        sync = paceline.attach_local(net, sync_every=2)
        state = sync.state_dict()
        sync.step()
        replace(net)
        uses = (sync.step, partial(sync.load_state_dict, state), sync.shared_weights().__enter__)
        said.append([what_is_said(use) for use in uses])
    return said


def test_a_model_with_other_tensors_than_those_attached_is_refused() -> None:
    for ranks in launch_once(go_on_with_other_tensors, 2):
        for texts, (_, name) in zip(ranks, REPLACED, strict=True):
            assert all(text.startswith(f"{name} is no longer the tensor") for text in texts), texts


def tied() -> nn.Sequential:
    """Two layers with one weight, and a third layer."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    net[1].weight = net[0].weight
    return net


def add_layer(net: nn.Sequential) -> None:
    net.append(nn.Linear(2, 2))


THAWED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (lambda net: net[0].bias, lambda net: net[0].requires_grad_(True), {"sync_every": 2}, "0.bias"),
    (lambda net: net[0].weight, lambda net: net[1].weight.requires_grad_(True), {"sync_every": 2}, "0.weight"),
    (lambda net: net[2], lambda net: net[2].requires_grad_(True), {"sync_every": 4, "fragments": 2}, "2.weight, 2.bias"),
    (lambda net: net[0].bias, add_layer, {"sync_every": 2, "sync_delay": 1}, "3.weight, 3.bias"),
]
"""What is frozen before ``attach_local``, what is done behind it, how it exchanges, and what is then refused."""


def thaw(rank: int, workers: int) -> list[list[str]]:
    """One more parameter is trained after the first exchange; ``finish``, the state and the shared weights are tried too."""
    said = []
    for freeze, change, local, _ in THAWED:
        net = tied()
        freeze(net).requires_grad_(False)
        sync = paceline.attach_local(net, **local)
        state = sync.state_dict()
        for _ in range(4):
            net(torch.ones(2, 4) * (rank + 1)).sum().backward()
            sync.step()
        change(net)
        uses = (sync.finish, partial(sync.load_state_dict, state), sync.shared_weights().__enter__)
        said.append([what_is_said(use) for use in uses])
    return said


def test_a_parameter_that_is_unfrozen_after_it_is_refused() -> None:
    for ranks in launch_once(thaw, 2):
        for texts, (_, _, _, names) in zip(ranks, THAWED, strict=True):
            expected = (
                f"{names}: frozen or not there when attach_local was called, trained now. It is not exchanged; set requires"
            )
            assert all(text.startswith(expected) for text in texts), texts


def freeze_and_go_on(rank: int, workers: int) -> list[bool]:
    """A layer stays frozen, another is frozen and trained again; then the first is unfrozen, and attached again."""
    net = tied()
    net[2].requires_grad_(False)
    before = net[2].weight.clone()
    sync = paceline.attach_local(net, sync_every=2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train(sync: Any) -> None:
        for step in range(4):
            net[0].bias.requires_grad_(step % 2 == 0)
            net(torch.ones(2, 4) * (rank + 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            sync.step()

    train(sync)
    sync.finish()
    kept = torch.equal(net[2].weight, before)
    net.requires_grad_(True)
    del sync
    train(again := paceline.attach_local(net, sync_every=2))
    again.finish()
    sums = torch.stack([p.detach().double().sum() for p in net.parameters()])
    first = sums.clone()
    dist.broadcast(first, 0)
    return [kept, not torch.equal(net[2].weight, before), torch.equal(first, sums)]


def test_what_stays_frozen_is_taken_and_what_is_unfrozen_may_be_attached_again() -> None:
    assert launch_once(freeze_and_go_on, 2) == [[True] * 3] * 2


def test_without_workers_it_says_what_to_do() -> None:
    with pytest.raises(UserError, match="init_process_group first"):
        paceline.attach_local(model(), sync_every=4)
