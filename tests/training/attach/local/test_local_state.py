"""The state of local steps: bit for bit on the same ranks, sums kept on others, everything else refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import local_oracle as oracle
import paceline
from distributed import launch
from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.training.attach.local.local_steps import LocalSync

LOCAL: dict[str, Any] = {"sync_every": 4, "fragments": 2, "sync_delay": 2, "mixing": 0.25}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("dense", "", LOCAL),
    "terngrad": ("terngrad", "", LOCAL),
    "sign": ("sign", "ring", {"sync_every": 5}),
    "topk": ("topk", "allgather", LOCAL),
}


class Net(nn.Module):
    """The oracle's network behind BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.body = nn.BatchNorm1d(5), oracle.network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(self.norm(x))
        return out


def begin(name: str) -> tuple[Net, torch.optim.Optimizer, LocalSync]:
    compression, exchange, local = CASES[name]
    model = Net()
    return (
        model,
        oracle.optimizer("adamw", model),
        paceline.attach_local(model, GradientExchange(compression, exchange), **local),
    )


def train(model: Net, optimizer: torch.optim.Optimizer, sync: LocalSync, samples: list[torch.Tensor]) -> None:
    for x in samples:
        oracle.local_step(model, optimizer, x)
        sync.step()


def interrupted(rank: int, workers: int, folder: str) -> dict[str, list[Any]]:
    """Thirteen steps, and seven that another model goes on from: an exchange is then under way."""
    found = {}
    for name in CASES:
        samples = oracle.samples(rank, 13)
        model, optimizer, sync = begin(name)
        train(model, optimizer, sync, samples[:7])
        state, of_optimizer = sync.state_dict(), optimizer.state_dict()
        torch.save([state, of_optimizer], Path(folder) / f"{name}-{rank}.pt")
        rest, other, second = begin(name)
        kept = torch.load(Path(folder) / f"{name}-{rank}.pt", weights_only=True)
        second.load_state_dict(kept[0])
        other.load_state_dict(kept[1])
        train(model, optimizer, sync, samples[7:])
        train(rest, other, second, samples[7:])
        pairs = zip(model.state_dict().items(), rest.state_dict().values(), strict=True)
        same = [key for (key, a), b in pairs if not torch.equal(a, b)]
        states = zip(flatten(sync.state_dict()), flatten(second.state_dict()), strict=True)
        same += [str(key) for (key, a), (_, b) in states if not (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)]
        found[name] = [same, state["pending"] is not None]
    return found


