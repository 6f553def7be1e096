"""Every mistake is one clear error that says what is legal; nothing was changed by then."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from each_row import each_row
from paceline.errors import UserError

P = lambda *shape: nn.Parameter(torch.ones(shape or (2, 2)))  # noqa: E731


def flat() -> nn.Parameter:
    """As FullyShardedDataParallel marks what it joined."""
    parameter = P(8)
    parameter._fsdp_flattened = True
    return parameter


CASES: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "unknown variant": ("LARS", [P()], {"variant": "mlpref"}, "unknown LARS variant 'mlpref'; .* did you mean 'mlperf'"),
    "the other's variant": ("LAMB", [P()], {"variant": "lr-outside"}, "unknown LAMB .*; legal.*is one of LARS"),
    "no parameters": ("LAMB", [], {}, "LAMB got no parameters"),
    "an empty group": ("LARS", [{"params": [P()]}, {"params": []}], {}, "LARS: parameter group 1 is empty"),
    "a model": ("LARS", nn.Linear(2, 2), {}, "got a Linear; pass its named_parameters"),
    "no rule": ("LAMB", [P()], {"exclude": None}, "exclude=None; legal: a rule's name, a list of patterns, or a function"),
    "complex": ("LAMB", [nn.Parameter(torch.ones(2, dtype=torch.complex64))], {}, "complex64; .*view_as_real"),
    "flattened": ("LARS", [("net.flat", flat())], {}, "net.flat belongs to FullyShardedDataParallel.*fully_shard"),
    "negative lr": ("LARS", [P()], {"lr": -1.0}, r"lr=-1.0; legal: 0 or more, finite"),
    "NaN lr": ("LAMB", [P()], {"lr": float("nan")}, "lr=nan; legal"),
    "lr of two": ("LAMB", [P()], {"lr": torch.ones(2)}, "lr is a tensor of 2 numbers"),
    "infinite decay": ("LAMB", [P()], {"weight_decay": float("inf")}, "weight_decay=inf; legal"),
    "momentum of 1": ("LARS", [P()], {"momentum": 1.0}, "momentum=1.0; legal: 0 or more, below 1"),
    "beta of 1": ("LAMB", [P()], {"betas": (0.9, 1.0)}, "betas=1.0; legal: 0 or more, below 1"),
    "three betas": ("LAMB", [P()], {"betas": (0.9, 0.9, 0.9)}, "give two numbers"),
    "negative eps in a group": ("LAMB", [{"params": [P()], "eps": -1e-6}], {}, "eps=-1e-06; legal"),
    "a clip of zero": ("LAMB", [P()], {"max_grad_norm": 0.0}, "max_grad_norm=0.0; legal: above 0"),
    "bounds": ("LAMB", [P()], {"bounds": (2.0, 1.0)}, "bounds=.*0 <= lo < hi"),
    "Nesterov in the paper": ("LARS", [P()], {"nesterov": True}, "no Nesterov momentum.* mlperf, joint, lr-outside"),
    "unknown rule": ("LAMB", [P()], {"exclude": "biases"}, "unknown exclusion rule 'biases'; .* 'biases-and-norms'"),
    "patterns without names": ("LAMB", [P()], {"exclude": ["*.bias"]}, "the parameters have none; pass model.named_parameters"),
    "a pattern for nothing": ("LAMB", [("a.bias", P(2))], {"exclude": ["*.bais"]}, "matches no parameter; nearest names: a.b"),
    "two variants": ("LARS", [{"params": [P()]}, {"params": [P()], "variant": "joint"}], {}, "the variant .joint., .* .paper."),
    "a variant in the group": ("LAMB", [{"params": [P()], "variant": "nvlamb"}], {}, r"LAMB\(\.\.\., variant='nvlamb'\)"),
    "a list of variants": ("LARS", [P()], {"variant": ["paper"]}, r"unknown LARS variant \['paper'\]; legal"),
    "a number for foreach": ("LARS", [P()], {"foreach": 1}, "foreach=1; legal"),
    "a number for a group": ("LAMB", [P()], {"norm_group": 3}, "norm_group=3; legal: 'world', a group of ranks and None"),
    "words for maximize": ("LAMB", [P()], {"maximize": "yes"}, "maximize='yes'; legal: True and False"),
    "one beta": ("LAMB", [P()], {"betas": 0.9}, "betas=0.9; give two numbers"),
    "one bound": ("LAMB", [P()], {"bounds": 3}, "bounds=3; legal"),
    "a bound alone": ("LAMB", [P()], {"bounds": (3,)}, "bounds=.*; legal"),
    "a clip in words": ("LAMB", [P()], {"max_grad_norm": "x"}, "max_grad_norm='x'; legal: above 0"),
    "NaN lr in a tensor": ("LARS", [P()], {"lr": torch.tensor(float("nan"))}, "lr=nan; legal"),
    "negative lr in a tensor": ("LAMB", [P()], {"lr": torch.tensor(-1.0)}, "lr=-1.0; legal"),
    "text": ("LARS", "abc", {}, "LARS: .*one of the params is str; pass model.named_parameters"),
    "text for LAMB": ("LAMB", "abc", {}, "LAMB: .*one of the params is str; pass model.named_parameters"),
    "numbers": ("LAMB", [1, 2], {}, "one of the params is int"),
    "numbers in a group": ("LARS", [{"params": [1]}], {}, "one of the params is int"),
    "one tensor": ("LAMB", torch.ones(2), {}, "got one tensor for parameters"),
    "nothing": ("LAMB", None, {}, "got None for parameters"),
    "foreach": ("LARS", [P()], {"foreach": "yes"}, "foreach='yes'; legal: None, True and False"),
    "half a step": ("LARS", [P()], {"diagnostics_every": 1.5}, "diagnostics_every=1.5"),
    "Nesterov in a group": ("LARS", [{"params": [P()], "nesterov": True}], {}, "'paper' has no Nesterov.* these have it: mlp"),
    "misspelt": ("LAMB", [{"params": [P()], "weight_decays": 0.1}], {}, "'weight_decays', .* no option; .*'weight_decay'"),
    "of all": ("LAMB", [{"params": [P()], "max_grad_norm": 1.0}], {}, r"option of the whole optimizer; LAMB\(\.\.\., max_grad"),
    "diagnostics": ("LARS", [P()], {"diagnostics_every": -1}, "diagnostics_every=-1"),
}


@each_row("name", CASES)
def test_at_construction(name: str) -> None:
    kind, params, options, message = CASES[name]
    with pytest.raises(UserError, match=message):
        getattr(paceline, kind)(params, **options)


def test_a_group_may_carry_a_program_s_own_notes() -> None:
    optimizer = paceline.LAMB([{"params": [P()], "name": "head", "lr_scale": 0.5, "initial_lr": 1e-3}])
    assert optimizer.param_groups[0]["name"] == "head"


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
def test_sparse_gradients(kind: str) -> None:
    table, dense = nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)
    optimizer = getattr(paceline, kind)([*dense.named_parameters(), ("table", table.weight)])
    dense(table(torch.tensor([1, 2]))).sum().backward()
    before = copy.deepcopy([*dense.parameters(), table.weight])
    with pytest.raises(UserError, match=r"table has a sparse gradient.*sparse=False"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, [*dense.parameters(), table.weight], strict=True))


def changed(**options: Any) -> Any:
    """A state that fits, with another value in its group or its first tensor's state; None takes it out."""
    optimizer = trained("LAMB", (3, 2), (5,))
    saved = optimizer.state_dict()
    saved["state"] = {key: dict(state) for key, state in saved["state"].items()}
    for name, value in options.items():
        where = saved["state"][0] if name in saved["state"][0] else saved["param_groups"][0]
        where[name] = value
        if value is None:
            del where[name]
    optimizer.state_dict = lambda: saved
    return optimizer


