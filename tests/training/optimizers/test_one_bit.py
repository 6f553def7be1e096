"""1-bit Adam and 1-bit LAMB beside Adam and LAMB, and beside a plain simulation of the papers' algorithms."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from distributed import launch_once
from paceline.errors import UserError
from paceline.training.runs.data import load

FREEZE, STEPS, BLOCK, BETAS = 3, 8, 256, (0.9, 0.99)
KINDS = ("adam", "lamb")
LR, EPS, DECAY = 0.01, 1e-6, 0.02
SMALL = 1024  # smaller tensors travel dense


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 61), nn.Tanh(), nn.Linear(61, 50), nn.Tanh(), nn.Linear(50, 3))


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(100 * step + rank))
    return model(x).square().mean()


def made(kind: str, wrapped: DDP, **options: Any) -> Any:
    """The optimizer of a kind; without ``model=`` the one that it is before the freeze."""
    numbers = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    if not options:
        return {"adam": torch.optim.Adam, "lamb": paceline.LAMB}[kind](wrapped.module.named_parameters(), **numbers)
    one_bit = {"adam": paceline.OneBitAdam, "lamb": paceline.OneBitLamb}[kind]
    return one_bit(wrapped.module.named_parameters(), **numbers, **options)


def train(model: DDP, optimizer: Any, rank: int, steps: range, bad: int = -1) -> list[list[np.ndarray]]:
    weights = []
    for step in steps:
        optimizer.zero_grad()
        loss(model, rank, step).backward()
        if step == bad and rank == 0:
            model.module[0].weight.grad[3, 3] = float("nan")
        optimizer.step()
        weights.append([p.detach().numpy().copy() for p in model.parameters()])
    return weights


def scaled_step(model: DDP, optimizer: Any, rank: int) -> list[str]:
    """What a step by a scaler says, without and with the gradients unscaled before, as clipping needs."""
    said = []
    for unscaled in (False, True):
        before = [p.detach().clone() for p in model.parameters()]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer.zero_grad()
        scaler.scale(loss(model, rank, 0)).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        with pytest.raises(UserError) as refused:
            scaler.step(optimizer)
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
        said.append(str(refused.value))
    return said


def one_bit(rank: int, workers: int, kinds: list[str]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for kind in kinds:
        model = DDP(net())
        seen[kind, "plain"] = train(model, made(kind, model), rank, range(FREEZE))
        model = DDP(net())
        optimizer = made(kind, model, model=model, freeze_step=FREEZE, block=BLOCK, check_every=2)
        seen[kind] = train(model, optimizer, rank, range(STEPS // 2 + 1))
        seen[kind, "frozen"] = optimizer.hook.frozen, optimizer.steps_done, optimizer.hook.step
        state, errors = copy.deepcopy(optimizer.state_dict()), optimizer.hook.state_dict()
        weights = {name: values.clone() for name, values in model.module.state_dict().items()}
        optimizer.hook.meter.begin_step()
        seen[kind] += train(model, optimizer, rank, range(STEPS // 2 + 1, STEPS))
        seen[kind, "sent"] = optimizer.hook.meter.sent_bytes

        model = DDP(net())
        model.module.load_state_dict(weights)
        again = made(kind, model, model=model, freeze_step=FREEZE, block=BLOCK)
        again.load_state_dict(state)
        again.hook.load_state_dict(errors)
        seen[kind, "resumed"] = train(model, again, rank, range(STEPS // 2 + 1, STEPS))

        other = made(kind, model := DDP(net()), model=model, freeze_step=FREEZE + 1, block=BLOCK)
        without = [{k: v for k, v in group.items() if k != "freeze_step"} for group in state["param_groups"]]
        for name, given in {"other freeze": state, "no freeze": {**state, "param_groups": without}}.items():
            with pytest.raises(UserError) as refused:
                other.load_state_dict(given)
            assert not other.state and not other.hook.frozen
            seen[f"{name}, {kind}"] = str(refused.value)

        everyone: list[Any] = [None] * workers
        dist.all_gather_object(everyone, errors)
        alone = [dist.new_group([r]) for r in range(workers)][rank]
        model = DDP(net(), process_group=alone)
        fewer = made(kind, model, model=model, freeze_step=FREEZE, block=BLOCK)
        fewer.load_state_dict(state)
        fewer.hook.load_state_dict(everyone)
        kept = fewer.hook.state_dict()["feedback"]["residual"]
        owed = [e["feedback"]["residual"] for e in everyone]
        seen[kind, "owed"] = [(kept[n].numpy(), sum(o[n].double() for o in owed).numpy() / workers) for n in sorted(kept)]

        model = DDP(net())
        optimizer = made(kind, model, model=model, freeze_step=FREEZE, block=BLOCK)
        train(model, optimizer, rank, range(FREEZE + 1))
        before = optimizer.hook.state_dict()["feedback"]["residual"]
        rows = train(model, optimizer, rank, range(FREEZE + 1, FREEZE + 4), bad=FREEZE + 2)
        seen[kind, "bad"] = rows, optimizer.skipped_compressed, optimizer.steps_done, sorted(before)
        seen[f"scaler, {kind}, frozen"] = scaled_step(model, optimizer, rank)
        optimizer.step()  # without one it goes on
        model = DDP(net())
        seen[f"scaler, {kind}, warm"] = scaled_step(model, made(kind, model, model=model, freeze_step=FREEZE), rank)
    for name, call in {
        "freeze": lambda: made("adam", DDP(net()), model=DDP(net()), freeze_step=0),
        "other model": lambda: made("adam", DDP(net()), model=DDP(net()), freeze_step=3),
        "no DDP": lambda: paceline.OneBitAdam(net().parameters(), model=net(), freeze_step=3),
        "16 bits": lambda: paceline.OneBitAdam(net().bfloat16().parameters(), model=DDP(net()), freeze_step=3),
    }.items():
        try:
            call()
            seen[name] = "no error"
        except UserError as error:
            seen[name] = str(error)
    return seen


def signs(x: np.ndarray, real: np.ndarray) -> np.ndarray:
    """The mean magnitude of each block's ``real`` elements with the sign of each element; 0 in the padding."""
    out = np.zeros_like(x)
    for start in range(0, x.size, BLOCK):
        part, own = x[start : start + BLOCK], real[start : start + BLOCK]
        out[start : start + BLOCK] = np.where(np.signbit(part), -1, 1) * np.abs(part[own]).mean() * own
    return out


