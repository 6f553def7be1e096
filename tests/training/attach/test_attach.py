"""``attach``: what it refuses, what it keeps dense, and that it lives with whatever else a DDP script does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import oracle
from distributed import launch_once
from paceline.errors import UserError
from paceline.training.attach import bucketing as groups_module
from paceline.training.attach.attach import attach

Grads = dict[str, np.ndarray]


class Net(nn.Module):
    """Four linear layers; ``c`` is skipped on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(31, 61), nn.Linear(61, 43)
        self.c, self.d = nn.Linear(43, 47), nn.Linear(47, 7)
        self.skip = nn.Linear(43, 47)
        self.skipping = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.b(torch.tanh(self.a(x))))
        return self.d(torch.tanh(self.skip(x) if self.skipping else self.c(x)))


def net(frozen: tuple[str, ...] = (), skip: bool = False) -> Net:
    torch.manual_seed(2)
    model = Net()
    model.skipping = skip
    if not skip:
        del model.skip
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(frozen)) if frozen else None
    return model


def loss(model: nn.Module, rank: int, step: int, poison: str = "") -> torch.Tensor:
    """``poison`` names a tensor whose gradient becomes NaN or infinite on this rank."""
    g = torch.Generator().manual_seed(50 * step + rank)
    x = torch.randn(5, 31, generator=g) * (1 + rank)
    out = nn.functional.cross_entropy(model(x), torch.randint(0, 7, (5,), generator=g))
    if poison:
        name, _, value = poison.partition("=")
        p = dict(getattr(model, "module", model).named_parameters())[name]
        out = out + Poison.apply(p, float(value or "nan"))
    return out


