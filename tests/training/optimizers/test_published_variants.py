"""Every variant against an implementation by other people, in float64, over twenty steps of a decaying learning rate."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import paceline

STEPS, RATE = 20, 0.5
SHAPES = {"a.weight": (16, 8), "b.weight": (5, 3, 2, 2), "a.bias": (16,)}
Run = Callable[[dict[str, Tensor], list[dict[str, Tensor]]], dict[str, Tensor]]


def problem() -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Weights, and the gradients of every step: the same for all, whatever the weights become."""
    generator = torch.Generator().manual_seed(7)

    def one() -> dict[str, Tensor]:
        return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}

    return one(), [one() for _ in range(STEPS)]


def rate(step: int) -> float:
    """Polynomial decay of power 2, as in both papers' recipes."""
    return RATE * (1 - step / STEPS) ** 2


def in_torch(make: Callable[[Any], torch.optim.Optimizer], named: bool = False) -> Run:
    def run(start: dict[str, Tensor], gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        weights = {name: value.clone().requires_grad_() for name, value in start.items()}
        optimizer = make(list(weights.items()) if named else list(weights.values()))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step) / RATE)
        for given in gradients:
            for name, value in weights.items():
                value.grad = given[name].clone()
            optimizer.step()
            schedule.step()
        return {name: value.detach() for name, value in weights.items()}

    return run


def in_optax(make: Callable[[Any], Any]) -> Run:
    def run(start: dict[str, Tensor], gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        import jax
        import optax

        jax.config.update("jax_enable_x64", True)
        arrays = lambda tensors: {name: jax.numpy.asarray(value.numpy()) for name, value in tensors.items()}  # noqa: E731
        rates = jax.numpy.asarray([rate(step) for step in range(STEPS)])  # optax.polynomial_schedule divides in fp32
        weights, transform = arrays(start), make(lambda step: rates[step])
        state = transform.init(weights)
        update = jax.jit(transform.update)
        for given in gradients:
            change, state = update(arrays(given), state, weights)
            weights = optax.apply_updates(weights, change)
        return {name: torch.tensor(value.tolist(), dtype=torch.float64) for name, value in weights.items()}

    return run


def ours(kind: str, **options: Any) -> Run:
    return in_torch(lambda params: getattr(paceline, kind)(params, lr=RATE, **options), named=True)


def without_decay(make: Callable[..., Any], decay: float, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """``make`` with decay on the matrices and none on the bias: such peers take no ratio there either."""
    return lambda p: make(
        [
            {"params": [t for t in p if t.ndim > 1], "weight_decay": decay},
            {"params": [t for t in p if t.ndim == 1], "weight_decay": 0},
        ],
        lr=RATE,
        **options,
    )


def lars_paper(eps: float) -> Run:
    """Algorithm 1 of arXiv:1708.03888; with MLPerf's epsilon in the denominator."""

    def run(start: dict[str, Tensor], gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        weights = {name: value.clone() for name, value in start.items()}
        momentum = {name: torch.zeros_like(value) for name, value in start.items()}
        for step, given in enumerate(gradients):
            for name, w in weights.items():
                adapted = w.ndim > 1
                beta = 1e-2 if adapted else 0.0
                local = 0.001 * w.norm() / (given[name].norm() + beta * w.norm() + eps) if adapted else 1.0
                momentum[name] = 0.9 * momentum[name] + rate(step) * local * (given[name] + beta * w)
                weights[name] = w - momentum[name]
        return weights

    return run


def nvlamb(start: dict[str, Tensor], gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """apex FusedLAMB as its kernel's comments say: clip by the global norm, corrected moments, ratio of norms."""
    weights = {name: value.clone() for name, value in start.items()}
    m, v = ({name: torch.zeros_like(value) for name, value in start.items()} for _ in range(2))
    for step, given in enumerate(gradients):
        norm = torch.cat([g.flatten() for g in given.values()]).norm()
        for name, w in weights.items():
            g = given[name] / max(1.0, float(norm) / 1.0)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            u = (m[name] / (1 - 0.9 ** (step + 1))) / ((v[name] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-6)
            if w.ndim > 1:
                u = u + 1e-2 * w
                u = u * w.norm() / u.norm()
            weights[name] = w - rate(step) * u
    return weights


def peer(module: str, name: str) -> Any:
    return getattr(pytest.importorskip(module, reason=f"needs {module}: pip install {module.partition('.')[0]}"), name)


def timm(module: str, name: str) -> Any:
    """A class of timm's optimizer files, which need torch alone; timm itself needs torchvision, so it is not imported."""
    found = importlib.util.find_spec("timm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs timm: pip install --no-deps timm")
    package = "optimizer_files_of_timm"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [f"{found.submodule_search_locations[0]}/optim"]
    return getattr(importlib.import_module(f"{package}.{module}"), name)


def timm_inside(eps: float) -> Run:
    """timm's LARS with the rate inside the momentum, as in the paper: in its trust coefficient, beside a rate of 1."""

    def run(start: dict[str, Tensor], gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        weights = {name: value.clone().requires_grad_() for name, value in start.items()}
        optimizer = timm("lars", "Lars")(list(weights.values()), lr=1.0, momentum=0.9, weight_decay=1e-2, eps=eps)
        for step, given in enumerate(gradients):
            optimizer.param_groups[0]["trust_coeff"] = 0.001 * rate(step)
            for name, value in weights.items():
                value.grad = given[name].clone()
            optimizer.step()
        return {name: value.detach() for name, value in weights.items()}

    return run


def optax_lamb(schedule: Any) -> Any:
    import optax

    adapt = {key: len(shape) > 1 for key, shape in SHAPES.items()}
    return optax.chain(
        optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-6),
        optax.add_decayed_weights(1e-2, mask=adapt),
        optax.masked(optax.scale_by_trust_ratio(), adapt),
        optax.scale_by_learning_rate(schedule),
    )


def optax_lars(schedule: Any) -> Any:
    import optax

    adapt = {key: len(shape) > 1 for key, shape in SHAPES.items()}
    return optax.lars(schedule, 1e-2, adapt, trust_ratio_mask=adapt)


CASES: dict[str, tuple[Run, Callable[[], Run]]] = {
    "LAMB paper, optax with the default exclusions": (ours("LAMB"), lambda: in_optax(optax_lamb)),
    "LAMB paper, optax.lamb": (
        ours("LAMB", exclude="none"),
        lambda: in_optax(lambda schedule: __import__("optax").lamb(schedule, weight_decay=1e-2)),
    ),
    "LAMB paper-v3, torch_optimizer": (
        ours("LAMB", variant="paper-v3", exclude="none", bounds=(0.0, 10.0)),
        lambda: in_torch(lambda p: peer("torch_optimizer", "Lamb")(p, lr=RATE, weight_decay=0.01)),
    ),
    "LAMB paper-v3, pytorch_optimizer": (
        ours("LAMB", variant="paper-v3", exclude="none", bounds=(0.0, 10.0), eps=1e-9),  # theirs also adds eps to |u|
        lambda: in_torch(
            lambda p: peer("pytorch_optimizer", "Lamb")(
                p, lr=RATE, weight_decay=0.01, weight_decouple=False, adam_debias=True, eps=1e-9
            )
        ),
    ),
    "LAMB paper, timm": (
        ours("LAMB"),
        lambda: in_torch(without_decay(timm("lamb", "Lamb"), 1e-2, max_grad_norm=None)),
    ),
    "LAMB paper-v3, timm": (
        ours("LAMB", variant="paper-v3"),
        lambda: in_torch(without_decay(timm("lamb", "Lamb"), 1e-2, max_grad_norm=None, bias_correction=False)),
    ),
    "LAMB nvlamb, timm": (
        ours("LAMB", variant="nvlamb"),
        lambda: in_torch(without_decay(timm("lamb", "Lamb"), 1e-2)),
    ),
    "LAMB nvlamb, apex written down": (ours("LAMB", variant="nvlamb"), lambda: nvlamb),
    "LARS joint, optax": (ours("LARS", variant="joint", weight_decay=1e-2), lambda: in_optax(optax_lars)),
    "LARS joint with Nesterov, optax": (
        ours("LARS", variant="joint", weight_decay=1e-2, nesterov=True, exclude="none"),
        lambda: in_optax(lambda schedule: __import__("optax").lars(schedule, 1e-2, nesterov=True)),
    ),
    "LARS lr-outside, torch_optimizer": (
        ours("LARS", variant="lr-outside", weight_decay=1e-2),
        lambda: in_torch(without_decay(peer("torch_optimizer", "LARS"), 1e-2, momentum=0.9, trust_coefficient=0.001)),
    ),
    "LARS lr-outside, pytorch_optimizer": (
        ours("LARS", variant="lr-outside", weight_decay=1e-2, eps=0.0),
        lambda: in_torch(without_decay(peer("pytorch_optimizer", "LARS"), 1e-2)),
    ),
    "LARS lr-outside, timm": (
        ours("LARS", variant="lr-outside", weight_decay=1e-2),
        lambda: in_torch(without_decay(timm("lars", "Lars"), 1e-2, momentum=0.9)),
    ),
    "LARS lr-outside with Nesterov, timm": (
        ours("LARS", variant="lr-outside", weight_decay=1e-2, nesterov=True),
        lambda: in_torch(without_decay(timm("lars", "Lars"), 1e-2, momentum=0.9, nesterov=True)),
    ),
    "LARS paper, timm": (ours("LARS", weight_decay=1e-2, exclude="none"), lambda: timm_inside(0.0)),
    "LARS mlperf, timm": (ours("LARS", variant="mlperf", weight_decay=1e-2, exclude="none"), lambda: timm_inside(1e-7)),
    "LARS paper, written down": (ours("LARS", weight_decay=1e-2), lambda: lars_paper(0.0)),
    "LARS mlperf, written down": (ours("LARS", variant="mlperf", weight_decay=1e-2), lambda: lars_paper(1e-7)),
}
"""Name: ours and theirs. Two peers clamp |w| to 10 (``bounds``); some leave out what has no decay."""


@pytest.mark.everyday(
    "LAMB paper, timm",
    "LAMB nvlamb, apex written down",
    "LARS joint, optax",
    "LARS lr-outside, timm",
    "LARS paper, written down",
    "LARS mlperf, written down",
)
@pytest.mark.parametrize("name", CASES)
def test_the_variant_is_the_published_one(name: str) -> None:
    mine, theirs = CASES[name]
    start, gradients = problem()
    expected, found = theirs()(start, gradients), mine(start, gradients)
    for key, value in expected.items():
        moved = float((value - start[key]).norm())
        assert moved > 1e-3, "a test that moves nothing shows nothing"
        assert float((found[key] - value).norm()) <= 1e-7 * moved, key


def test_the_variants_differ() -> None:
    """By far more than rounding: a recipe for one is not for another."""
    start, gradients = problem()
    for kind, names in (("LARS", ("paper", "joint", "lr-outside")), ("LAMB", ("paper", "paper-v3", "nvlamb"))):
        ends = [ours(kind, variant=name, weight_decay=0.1)(start, gradients)["a.weight"] for name in names]
        for i, one in enumerate(ends):
            for other in ends[i + 1 :]:
                assert float((one - other).norm()) > 1e-3 * float((one - start["a.weight"]).norm())


@pytest.mark.parametrize("name", ["LARS mlperf, written down", "LARS mlperf, timm"])
def test_the_epsilon_of_mlperf_is_seen_where_norms_are_small(name: str) -> None:
    """At norms near 1 it lies below what the cases can tell apart."""
    mine, theirs = CASES[name]
    start, gradients = problem()
    start = {key: 1e-5 * value for key, value in start.items()}
    gradients = [{key: 1e-5 * value for key, value in given.items()} for given in gradients]
    expected, found = theirs()(start, gradients), mine(start, gradients)
    without = CASES[name.replace("mlperf", "paper")][0](start, gradients)
    for key in ("a.weight", "b.weight"):
        moved = float((expected[key] - start[key]).norm())
        assert float((found[key] - expected[key]).norm()) <= 1e-7 * moved
        assert float((without[key] - expected[key]).norm()) > 1e-4 * moved, "the paper's has none"
