"""``state_dict``: a run goes on bit for bit with as many workers, and without loss with fewer; residuals follow AMP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.training.attach import bucketing as groups
from paceline.training.attach.attach import attach
from paceline.training.attach.hooks.state import check_same_exchange, settings
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.residual_keeping import keeping_of

CASES: dict[str, dict[str, Any]] = {
    "topk with momentum": {"compression": "topk", "momentum": 0.9},
    "topk with momentum, narrow": {"compression": "topk", "momentum": 0.9, "residual_bits": 16},
    "sign over a ring": {"compression": "sign", "exchange": "ring"},
    "scaled, hierarchical": {"compression": "inceptionn-scaled", "exchange": "hierarchical", "ranks_per_node": 2},
    "int8": {"compression": "int8"},
    "terngrad": {"compression": "terngrad"},
    "powersgd": {"compression": "powersgd"},
    "powersgd, narrow": {"compression": "powersgd", "residual_bits": 16},
}


HALF = {False: 2, True: 3}
"""Steps before the checkpoint: PowerSGD begins in step 2."""
EVERYDAY = {
    "topk with momentum": (2, 3),
    "topk with momentum, narrow": (3,),
    "sign over a ring": (2,),
    "scaled, hierarchical": (2,),
    "terngrad": (3,),
    "powersgd": (2,),
}
"""Cases of every day, each with the numbers of fewer workers that take its state over."""


def net(group: Any = None) -> DDP:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 4))
    return DDP(layers, process_group=group, bucket_cap_mb=0.008)


def attached(model: DDP, case: str, seed: int) -> Any:
    return attach(model, seed=seed, **CASES[case])


def train(model: DDP, optimizer: Any, rank: int, steps: range) -> list[np.ndarray]:
    for step in steps:
        g = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(6, 40, generator=g)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [p.detach().numpy().copy() for p in model.parameters()]


def sgd(model: DDP) -> Any:
    parameters = list(model.parameters())
    return torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.05}], lr=0.1, momentum=0.9)


def resumed(rank: int, workers: int, cases: list[tuple[str, list[int]]]) -> dict[str, Any]:
    """Some steps at once, and half of them, a checkpoint, and the other half; then the checkpoint on fewer workers.

    There are several groups, which DDP in its first step hands over as one bucket. Each case has its numbers of fewer workers.
    """
    groups.FUSE_BYTES = 1
    seen: dict[str, Any] = {}
    fewer = {n: dist.new_group(list(range(n))) for n in (2, 3)}
    for case, numbers in cases:
        middle = HALF[case.startswith("powersgd")]
        model = net()
        attached(model, case, 2**33)
        whole = train(model, sgd(model), rank, range(2 * middle))

        model = net()
        hook, optimizer = attached(model, case, 2**33), sgd(model)
        half = train(model, optimizer, rank, range(middle))
        kept = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        kept = {key: torch.load(saved(value), weights_only=True) for key, value in kept.items()}
        states: list[Any] = [None] * workers
        dist.all_gather_object(states, hook.state_dict())

        model = net()
        hook, optimizer = attached(model, case, 0), sgd(model)
        model.module.load_state_dict(kept["model"])
        optimizer = sgd(model)
        optimizer.load_state_dict(kept["optimizer"])
        hook.load_state_dict(states[rank] if "terngrad" in case else states)
        rest = train(model, optimizer, rank, range(middle, 2 * middle))
        seen[case] = {"whole": whole, "rest": rest, "half": half, "state": states[rank], "fewer": {}}

        for n in numbers:
            if rank < n:
                model = net(fewer[n])
                hook = attached(model, case, 0)
                hook.load_state_dict(states)
                after = hook.state_dict()
                weights = train(model, sgd(model), rank, range(2))
                seen[case]["fewer"][n] = {"state": after, "weights": weights, "steps": hook.step - middle}
        if case == "powersgd":
            seen["refused"] = refused(states)
        dist.barrier()
    return seen


def refused(states: list[Any]) -> list[str]:
    """Messages that refuse states of PowerSGD and other states that do not fit."""
    hook: Any = attach(net(), "topk")
    said = []
    for wrong in (states, [hook.state_dict()], {**hook.state_dict(), "workers": 9}, []):
        try:
            hook.load_state_dict(wrong)
            said.append("no error")
        except UserError as error:
            said.append(str(error))
    return said


def saved(value: Any) -> Any:
    import io

    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def masses(states: list[Any], kind: str) -> dict[Any, np.ndarray]:
    parts = [s["error_dict"] if kind == "errors" else s["feedback"][kind] for s in states]
    return {name: sum(part[name].double().numpy() for part in parts if name in part) for name in parts[0]}


def ranks(case: str, workers: int = 2) -> list[Any]:
    """Return what each of four ranks has found, also on fewer workers. Cases of every day share a launch, and the others."""
    runs = tuple(EVERYDAY.items())
    if workers not in EVERYDAY.get(case, ()):
        both = {name: (2,) if name == "scaled, hierarchical" else (2, 3) for name in CASES}
        rest = {name: tuple(n for n in numbers if n not in EVERYDAY.get(name, ())) for name, numbers in both.items()}
        runs = tuple((name, numbers) for name, numbers in rest.items() if numbers)
    return [r[case] for r in launch_once(resumed, 4, cases=runs)]


@pytest.mark.everyday(*EVERYDAY)
@pytest.mark.parametrize("case", CASES)
def test_the_resumed_run_has_the_same_bits(case):
    for found in ranks(case, EVERYDAY.get(case, (2,))[0]):
        assert all(np.array_equal(a, b) for a, b in zip(found["whole"], found["rest"], strict=True))
        assert any(not np.array_equal(a, b) for a, b in zip(found["whole"], found["half"], strict=True))


@pytest.mark.everyday(*(f"{case}-{n}" for case, numbers in EVERYDAY.items() for n in numbers))
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("case", [case for case in CASES if case != "scaled, hierarchical"])
def test_fewer_workers_share_what_is_owed_and_go_on(case, workers):
    four = ranks(case, workers)
    after = [found["fewer"][workers] for found in four[:workers]]
    kinds = ("errors",) if case.startswith("powersgd") else ("residual", "velocity")
    rounding = 2.0**-8 if case.endswith("narrow") else 1e-5  # shares are rounded to nearest
    for kind in kinds:
        old, new = (masses(states, kind) for states in ([found["state"] for found in four], [a["state"] for a in after]))
        assert old.keys() == new.keys()
        assert bool(old) == (case.startswith(("topk", "powersgd")) or (case.startswith("sign") and kind == "residual"))
        for name in old:
            assert np.abs(old[name]).max() > 0
            assert np.allclose(old[name] / 4, new[name] / workers, rtol=rounding, atol=1e-6 * np.abs(old[name]).max())
    for a in after:
        assert a["steps"] == 2
        pairs = zip(a["weights"], after[0]["weights"], strict=True)
        assert all(np.array_equal(x, y) and np.isfinite(x).all() for x, y in pairs)


def test_in_one_node_where_nothing_is_encoded_what_is_owed_is_kept():
    """Of two nodes of two; the next gradients take it (``test_ddp_nonfinite.py``)."""
    four = ranks("scaled, hierarchical")
    after = [found["fewer"][2]["state"] for found in four[:2]]
    old, new = (masses(states, "residual") for states in ([found["state"] for found in four], after))
    assert old.keys() == new.keys() and old
    for name in old:
        assert np.abs(old[name]).max() > 0
        assert np.allclose(old[name] / 4, new[name] / 2, rtol=1e-5, atol=1e-6 * np.abs(old[name]).max())


def test_states_that_do_not_fit_are_refused():
    for rank, r in enumerate(launch_once(resumed, 4, cases=tuple(EVERYDAY.items()))):
        other, one, many, none = r["refused"]
        assert "the state is of powersgd, the model sends topk" in other
        assert one == "no error" and "4 workers, the state is of 9" in many  # its own state is enough
        assert f"of rank {rank} only" in many and "nothing" in none


def test_residuals_of_another_width_are_taken_over() -> None:
    """Those of fp32 are rounded to nearest, those of bfloat16 stay; where they lie does not matter either."""
    narrow = GradientExchange("topk", residual_bits=16, residuals_at="host")
    values = torch.randn(500, generator=torch.Generator().manual_seed(1))
    for before, after in ((GradientExchange("topk"), narrow), (narrow, GradientExchange("topk"))):
        check_same_exchange({"compression": "topk", "gradient_exchange": settings(before)}, after)
        feedback = Feedback(keeping=keeping_of(after))
        kept = values.to(keeping_of(before).dtype)
        feedback.load({"residual": {"a": kept}, "velocity": {}})
        found = feedback.state()["residual"]["a"]
        assert found.dtype == keeping_of(after).dtype
        assert torch.equal(found, values.bfloat16()) if after is narrow else torch.equal(found, values.bfloat16().float())
    other = GradientExchange("topk", residual_bits=16, dense_bits=16)
    with pytest.raises(UserError, match="dense_bits None, here 16"):
        check_same_exchange({"compression": "topk", "gradient_exchange": settings(narrow)}, other)


class Scaler:
    """What attach reads of a ``torch.amp.GradScaler``."""

    scale = 1.0

    def get_scale(self) -> float:
        return self.scale


def scaled(rank: int, workers: int) -> dict[str, Any]:
    """Known gradients times a factor that changes, one step of them infinite; and a real GradScaler."""
    scaler, steps = Scaler(), []
    model = DDP(nn.Linear(2000, 1, bias=False))
    hook = attach(model, "topk", grad_scaler=scaler, min_elements=0)
    hook.dense.clear()  # its only layer is the last one
    for step, factor in enumerate([1.0, 2.0, 65536.0, 65536.0, 32768.0, 1.0]):
        scaler.scale = factor
        g = torch.randn(1, 2000, generator=torch.Generator().manual_seed(10 * step + rank))
        x = g * (float("inf") if step == 3 and rank == 0 else factor)
        model.zero_grad()
        model(x).sum().backward()
        if step != 3:  # as GradScaler skips it
            steps.append((g.numpy()[0], model.module.weight.grad.numpy()[0] / factor))
    left = hook.state_dict()["feedback"]["residual"]["weight"].numpy() / scaler.scale

    real = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
    model = net()
    hook, optimizer = attach(model, "topk", grad_scaler=real), sgd(model)
    for step in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(torch.randn(6, 40, generator=torch.Generator().manual_seed(step + 10 * rank)))
        loss = out.float().square().mean() * (float("inf") if step == 2 else 1)
        real.scale(loss).backward()
        real.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        real.step(optimizer)
        real.update()
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    return {"steps": steps, "left": left, "weights": weights, "bad": hook.meter.nonfinite_steps, "factor": hook._factor}


def test_residuals_follow_the_gradient_scaler_and_skip_infinite_steps():
    ranks = launch_once(scaled, 2)
    given = sum(g.astype(np.float64) for r in ranks for g, _ in r["steps"])
    delivered = 2 * sum(mean.astype(np.float64) for _, mean in ranks[0]["steps"])
    left = sum(r["left"].astype(np.float64) for r in ranks)
    assert np.count_nonzero(left) > 1000
    assert np.allclose(delivered + left, given, rtol=0, atol=1e-4)


def test_a_real_gradient_scaler_with_autocast_and_clipping():
    zero, one = launch_once(scaled, 2)
    assert zero["bad"] == one["bad"] >= 1 and zero["factor"] != 1.0
    assert all(np.array_equal(a, b) and np.isfinite(a).all() for a, b in zip(zero["weights"], one["weights"], strict=True))


class Branches(nn.Module):
    """One branch always works, the other one on request."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.asked = nn.Linear(2000, 1, bias=False), nn.Linear(2000, 1, bias=False)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        out = self.always(x)
        return out + self.asked(x) if both else out