class Saved:
    def __init__(self, state: Any) -> None:
        self.state_dict = lambda: state


def trained(kind: str, *shapes: tuple[int, ...], **options: Any) -> Any:
    optimizer = getattr(paceline, kind)([(f"w{i}", P(*shape)) for i, shape in enumerate(shapes)], **options)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (lambda: trained("LAMB", (2, 3), (5,)), r"the exp_avg of w0 is 2 x 3, the parameter 3 x 2"),
        (lambda: trained("LAMB", (3, 2)), r"groups of \[1\] tensors; this LAMB has \[2\]"),
        (lambda: trained("LAMB", (3, 2), (5,), variant="paper-v3"), "variant 'paper-v3', this LAMB of 'paper'"),
        (lambda: changed(exp_avg=3.0), "the exp_avg of w0 is 3.0, no tensor; it is not a state of LAMB"),
        (lambda: changed(step=None), "exp_avg, exp_avg_sq, no step; it is not a state of LAMB"),
        (lambda: changed(weight_decay=-1.0), "weight_decay=-1.0; legal: 0 or more"),
        (lambda: trained("LAMB", (3, 2), (5,), max_grad_norm=5.0), r"LAMB\(\.\.\., max_grad_norm=5.0\), this .* max_grad"),
        (lambda: trained("LAMB", (3, 2), (5,), bounds=(0.0, 9.0)), r"bounds=\(0.0, 9.0\)\), this LAMB has bounds=None; give"),
        (lambda: stepped(torch.optim.AdamW([P(3, 2), P(5)])), "groups of this state have no variant; it is not a state of L"),
        (lambda: nn.Linear(3, 2), r"no optimizer's state: .*give what state_dict\(\) returned"),
        (lambda: stepped(torch.optim.SGD([P(3, 2), P(5)], momentum=0.9)), "momentum_buffer, no exp_avg; it is not a state"),
        (lambda: Saved({"state": {}, "param_groups": [{}]}), "has no list of params; give what state_dict"),
        (lambda: Saved({"state": [], "param_groups": []}), "this is no optimizer's state; give what state_dict"),
        (lambda: Saved({**trained("LAMB", (3, 2), (5,)).state_dict(), "state": {0: 3}}), "the state of w0 is 3; it is not a s"),
    ],
    ids=[
        "shape",
        "count",
        "variant",
        "number",
        "no step",
        "option",
        "clip",
        "bounds",
        "AdamW",
        "a model's",
        "kind",
        "groups",
        "list",
        "one",
    ],
)
def test_a_state_that_does_not_fit(saved: Any, message: str) -> None:
    optimizer = trained("LAMB", (3, 2), (5,))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(UserError, match=message):
        optimizer.load_state_dict(saved().state_dict())
    for key, state in before["state"].items():
        assert all(torch.equal(value, optimizer.state_dict()["state"][key][name]) for name, value in state.items())