def in_blocks(parts: list[np.ndarray]) -> np.ndarray:
    """Tensors one after another, each from the beginning of a block on."""
    return np.concatenate([np.pad(part.ravel(), (0, -part.size % BLOCK)) for part in parts])


def simulated(kind: str, workers: int) -> list[list[np.ndarray]]:
    """The papers' algorithms for all workers in one process and fp64, with the error of each worker and each server."""
    model = net().double()
    parameters = list(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    m = [np.zeros(p.shape) for p in parameters]
    v, fresh = [np.zeros(p.shape) for p in parameters], [np.zeros(0)] * len(m)
    c, r = [None] * len(m), [1.0] * len(m)
    large = [i for i, p in enumerate(parameters) if p.numel() >= SMALL]
    real = in_blocks([np.ones(parameters[i].numel(), bool) for i in large])
    count = real.size
    size = -(-count // (workers * BLOCK)) * BLOCK
    shards = [slice(min(w * size, count), min((w + 1) * size, count)) for w in range(workers)]
    errors = [np.zeros(count) for _ in range(workers)]
    rows: list[list[np.ndarray]] = []
    for step in range(STEPS):
        own = []
        for rank in range(workers):
            model.zero_grad()
            x = torch.randn(6, 40, generator=torch.Generator().manual_seed(100 * step + rank)).double()
            model(x).square().mean().backward()
            decay = DECAY if kind == "adam" else 0.0
            own.append([(p.grad + decay * p).detach().numpy().copy() for p in parameters])
        before = [x.copy() for x in m]
        if step < FREEZE:
            g = [np.mean([o[i] for o in own], axis=0) for i in range(len(m))]
            m = [BETAS[0] * a + (1 - BETAS[0]) * b for a, b in zip(m, g, strict=True)]
            v = [BETAS[1] * a + (1 - BETAS[1]) * b**2 for a, b in zip(v, g, strict=True)]
        else:
            local = [[BETAS[0] * a + (1 - BETAS[0]) * o[i] for i, a in enumerate(m)] for o in own]
            m = [np.mean([of[i] for of in local], axis=0) for i in range(len(m))]
            with_errors = [in_blocks([of[i] for i in large]) + e for of, e in zip(local, errors, strict=True)]
            mean = np.empty(count)
            for owner, shard in enumerate(shards):
                total = with_errors[owner][shard].copy()
                for rank in range(workers):
                    if rank != owner:
                        sent = signs(with_errors[rank][shard], real[shard])
                        errors[rank][shard] = with_errors[rank][shard] - sent
                        total += sent
                pulled = signs(total, real[shard])
                errors[owner][shard] = total - pulled
                mean[shard] = pulled / workers
            at = 0
            for i in large:
                m[i] = mean[at : at + m[i].size].reshape(m[i].shape)
                at += -(-m[i].size // BLOCK) * BLOCK
        steps_of_v = min(step + 1, FREEZE)
        for i, p in enumerate(parameters):
            w = p.detach().numpy()
            root = np.sqrt(v[i] / (1 - BETAS[1] ** steps_of_v)) + EPS
            update = m[i] / (1 - BETAS[0] ** (step + 1)) / root
            ratio = 1.0
            if kind == "lamb" and not names[i].endswith("bias"):
                if step >= FREEZE:
                    if step == FREEZE:
                        fresh[i] = v[i].copy()
                    g = (m[i] - BETAS[0] * before[i]) / (1 - BETAS[0])
                    fresh[i] = BETAS[1] * fresh[i] + (1 - BETAS[1]) * g**2
                    factor = (root / (np.sqrt(fresh[i] / (1 - BETAS[1] ** FREEZE)) + EPS)).max()
                    r[i] = min(max(min(max(factor, 0.5), 4.0), 0.9 * r[i]), 1.1 * r[i])
                    update, ratio = update + DECAY * w, c[i] * r[i]
                else:
                    update = update + DECAY * w
                    ratio = np.linalg.norm(w) / np.linalg.norm(update)
                    c[i] = ratio if c[i] is None else 0.9 * c[i] + 0.1 * ratio
            with torch.no_grad():
                p.copy_(torch.from_numpy(w - LR * ratio * update))
        rows.append([p.detach().numpy().copy() for p in parameters])
    return rows


def close(a: list[np.ndarray], b: list[np.ndarray], rtol: float = 1e-4) -> bool:
    return all(np.abs(x - y).max() <= rtol * np.abs(y).max() for x, y in zip(a, b, strict=True))


RUNS = pytest.mark.parametrize(
    ("workers", "kind"), [(2, "adam"), (2, "lamb"), (3, "lamb"), pytest.param(3, "adam", marks=pytest.mark.full)]
)


def ranks(workers: int, kind: str) -> list[Any]:
    """Return what each rank has seen. Two ranks run both kinds in a launch."""
    return launch_once(one_bit, workers, kinds=KINDS if workers == 2 else (kind,))


@RUNS
def test_before_the_freeze_it_is_the_plain_optimizer(workers: int, kind: str) -> None:
    for r in ranks(workers, kind):
        for own, plain in zip(r[kind][:FREEZE], r[kind, "plain"], strict=True):
            assert close(own, plain, 1e-6)


@RUNS
def test_after_the_freeze_it_is_the_paper_s_algorithm(workers: int, kind: str) -> None:
    expected = simulated(kind, workers)
    everyone = ranks(workers, kind)
    for r in everyone:
        assert r[kind, "frozen"] == (True, STEPS // 2 + 1, STEPS // 2 + 1)
        for step in range(STEPS):
            assert close(r[kind][step], expected[step]), step
            assert all(np.array_equal(a, b) for a, b in zip(r[kind][step], everyone[0][kind][step], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_step_sends_a_thirtieth_of_a_dense_one(kind: str) -> None:
    steps = STEPS - STEPS // 2 - 1
    large = 40 * 61 + 61 * 50
    for r in ranks(2, kind):
        # Signs and scales of half of the elements to and from the owner, and 64 bytes of headers; the rest is fp32.
        small = sum(p.numel() for p in net().parameters()) - large
        assert r[kind, "sent"] / steps < large / 8 * 1.3 + 4 * small + 200


@RUNS
def test_a_resumed_run_has_the_same_bits_and_one_rank_owes_the_mean_of_the_errors(workers: int, kind: str) -> None:
    for r in ranks(workers, kind):
        for own, again in zip(r[kind][STEPS // 2 + 1 :], r[kind, "resumed"], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(own, again, strict=True))
        assert all(np.allclose(kept, owed, rtol=1e-5, atol=1e-9) for kept, owed in r[kind, "owed"])
        assert max(np.abs(owed).max() for _, owed in r[kind, "owed"]) > 0


@RUNS
def test_a_bad_gradient_of_one_rank_skips_the_step_on_all(workers: int, kind: str) -> None:
    for r in ranks(workers, kind):
        (first, bad, last), skipped, done, _ = r[kind, "bad"]
        assert (skipped, done) == (1, FREEZE + 3)
        assert all(np.array_equal(a, b) for a, b in zip(first, bad, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(bad, last, strict=True))
        assert all(np.isfinite(values).all() for values in last)


SAYS = {
    "freeze": "freeze_step=0; give a whole number of steps from 1 on",
    "other model": "the optimizer and the model differ in ",
    "no DDP": "attach takes a model in DistributedDataParallel, got Sequential; wrap it first: "
    "model = DistributedDataParallel(model)",
    **{
        f"{name}, {kind}": f"this state {says}, this OneBit{kind.title()} has freeze_step={FREEZE + 1}; {fix}"
        for kind in KINDS
        for name, says, fix in (
            ("other freeze", f"is of freeze_step={FREEZE}", f"make it with freeze_step={FREEZE}"),
            ("no freeze", "names no freeze_step", "load the state_dict() of a 1-bit optimizer"),
        )
    },
    "16 bits": "a parameter is torch.bfloat16; 1-bit optimizers take fp32 ones",
}


@pytest.mark.parametrize("mistake", SAYS)
def test_mistakes_are_named(mistake: str) -> None:
    assert all(r[mistake].startswith(SAYS[mistake]) for r in ranks(2, KINDS[0]))


@pytest.mark.parametrize("when", ["warm", "frozen"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scaler_is_refused_before_a_weight_changes(kind: str, when: str) -> None:
    for r in ranks(2, kind):
        assert [said.partition(" on one rank")[0] for said in r[f"scaler, {kind}, {when}"]] == ["a GradScaler skips steps"] * 2


class Branches(nn.Module):
    """Three layers; a step uses the first and those that it names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.always, self.sometimes, self.late = (nn.Linear(40, 61) for _ in range(3))
        self.used: tuple[str, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the outputs."""
        return self.always(x) + sum(getattr(self, name)(x) for name in self.used)


def branches(rank: int, workers: int) -> dict[str, Any]:
    """``sometimes`` has its first gradient in the last step before the freeze, from rank 0 alone; ``late`` after it."""
    seen: dict[str, Any] = {}
    for kind in KINDS:
        model = DDP(Branches(), find_unused_parameters=True)
        optimizer = made(kind, model, model=model, freeze_step=FREEZE, block=BLOCK)
        late = [p.detach().clone() for p in model.module.late.parameters()]
        bias, rows = model.module.sometimes.bias, []
        for step in range(FREEZE + 4):
            only_there = rank == 0 or step > FREEZE
            model.module.used = ("sometimes",) * (step >= FREEZE - 1 and only_there) + ("late",) * (step > FREEZE + 1)
            before = bias.detach().clone()
            train(model, optimizer, rank, range(step, step + 1))
            state = optimizer.state[bias]
            if step >= FREEZE:
                momentum = state["exp_avg"] / (1 - BETAS[0] ** (step - FREEZE + 2))
                root = (state["exp_avg_sq"] / (1 - BETAS[1])).sqrt()
                rows.append(((before - bias).detach().numpy(), (LR * momentum / (root + EPS)).numpy()))
        seen[kind] = [p.detach().numpy() for p in model.parameters()], rows
        seen[kind, "late"] = [torch.equal(*pair) for pair in zip(model.module.late.parameters(), late, strict=True)]
        seen[kind, "trained"] = all(p.grad is not None and p.grad.any() for p in model.module.late.parameters())
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_without_a_gradient_before_the_freeze_stays_as_it_is(kind: str) -> None:
    first, *others = launch_once(branches, 2)
    for r in (first, *others):
        assert r[kind, "late"] == [True, True] and r[kind, "trained"]
        assert all(np.isfinite(a).all() and np.array_equal(a, b) for a, b in zip(r[kind][0], first[kind][0], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_variance_of_fewer_steps_than_the_freeze_is_corrected_for_its_own(kind: str) -> None:
    for r in launch_once(branches, 2):
        for moved, expected in r[kind][1]:
            assert np.abs(expected).max() > 0 and close([moved], [expected], 1e-3)


def digits(rank: int, workers: int) -> dict[str, float]:
    """Held-out accuracy of a small network on digits after 150 steps, half as many examples a rank.

    Pixels have noise: the frozen variance of one that hardly ever has a gradient makes signs explode, a limit of the method.
    """
    data = load("digits")
    x, y = torch.as_tensor(data.train_x).flatten(1).float(), torch.as_tensor(data.train_y)
    seen = {}
    for name in ("adam", "one bit adam", "lamb", "one bit lamb"):
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(x.shape[1], 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10)))
        numbers: dict[str, Any] = {"lr": 2e-3} if "adam" in name else {"lr": 2e-2}
        if "one bit" in name:
            numbers |= {"model": model, "freeze_step": 30}
        kind = {"adam": torch.optim.Adam, "one bit adam": paceline.OneBitAdam, "lamb": paceline.LAMB}.get(
            name, paceline.OneBitLamb
        )
        optimizer = kind(model.module.named_parameters(), **numbers)
        draw = torch.Generator().manual_seed(5)
        for _ in range(150):
            rows = torch.randint(0, len(x), (64,), generator=draw)[rank::workers]
            optimizer.zero_grad()
            noise = 0.5 * torch.randn(64, x.shape[1], generator=draw)[rank::workers]
            nn.functional.cross_entropy(model(x[rows] + noise), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            out = model.module(torch.as_tensor(data.test_x).flatten(1).float()).argmax(1)
        seen[name] = float((out == torch.as_tensor(data.test_y)).float().mean())
    return seen


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_what_the_plain_optimizer_learns(kind: str) -> None:
    (accuracy, *_) = launch_once(digits, 2)
    assert accuracy[kind] > 0.9, accuracy
    # Of 359 examples: twice the standard error of a difference at 95 %.
    assert accuracy[f"one bit {kind}"] > accuracy[kind] - 0.033, accuracy
