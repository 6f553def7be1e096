"""What a torch optimizer must do, and what these two do beside it."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from layerwise_toys import BOTH, PATHS, equal, give, make, network, train
from paceline.training.optimizers import trust_ratio


@BOTH
@PATHS
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_gradient_changes_nothing(kind: str, foreach: bool | None, value: float) -> None:
    """Not one weight, moment or counter, of no tensor; the step after it is as if it had not been."""
    model, other = network(), network()
    optimizer, without = make(kind, model.parameters(), foreach=foreach), make(kind, other.parameters(), foreach=foreach)
    train(model, optimizer)
    train(other, without)
    before = copy.deepcopy(optimizer.state_dict())
    give(model, 9)
    next(model.parameters()).grad[0, 0] = value
    optimizer.step()
    for key, state in optimizer.state_dict()["state"].items():
        assert equal(state.values(), before["state"][key].values())
    assert optimizer.skipped_steps == 1 and without.skipped_steps == 0
    assert equal(train(model, optimizer, 4, 6), train(other, without, 4, 6))


@PATHS
def test_a_bad_gradient_does_not_spoil_the_clip(foreach: bool | None) -> None:
    model = network()
    optimizer = make("LAMB", model.parameters(), foreach=foreach, variant="nvlamb")
    give(model, 0, float("nan"))
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert all(bool(w.isfinite().all()) for w in train(model, optimizer))
    assert optimizer.skipped_steps == 1


@BOTH
@PATHS
def test_zero_norms_have_ratio_one(kind: str, foreach: bool | None) -> None:
    """Weights of zero move by lr * update, as LAMB's authors and MLPerf have it; a gradient of zero is no 0 / 0."""
    zero, idle = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.ones(3, 4))
    optimizer = make(kind, [zero, idle], foreach=foreach, weight_decay=0.0, diagnostics_every=1)
    zero.grad, idle.grad = torch.full_like(zero, 2.0), torch.zeros_like(idle)
    optimizer.step()
    step = 2.0 if kind == "LARS" else 1.0
    torch.testing.assert_close(zero.detach(), torch.full((3, 4), -0.05 * step), rtol=1e-5, atol=0)
    assert torch.equal(idle.detach(), torch.ones(3, 4))
    assert optimizer.diagnostics.trust_ratio.tolist() == [[1.0, 1.0]]


def test_the_trust_ratio() -> None:
    w, u = torch.tensor([2.0, 0.0, 2.0, 40.0]), torch.tensor([4.0, 4.0, 0.0, 4.0])
    assert trust_ratio(w, u).tolist() == [0.5, 1.0, 1.0, 10.0]
    assert trust_ratio(w, u, coefficient=2.0, decay=0.5, eps=1.0).tolist() == pytest.approx([4 / 6, 1, 1, 80 / 25])
    assert trust_ratio(w, u, bounds=(3.0, 10.0)).tolist() == [0.75, 1.0, 1.0, 2.5]


@BOTH
@PATHS
def test_maximize_is_the_negated_gradient(kind: str, foreach: bool | None) -> None:
    up, down = network(), network()
    ascending, other = (
        make(kind, up.parameters(), foreach=foreach, maximize=True),
        make(kind, down.parameters(), foreach=foreach),
    )
    for step in range(3):
        give(up, step, -1.0)
        give(down, step)
        ascending.step()
        other.step()
    assert equal(up.parameters(), down.parameters())


@BOTH
def test_groups_closures_and_a_rate_in_a_tensor(kind: str) -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "lr": torch.tensor(0.0)}, {"params": model[2].parameters(), "exclude": "none"}]
    optimizer = make(kind, groups)
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(5, 6)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value

    first, second = optimizer.step(loss), optimizer.step(loss)
    assert second < first
    after = list(model.parameters())
    assert equal(before[:4], after[:4]) and not any(torch.equal(a, b) for a, b in zip(before[4:], after[4:], strict=True))
    assert optimizer.excluded() == ["0.1"]


@BOTH
def test_parameters_without_a_gradient_stay(kind: str) -> None:
    """And LAMB's steps are each parameter's own: one that joins late has its first moments corrected as first ones."""
    late, alone = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    other = nn.Parameter(torch.ones(3, 3))
    optimizer, single = make(kind, [other, late]), make(kind, [alone])
    for step in range(3):
        other.grad = torch.ones_like(other)
        if step == 2:
            late.grad = alone.grad = torch.eye(3)
            single.step()
        optimizer.step()
    assert torch.equal(late, alone)


@BOTH
@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_state_goes_round_bit_for_bit(kind: str, foreach: bool | None, dtype: torch.dtype) -> None:
    """Through a file, into a new optimizer; moments and masters of 16-bit weights keep fp32."""
    model = network(dtype)
    optimizer = make(kind, model.named_parameters(), foreach=foreach)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = network(dtype)
    again.load_state_dict(saved["model"])
    other = make(kind, again.named_parameters(), foreach=foreach, lr=7.0)
    other.load_state_dict(saved["optimizer"])
    assert other.param_groups[0]["lr"] == 0.05 and other.excluded() == optimizer.excluded()
    assert equal(train(model, optimizer, 4, 7), train(again, other, 4, 7))
    for key, state in optimizer.state_dict()["state"].items():
        loaded = other.state_dict()["state"][key]
        assert {k: v.dtype for k, v in state.items()} == {k: v.dtype for k, v in loaded.items()}
        assert equal(state.values(), loaded.values())
    assert saved["optimizer"]["state"][0].keys() == other.state_dict()["state"][0].keys()