def owed_by_a_resting_branch() -> tuple[np.ndarray, bool, np.ndarray]:
    """A residual taken over by an exchange without feedback, of a branch that then rests for a step on every rank.

    Returns:
        What this rank owed, whether DDP left its gradient alone in that step, and the gradient of the next one.
    """
    model = DDP(Branches(), find_unused_parameters=True)
    hook = attach(model, "topk", min_elements=0)
    hook.dense.clear()
    model(torch.randn(1, 2000, generator=torch.Generator().manual_seed(dist.get_rank())), True).sum().backward()
    left = hook.state_dict()["feedback"]["residual"]["asked.weight"]
    hook.use(GradientExchange("dense"))
    weight = model.module.asked.weight
    model.zero_grad()
    model(torch.zeros(1, 2000), False).sum().backward()
    rested = weight.grad is None
    model.zero_grad()
    model(torch.zeros(1, 2000), True).sum().backward()
    return left.numpy(), rested, weight.grad.numpy()[0]


def owed_and_scaled(rank: int, workers: int) -> dict[str, Any]:
    """A residual taken over by an exchange without feedback, which pays it after the scaler has changed its factor."""
    scaler = Scaler()
    model = DDP(nn.Linear(2000, 1, bias=False))
    hook = attach(model, "topk", grad_scaler=scaler, min_elements=0)
    hook.dense.clear()
    model(torch.randn(1, 2000, generator=torch.Generator().manual_seed(rank))).sum().backward()
    left = hook.state_dict()["feedback"]["residual"]["weight"]
    hook.use(GradientExchange("dense"))
    scaler.scale = 4.0
    model.zero_grad()
    model(torch.zeros(1, 2000)).sum().backward()
    return {"left": left.numpy(), "paid": model.module.weight.grad.numpy()[0], "branch": owed_by_a_resting_branch()}


def test_what_is_owed_follows_the_gradient_scaler():
    ranks = launch_once(owed_and_scaled, 2)
    left = sum(r["left"] for r in ranks) / 2
    assert np.abs(left).max() > 0
    np.testing.assert_allclose(ranks[0]["paid"], 4 * left, rtol=1e-6, atol=1e-6)


def test_what_is_owed_of_a_branch_that_rests_waits_for_it():
    """DDP discards what is delivered of a weight that no rank has used."""
    ranks = launch_once(owed_and_scaled, 2)
    left = sum(r["branch"][0] for r in ranks) / 2
    assert np.abs(left).max() > 0
    for r in ranks:
        assert r["branch"][1]
        np.testing.assert_allclose(r["branch"][2], left, rtol=1e-6, atol=1e-6)