def flatten(state: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(state, dict):
        return [(path, state)]
    return [pair for key, value in state.items() for pair in flatten(value, f"{path}/{key}")]


def on_two(rank: int, workers: int, folder: str) -> dict[str, Any]:
    """Go on from three ranks' states."""
    found: dict[str, Any] = {}
    for name in CASES:
        model, optimizer, sync = begin(name)
        states = [torch.load(Path(folder) / f"{name}-{r}.pt", weights_only=True)[0] for r in range(3)]
        with pytest.raises(UserError, match="give load_state_dict the states of all 3 ranks"):
            sync.load_state_dict(states[:2])
        sync.load_state_dict(states)
        weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        residual = sync.feedback.state()["residual"] if sync.feedback else {}
        train(model, optimizer, sync, oracle.samples(rank, 6))
        found[name] = [weights, residual, sync.step_number, all(p.isfinite().all() for p in model.parameters())]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states")
    path.joinpath("differing").write_text(repr(launch(interrupted, 3, folder=str(path))))
    return path


@pytest.mark.long
def test_the_same_ranks_go_on_bit_for_bit_also_with_an_exchange_under_way(folder: Path) -> None:
    for rank in eval(folder.joinpath("differing").read_text()):
        assert {name: same for name, (same, _) in rank.items()} == {name: [] for name in CASES}
        assert [under_way for _, under_way in rank.values()] == [True, True, False, True]


def test_another_number_of_ranks_owes_the_same_and_begins_with_the_mean_weights(folder: Path) -> None:
    ranks = launch(on_two, 2, folder=str(folder))
    for name in CASES:
        states = [torch.load(folder / f"{name}-{r}.pt", weights_only=True)[0] for r in range(3)]
        for key, weights in ranks[0][name][0].items():
            mean = torch.stack([s["weights"][key] for s in states]).mean(0)
            torch.testing.assert_close(weights, mean)
            assert torch.equal(weights, ranks[1][name][0][key])
        before = {key: sum(s["feedback"]["residual"][key] for s in states) for key in states[0]["feedback"]["residual"]}
        assert bool(before) is (name in ("sign", "topk"))
        for key, total in before.items():
            torch.testing.assert_close(sum(rank[name][1][key] for rank in ranks) / 2, total / 3)
        assert all(rank[name][2] == 13 and rank[name][3] for rank in ranks)


def on_nodes_of_two(rank: int, workers: int, folder: str) -> dict[str, torch.Tensor]:
    """What four ranks on two nodes owe."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    model = Net()
    sync = paceline.attach_local(model, GradientExchange("topk", "hierarchical"), sync_every=2)
    train(model, oracle.optimizer("sgd", model), sync, oracle.samples(rank, 4))
    torch.save(sync.state_dict(), Path(folder) / f"node-{rank}.pt")
    return sync.state_dict()["feedback"]["residual"]


def on_one_node(rank: int, workers: int, folder: str) -> list[Any]:
    """Two of them go on, and send it uncompressed."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    model = Net()
    sync = paceline.attach_local(
        model, GradientExchange("topk", "hierarchical"), sync_every=2, outer_momentum=0.0, outer_lr=1.0
    )
    states = [torch.load(Path(folder) / f"node-{r}.pt", weights_only=True) for r in range(4)]
    local = sync.state_dict()["local"]
    sync.load_state_dict([{**state, "local": local, "outer_momentum": {}} for state in states])
    owed, before = sync.state_dict()["feedback"]["residual"], {n: p.detach().clone() for n, p in model.named_parameters()}
    sync.step()
    sync.step()
    moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}
    return [owed, moved, sync.state_dict()["feedback"]["residual"]]


@pytest.mark.long
def test_what_a_hierarchy_owes_is_sent_where_all_ranks_are_on_one_node(tmp_path: Path) -> None:
    four, two = launch(on_nodes_of_two, 4, folder=str(tmp_path)), launch(on_one_node, 2, folder=str(tmp_path))
    for name in four[0]:
        total = sum(one[name] for one in four)
        torch.testing.assert_close(sum(owed[name] for owed, _, _ in two) / 2, total / 4)
        torch.testing.assert_close(two[0][1][name].reshape(-1), total.reshape(-1) / 4, rtol=1e-4, atol=1e-7)
        assert not any(after[name].any() for _, _, after in two)
    assert any(one[name].any() for one in four for name in one)


def refusals(rank: int, workers: int) -> list[str]:
    model = Net()
    hooked = paceline.attach_local(model, "sign", sync_every=4)
    good = hooked.state_dict()
    said = []
    for bad in (
        [],
        {**good, "compression": "int8"},
        {**good, "local": {**good["local"], "outer_lr": 0.5}},
        {name: value for name, value in good.items() if name != "local"},
        {**good, "anchor": {}},
        {**good, "weights": {**good["weights"], "body.0.bias": torch.zeros(3)}},
        {**good, "buffers": {}},
        {**good, "rank": 1 - rank},
        {**good, "step": "7"},
        "state",
    ):
        try:
            hooked.load_state_dict(bad)  # type: ignore[arg-type]
            said.append("taken")
        except UserError as error:
            said.append(str(error))
    return said


def test_a_foreign_or_damaged_state_is_refused() -> None:
    for said in launch(refusals, 2):
        expected = (
            "empty list",
            "of int8, the model sends sign",
            "of other local steps: outer_lr 0.5, here 0.7",
            "an exchange in every step, not of local steps",
            "the state's anchor does not have the model's",
            "the state's weights does not have the model's body.0.bias",
            "other buffers",
            "rank",
            "step missing or wrong",
            "no state",
        )
        assert len(said) == len(expected)
        for text, words in zip(said, expected, strict=True):
            assert words in text, (words, text)