@BOTH
@PATHS
def test_16_bit_weights_follow_an_fp32_master(kind: str, foreach: bool | None) -> None:
    """Steps too small for bfloat16 add up; the weights are the master, rounded."""
    low = network(torch.bfloat16)
    whole = network(torch.bfloat16).float()
    narrow, other = (make(kind, model.parameters(), lr=1e-3, foreach=foreach) for model in (low, whole))
    for step in range(20):
        give(low, step)
        for p, q in zip(low.parameters(), whole.parameters(), strict=True):
            q.grad = p.grad.float()
        narrow.step()
        other.step()
    for p, q in zip(low.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(narrow.state[p]["master"], q.detach(), rtol=1e-6, atol=1e-7)
        assert torch.equal(p, narrow.state[p]["master"].bfloat16())


@BOTH
def test_copies_and_pickles(kind: str) -> None:
    model = network()
    optimizer = make(kind, model.named_parameters(), diagnostics_every=2)
    train(model, optimizer)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.excluded() == optimizer.excluded() and len(other.diagnostics.steps) == 4
        params = [p for group in other.param_groups for p in group["params"]]
        for p, q in zip(params, model.parameters(), strict=True):
            p.grad = q.grad
        other.step()
        assert not equal(params, model.parameters())


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@BOTH
def test_the_state_of_16_bit_weights_serves_wide_ones(kind: str, wide: torch.dtype) -> None:
    """Without the master, which would be stepped in the weights' place."""
    narrow = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.bfloat16).view(4, 3))
    optimizer = make(kind, [narrow])
    narrow.grad = torch.ones_like(narrow)
    optimizer.step()
    weight = nn.Parameter(narrow.detach().to(wide))
    other = make(kind, [weight])
    other.load_state_dict(optimizer.state_dict())
    assert "master" not in other.state[weight]
    before, weight.grad = weight.detach().clone(), torch.ones_like(weight)
    other.step()
    assert (weight != before).all()


@BOTH
def test_a_state_is_loaded_again_and_into_copies(kind: str) -> None:
    """torch adds an option of its own when it unpickles, as its loading does."""
    model = network()
    optimizer = make(kind, model.named_parameters())
    train(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    for other in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        for _ in range(2):
            other.load_state_dict(state)
        assert other.state_dict()["param_groups"] == state["param_groups"]


@BOTH
def test_a_state_by_name_comes_to_another_order(kind: str) -> None:
    """As torch.distributed.checkpoint maps it."""
    models = network(), network()
    first = make(kind, models[0].named_parameters())
    train(models[0], first)
    second = make(kind, list(models[1].named_parameters())[::-1])
    set_optimizer_state_dict(models[1], second, get_optimizer_state_dict(models[0], first))
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert equal((first.state[a][word] for word in first._words), (second.state[b][word] for word in second._words))


@BOTH
def test_a_gradient_that_is_negative_by_a_bit(kind: str) -> None:
    ends = []
    for gradient in (torch._neg_view(torch.ones(4, 4)), -torch.ones(4, 4)):
        weight = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))
        weight.grad = gradient
        make(kind, [weight]).step()
        ends.append(weight.detach())
    assert torch.equal(*ends)


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("LARS", marks=pytest.mark.full), "LAMB"])
def test_the_whole_step_compiles(kind: str) -> None:
    """In one graph, without a branch that depends on data: the infinity is skipped inside of it."""
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        options = {"lr": torch.tensor(0.05), "diagnostics_every": 2, "capturable": True, "foreach": True}
        optimizer = make(kind, model.named_parameters(), **options)
        step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager") if compiled else optimizer.step
        for number in range(5):
            give(model, number, float("inf") if number == 2 else 1.0)
            step()
        assert optimizer.skipped_steps == 1
        ends.append(([p.detach() for p in model.parameters()], optimizer.diagnostics))
    for a, b in zip(ends[0][0], ends[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ends[0][1].trust_ratio[-2:], ends[1][1].trust_ratio[-2:], rtol=1e-5)


@pytest.mark.long
@BOTH
def test_nothing_stops_the_compiler_where_it_may_stop(kind: str) -> None:
    """Without ``fullgraph`` a value that is read on the host ends a graph, where with it the compiler finds another way."""
    torch._dynamo.reset()
    model = nn.Linear(4, 3)
    optimizer = make(kind, model.named_parameters(), lr=torch.tensor(0.05), capturable=True, foreach=True)
    give(model, 0, 1.0)
    optimizer.step()  # makes the state
    explained = torch._dynamo.explain(optimizer.step)()
    assert explained.graph_break_count == 0, explained.break_reasons