class Poison(torch.autograd.Function):
    """Zero forward; one bad element backward."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, value: float) -> torch.Tensor:
        ctx.shape, ctx.value = p.shape, value
        return p.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        bad = torch.zeros(ctx.shape)
        bad.view(-1)[-1] = ctx.value
        return bad, None


def grads(model: nn.Module) -> Grads:
    module = getattr(model, "module", model)
    return {n: p.grad.numpy().copy() for n, p in module.named_parameters() if p.grad is not None}


def local_grads(rank: int, step: int, **options: Any) -> Grads:
    model = net(**options)
    loss(model, rank, step).backward()
    return grads(model)


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except UserError as error:
        return str(error)
    return "no error"


def behaviours(rank: int, workers: int) -> dict[str, Any]:
    """Everything below looks at this one run."""
    seen: dict[str, Any] = {"local": [local_grads(rank, step) for step in range(6)]}

    def steps(
        count: int = 1, cap: float = 25, warm: bool = True, fused: bool = True, ddp: Any = None, **options: Any
    ) -> list[Grads]:
        groups_module.FUSE_BYTES = 4 << 20 if fused else 1
        model = DDP(net(), bucket_cap_mb=cap, **(ddp or {}))
        hook = attach(model, **options)
        if warm:
            loss(model, rank, 0).backward()
            hook.step = 0
            hook._layouts.clear()
        result = []
        for step in range(count):
            model.zero_grad()
            loss(model, rank, step).backward()
            result.append(grads(model))
        seen["groups"] = [set(names) for names in hook._layouts]
        groups_module.FUSE_BYTES = 4 << 20
        return result

    seen["plain"] = steps(2, seed=4)
    seen["again"] = steps(2, seed=4)
    seen["other seed"] = steps(2, seed=5)
    seen["small buckets"] = steps(2, cap=0.008, seed=4)
    seen["tensor buckets"] = steps(2, cap=1e-5, seed=4)
    seen["views"] = steps(2, seed=4, ddp={"gradient_as_bucket_view": True})
    seen["static graph"] = steps(2, seed=4, ddp={"static_graph": True})
    seen["unfused"] = steps(2, cap=0.008, seed=4, fused=False)
    seen["unfused groups"] = seen["groups"]
    seen["unsettled"] = steps(2, warm=False, seed=4)
    seen["pulled dense"] = steps(2, seed=4, compress_pull=False, exchange="parameter_server")
    seen["unclipped"] = steps(1, seed=4, clip=None)
    seen["all ternary but the last"] = steps(1, seed=4, min_elements=0)
    seen["b by name"] = steps(1, seed=4, dense=["b.*"])

    model = DDP(net())
    hook = attach(model, seed=4, min_elements=100, dense=["b.*"])
    seen["rule"] = str(hook)
    seen["errors"] = {
        "not DDP": message(lambda: attach(net())),  # type: ignore[arg-type]
        "compression": message(lambda: attach(DDP(net()), "terngard")),
        "exchange": message(lambda: attach(DDP(net()), "dense", exchange="shraded")),
        "nobody pulls": message(lambda: attach(DDP(net()), "terngrad", exchange="ring", compress_pull=False)),
        "cannot carry": message(lambda: attach(DDP(net()), "terngrad", exchange="allreduce")),
    }

    model = DDP(net())
    hook = attach(model, seed=4)
    loss(model, rank, 0).backward()
    hook.step = 0
    model.zero_grad()
    with model.no_sync():
        loss(model, rank, 0).backward()
        loss(model, rank, 1).backward()
    before = hook.step
    loss(model, rank, 2).backward()
    seen["accumulated"], seen["accumulated steps"] = grads(model), (before, hook.step)

    model = DDP(net(frozen=("a", "c.bias")))
    hook = attach(model, seed=4)
    loss(model, rank, 0).backward()
    hook.step = 0
    model.zero_grad()
    loss(model, rank, 0).backward()
    seen["frozen"] = grads(model)

    model = DDP(net(skip=True), find_unused_parameters=True)
    hook = attach(model, seed=4)
    seen["unused"] = []
    for step in range(2):
        model.zero_grad()
        loss(model, rank, step).backward()
        seen["unused"].append(grads(model))
    seen["unused steps"] = hook.step

    groups_module.FUSE_BYTES = 4 << 20
    model = DDP(net())
    hook = attach(model, seed=4)
    hook.load_state_dict({**hook.state_dict(), "step": 1, "seed": 9, "nonfinite_steps": 3})
    seen["restored"] = hook.state_dict()
    return seen


def poisoned(rank: int, workers: int, poisons: list[tuple[str, float]]) -> list[Any]:
    """Gradients and counts of three steps, of which the second has a bad gradient: in one tensor, by size of a bucket."""
    seen = []
    for poison, cap in poisons:
        groups_module.FUSE_BYTES = 4 << 20 if cap == ONE else 1
        model = DDP(net(), bucket_cap_mb=cap)
        hook = attach(model, seed=4)
        loss(model, rank, 0).backward()
        hook.step = 0
        rows = []
        for step in range(3):
            model.zero_grad()
            loss(model, rank, step, poison if step == 1 and rank == workers - 1 else "").backward()
            rows.append((grads(model), hook.meter.nonfinite_steps))
        seen.append(rows)
    return seen


def alone(rank: int, workers: int) -> dict[str, Any]:
    """One worker."""
    seen: dict[str, Any] = {"local": [local_grads(rank, 0)]}
    for compression, exchange in (("dense", "allreduce"), ("dense", "sharded"), ("bf16", "sharded"), ("terngrad", "sharded")):
        model = DDP(net())
        hook = attach(model, compression, exchange=exchange, seed=4)
        loss(model, rank, 0).backward()
        seen[f"{compression}, {exchange}"] = grads(model), hook.meter.sent_bytes
    return seen


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return launch_once(behaviours, 3)


def starts(frozen: tuple[str, ...] = (), skip: bool = False) -> dict[str, int]:
    start, found = 0, {}
    for name, p in net(frozen, skip).named_parameters():
        if p.requires_grad:
            found[name] = start
            start += p.numel()
    return found


def draws_at(packed: tuple[str, ...], groups: Any = None, **options: Any) -> dict[str, int]:
    """Where each compressed tensor's draws begin: at the smallest index of its group's, one after the other in model order."""
    where, found = starts(**options), {}
    sizes = {name: p.numel() for name, p in net(**options).named_parameters()}
    for group in groups or [set(where)]:
        mine = [name for name in where if name in packed and name in group]
        at = min((where[name] for name in mine), default=0)
        for name in mine:
            found[name] = at
            at += sizes[name]
    return found


def is_mean(result: np.ndarray, gradients: list[np.ndarray]) -> bool:
    """Whether it is the mean, added in whatever order."""
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    room = 2.0**-23 * np.sum(np.abs(gradients), axis=0, dtype=np.float64)
    return bool((np.abs(result - exact) <= room + 1e-38).all())


def ternary(gradients: list[np.ndarray], start: int, step: int = 0, clip: float | None = oracle.CLIP) -> np.ndarray:
    return oracle.terngrad_mean([g.reshape(-1) for g in gradients], 4, step, start, clip).reshape(gradients[0].shape)


def is_ternary(mean: np.ndarray, workers: int = 3) -> bool:
    return len(np.unique(mean)) <= 2 * workers + 1


def same(a: Grads, b: Grads) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n], equal_nan=True) for n in a)


TERNARY = ("a.weight", "b.weight", "c.weight")
DENSE = ("a.bias", "b.bias", "c.bias", "d.weight", "d.bias")


def check(
    ranks: Any,
    results: list[Grads],
    packed: tuple[str, ...],
    step: int = 0,
    clip: float | None = oracle.CLIP,
    groups: Any = None,
) -> None:
    """Every rank holds the plain formula: ternary for ``packed``, the mean for the others; the same bits on all."""
    at = draws_at(packed, groups)
    for name in starts():
        own = [r["local"][step][name] for r in ranks]
        for result in results:
            assert np.array_equal(result[name], results[0][name]), name
        if name in packed:
            assert np.array_equal(results[0][name], ternary(own, at[name], step, clip)), name
        else:
            assert is_mean(results[0][name], own), name


@pytest.mark.long
def test_the_same_seed_repeats_bit_for_bit_and_another_differs(ranks):
    for r in ranks:
        for step in range(2):
            assert same(r["plain"][step], r["again"][step])
            for name in TERNARY:
                assert not np.array_equal(r["plain"][step][name], r["other seed"][step][name])
            for name in DENSE:
                assert np.array_equal(r["plain"][step][name], r["other seed"][step][name])
        assert not np.array_equal(r["plain"][0]["b.weight"], r["plain"][1]["b.weight"])


@pytest.mark.parametrize("layout", ["small buckets", "tensor buckets", "views", "static graph"])
def test_the_result_does_not_depend_on_the_layout_of_buckets(ranks, layout):
    for r in ranks:
        assert all(same(a, b) for a, b in zip(r["plain"], r[layout], strict=True))


def test_buckets_beyond_the_fused_size_travel_in_groups_of_their_own(ranks):
    groups = ranks[0]["unfused groups"]
    assert len([group for group in groups if group & set(TERNARY)]) > 1
    for step in range(2):
        check(ranks, [r["unfused"][step] for r in ranks], TERNARY, step, groups=groups)


def test_the_first_step_before_ddp_settles_its_buckets_is_the_same(ranks):
    for r in ranks:
        assert all(same(a, b) for a, b in zip(r["plain"], r["unsettled"], strict=True))


def test_by_default_the_last_layer_and_small_tensors_are_dense(ranks):
    for step in range(2):
        check(ranks, [r["plain"][step] for r in ranks], TERNARY, step)


def test_compressed_one_way_is_the_same_for_terngrad(ranks):
    for step in range(2):
        check(ranks, [r["pulled dense"][step] for r in ranks], TERNARY, step)


def test_clip_none_takes_the_largest_magnitude(ranks):
    check(ranks, [r["unclipped"][0] for r in ranks], TERNARY, clip=None)


def test_min_elements_and_patterns_change_what_is_dense(ranks):
    everything = (*TERNARY, "a.bias", "b.bias", "c.bias")
    check(ranks, [r["all ternary but the last"][0] for r in ranks], everything)
    check(ranks, [r["b by name"][0] for r in ranks], ("a.weight", "c.weight"))


def test_the_rule_can_be_printed(ranks):
    assert ranks[0]["rule"].splitlines() == [
        "TernGrad: stochastic ternary gradients over sharded; dense: the last layer, tensors of fewer than 100 elements, "
        "tensors named b.*",
        "  a.bias: fewer than 100 elements",
        "  b.weight: named by the user",
        "  b.bias: named by the user",
        "  c.bias: fewer than 100 elements",
        "  d.weight: last layer",
        "  d.bias: last layer",
    ]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("not DDP", "got Net; wrap it first"),
        ("compression", "unknown compression 'terngard'; nearest: terngrad"),
        ("exchange", "did you mean sharded?"),
        ("nobody pulls", "exchange 'ring' has no pull to send as fp32; legal: sharded"),
        (
            "cannot carry",
            "exchange 'allreduce' cannot carry terngrad: packed codes cannot be added; legal for terngrad: sharded",
        ),
    ],
)
def test_attach_says_what_is_wrong(ranks, mistake, said):
    assert said in ranks[1]["errors"][mistake]


def test_accumulated_gradients_are_exchanged_once(ranks):
    at = draws_at(TERNARY)
    for name in starts():
        own = [(r["local"][0][name] + r["local"][1][name]) + r["local"][2][name] for r in ranks]
        for r in ranks:
            result = r["accumulated"][name]
            assert np.array_equal(result, ternary(own, at[name])) if name in TERNARY else is_mean(result, own), name
    assert all(r["accumulated steps"] == (0, 1) for r in ranks)


def test_frozen_parameters_are_left_out(ranks):
    where = starts(frozen=("a", "c.bias"))
    assert "a.weight" not in where and "c.bias" not in where
    for r in ranks:
        assert set(r["frozen"]) == set(where)
        at = draws_at(TERNARY, frozen=("a", "c.bias"))
        for name in where:
            own, result = [q["local"][0][name] for q in ranks], r["frozen"][name]
            assert np.array_equal(result, ternary(own, at[name])) if name in TERNARY else is_mean(result, own), name


def test_unused_parameters_are_no_hindrance(ranks):
    for r in ranks:
        assert all(same(a, b) for a, b in zip(r["unused"], ranks[0]["unused"], strict=True))
        assert r["unused steps"] == 2
        for step in range(2):
            assert is_ternary(r["unused"][step]["a.weight"]) and is_ternary(r["unused"][step]["b.weight"])
            assert not np.any(r["unused"][step].get("c.weight", 0))


POISONS = ("a.weight", "d.weight", "a.bias", "b.weight=inf", "c.weight=-inf", "d.bias=inf")
ONE, SEVERAL = 25, 0.008
"""Megabytes of a bucket: one bucket, or several."""
DAILY = [("a.weight", ONE), ("d.bias=inf", ONE), ("a.bias", SEVERAL), ("c.weight=-inf", SEVERAL), ("d.weight", SEVERAL)]


def pairs(*caps: float) -> list[Any]:
    """Return every tensor with each size of a bucket."""
    return [
        pytest.param(poison, cap, marks=[] if (poison, cap) in DAILY else [pytest.mark.full])
        for cap in caps
        for poison in POISONS
    ]


def of_poisoned(poison: str, cap: float) -> list[Any]:
    """Return what each rank has seen. The cases of every day share a launch, and the others."""
    daily = (poison, cap) in DAILY
    cases = tuple((one, of) for one in POISONS for of in (ONE, SEVERAL) if ((one, of) in DAILY) == daily)
    return [seen[cases.index((poison, cap))] for seen in launch_once(poisoned, 3, poisons=cases)]


@pytest.mark.parametrize(("poison", "cap"), pairs(ONE, SEVERAL))
def test_a_nonfinite_gradient_on_one_rank_is_counted_and_passed_through(ranks, poison, cap):
    name, _, value = poison.partition("=")
    rows = of_poisoned(poison, cap)
    for row in rows:
        assert [count for _, count in row] == [0, 1, 1]
        assert all(same(a, b) for (a, _), (b, _) in zip(row, rows[0], strict=True))
    groups = ranks[0]["unfused groups"] if cap != ONE else None
    if groups is not None and some_left_before(name, groups):
        assert all(np.isnan(values).all() for values in rows[0][1][0].values())
    else:
        check_dense_but_for_one(ranks, rows[0][1][0], name, value)
    for step in (0, 2):
        check(ranks, [row[step][0] for row in rows], TERNARY, step, groups=groups)


def some_left_before(name: str, groups: list[set[str]]) -> bool:
    """Whether a ternary tensor is in a group before that of ``name``; the last tensors of the model leave first."""
    where = starts()
    (own,) = (max(where[n] for n in group) for group in groups if name in group)
    return any(max(where[n] for n in group) > own and group & set(TERNARY) for group in groups)


def test_some_of_the_poisoned_tensors_leave_with_the_first_group_and_some_later(ranks):
    groups = ranks[0]["unfused groups"]
    assert {some_left_before(poison.partition("=")[0], groups) for poison in POISONS} == {True, False}
    assert {some_left_before(poison.partition("=")[0], groups) for poison, cap in DAILY if cap != ONE} == {True, False}


def check_dense_but_for_one(ranks: Any, result: Grads, name: str, value: str) -> None:
    """Every gradient is the mean, and of ``name`` all but the bad element."""
    bad = result[name].reshape(-1)
    assert not np.isfinite(bad[-1]) and (value == "" or bad[-1] == float(value))
    assert np.isfinite(bad[:-1]).all()
    if name in TERNARY:
        assert is_mean(bad[:-1], [r["local"][1][name].reshape(-1)[:-1] for r in ranks])


@pytest.mark.parametrize(("poison", "cap"), pairs(ONE))
def test_a_nonfinite_step_is_dense_in_every_tensor(ranks, poison, cap):
    # In one bucket the flag is there before anything is encoded. With several, those before the bad one have gone.
    name = poison.partition("=")[0]
    result = of_poisoned(poison, cap)[0][1][0]
    for other in starts():
        if other != name:
            assert is_mean(result[other], [r["local"][1][other] for r in ranks]), other


def test_a_nonfinite_gradient_in_an_early_bucket_makes_the_later_ones_dense(ranks):
    result = of_poisoned("d.weight", SEVERAL)[0][1][0]
    for other in ("b.weight", "a.weight"):
        assert is_mean(result[other], [r["local"][1][other] for r in ranks]), other


def test_the_state_of_a_hook_is_restored(ranks):
    restored = ranks[0]["restored"]
    assert {key: restored[key] for key in ("step", "seed", "nonfinite_steps")} == {"step": 1, "seed": 9, "nonfinite_steps": 3}


@pytest.mark.parametrize("way", ["dense, allreduce", "dense, sharded", "bf16, sharded", "terngrad, sharded"])
def test_one_worker_sends_nothing(way):
    (result,) = launch_once(alone, 1)
    seen, sent = result[way]
    assert sent == 0
    at = draws_at(TERNARY)
    for name in starts():
        own = result["local"][0][name]
        if way.startswith("terngrad") and name in TERNARY:
            assert np.array_equal(seen[name], ternary([own], at[name])) and is_ternary(seen[name], 1)
        elif way.startswith("dense"):
            assert np.array_equal(seen[name], own)
        else:
            assert np.allclose(seen[name], own, rtol=2**-8, atol=1e-30)
