"""Error feedback where DDP discards what was delivered: parameters that no rank has used in a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach.attach import attach
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec

STEPS = 5
CASES: dict[str, dict[str, Any]] = {
    "topk": {"compression": "topk", "density": 0.05},
    "topk, ring": {"compression": "topk", "exchange": "ring"},
    "topk, nodes": {"compression": "topk", "exchange": "hierarchical", "ranks_per_node": 2},
    "sign": {"compression": "sign"},
    "sign, to all": {"compression": "sign", "exchange": "allgather"},
    "scaled": {"compression": "inceptionn-scaled"},
    "powersgd": {"compression": "powersgd"},
}


class Branches(nn.Module):
    """One branch works in every second step, on some ranks one step longer; the other one always."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.last = nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 1, bias=False)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        out = torch.tanh(self.always(x))
        return self.last(out + self.sometimes(x) if both else out)


def used(rank: int, step: int) -> bool:
    return step % 2 == 0 or (step == 3 and rank == 1)


def branches(rank: int, workers: int, runs: list[tuple[str, bool]]) -> list[Any]:
    """Of ``sometimes.weight``: the sum of the gradients, of what DDP put in ``grad``, and what is owed in the end.

    Runs are cases, each with whether gradients are stale: never cleared, so what a branch kept of its last step is in DDP's
    bucket again.
    """
    return [in_branches(rank, CASES[case], stale) for case, stale in runs]


def in_branches(rank: int, options: dict[str, Any], stale: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    torch.manual_seed(2)
    model = DDP(Branches(), find_unused_parameters=True)
    hook = attach(model, **options)
    weight = model.module.sometimes.weight
    given, delivered = np.zeros((40, 40)), np.zeros((40, 40))
    for step in range(STEPS):
        both = used(rank, step)
        x = torch.randn(5, 40, generator=torch.Generator().manual_seed(100 * step + rank))
        if not stale or both or used(1, step):
            model.zero_grad()
        local: list[np.ndarray] = []
        handle = weight.register_hook(lambda g, local=local: local.append(g.double().numpy().copy()))
        before = None if weight.grad is None else weight.grad.clone()
        model(x, both).square().mean().backward()
        handle.remove()
        given += local[0] if local else 0
        if not used(1, step) and not both:  # no rank has used it: DDP leaves what was there
            assert (weight.grad is None) == (before is None)
            assert before is None or torch.equal(weight.grad, before)
        else:
            delivered += weight.grad.double().numpy()
    return given, delivered, _owed(hook, hook.state_dict())


def _owed(hook: Any, state: dict[str, Any]) -> np.ndarray:
    if state["compression"] != "powersgd":
        return state["feedback"]["residual"]["sometimes.weight"].double().numpy().reshape(40, 40)
    for index, members in enumerate(hook._groups.members):
        at = 0
        for tensor in members:
            if tensor.name == "sometimes.weight":
                error = state["error_dict"][index][at : at + tensor.elements]
                return error.double().numpy().reshape(40, 40)
            at += tensor.elements
    raise AssertionError("no such tensor")


ALL = [(2, case, stale) for case in CASES if case != "topk, nodes" for stale in (False, True)]
ALL += [(4, "topk, nodes", False), (4, "topk, nodes", True)]
DAILY = [
    *((2, case, stale) for case in ("topk", "powersgd") for stale in (False, True)),
    (2, "topk, ring", True),
    (2, "sign", False),
    (2, "sign, to all", True),
    (4, "topk, nodes", False),
]


@pytest.mark.parametrize(
    ("workers", "case", "stale"),
    [pytest.param(*run, marks=[] if run in DAILY else [pytest.mark.full]) for run in ALL],
)
def test_delivered_and_owed_are_all_that_was_given(workers: int, case: str, stale: bool) -> None:
    daily = (workers, case, stale) in DAILY
    runs = tuple(run[1:] for run in ALL if run[0] == workers and (run in DAILY) == daily)
    ranks = [results[runs.index((case, stale))] for results in launch_once(branches, workers, runs=runs)]
    given, owed = (sum(found[kind] for found in ranks) for kind in (0, 2))
    delivered = workers * ranks[0][1]
    assert np.abs(owed).max() > 0
    lost = np.abs(given - delivered - owed).sum() / np.abs(given).sum()
    assert lost < 1e-4, f"{100 * lost:.3g} % of the gradients are lost"


def test_a_rank_keeps_what_it_sends_and_forgets_what_another_sends() -> None:
    """Else a sum over the workers would count it twice."""
    layout = Layout([TensorSpec("a", (4,), 0), TensorSpec("b", (4,), 4)], ())
    feedback, cpu = Feedback(momentum=0.9), torch.device("cpu")
    owed = {"a": torch.arange(1.0, 5), "b": torch.arange(5.0, 9)}
    feedback.load({"residual": owed, "velocity": {name: -values for name, values in owed.items()}})
    feedback.keep(layout, 2, 6, 0.5, cpu)
    wanted = {"a": [0, 0, 1.5, 2], "b": [2.5, 3, 0, 0]}
    for kind, sign in (("residual", 1), ("velocity", -1)):
        kept = {name: values.tolist() for name, values in feedback.state()[kind].items()}
        assert kept == {name: [sign * value for value in values] for name, values in wanted.items()}