def test_a_state_from_under_a_wrapper_leaves_the_program_its_names_and_rule() -> None:
    """Data parallelism puts ``module.`` before every name: patterns go on to match the program's own."""
    layers = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    saved = stepped(paceline.LARS([(f"module.{name}", p) for name, p in layers.named_parameters()], lr=0.1)).state_dict()
    optimizer = paceline.LARS(layers.named_parameters(), lr=0.1, exclude=["*.bias", "head.*"])
    optimizer.load_state_dict(saved)
    assert optimizer.excluded() == ["body.bias", "head.weight", "head.bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in layers.named_parameters()]
    nameless = paceline.LARS(layers.parameters(), lr=0.1)
    nameless.load_state_dict(saved)
    assert "param_names" not in nameless.param_groups[0] and nameless.excluded() == ["0.1", "0.3"]


def test_an_option_of_all_that_was_loaded_into_a_group_is_not_passed_over() -> None:
    """As ZeroRedundancyOptimizer does, which loads groups by itself."""
    optimizer = trained("LAMB", (3, 2), max_grad_norm=0.5)
    optimizer.param_groups[0]["max_grad_norm"] = 1.0
    with pytest.raises(UserError, match=r"LAMB\(\.\.\., max_grad_norm=1.0\), this LAMB has max_grad_norm=0.5"):
        stepped(optimizer)


def test_a_pattern_of_a_group_that_comes_later_matches_too() -> None:
    optimizer = paceline.LAMB([("a.weight", P(2, 2))])
    with pytest.raises(UserError, match=r"pattern 'a.wait' in exclude matches no parameter; nearest names: a.weight, b.weight"):
        optimizer.add_param_group({"params": [("b.weight", P(2, 2))], "exclude": ["a.wait"]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [("b.weight", P(2, 2))], "exclude": ["b.*"]})
    assert optimizer.excluded() == ["b.weight"]


def test_steps_may_be_plain_numbers() -> None:
    """As other optimizers keep them."""
    one, other = trained("LAMB", (3, 2), (5,)), trained("LAMB", (3, 2), (5,))
    other.load_state_dict(changed(step=1).state_dict())
    for optimizer in (one, other):
        stepped(optimizer)
    for a, b in zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True):
        assert torch.equal(a, b)


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer
