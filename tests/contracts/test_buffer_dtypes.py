"""Every buffer of training and codecs states its type, because scripts set another default (``torch.set_default_dtype``)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
MAKERS = {"empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "scalar_tensor", "tensor", "zeros"}
"""Functions of torch whose result has the default type unless one is given. ``zeros_like`` and the like are not among them."""


def untyped(source: str) -> list[str]:
    """Return the calls that make a tensor without a type, with their lines."""
    return [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in MAKERS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in ("torch", "_torch")
        and not any(keyword.arg == "dtype" for keyword in call.keywords)
    ]


@pytest.mark.parametrize("part", ["training", "codecs"])
def test_every_buffer_states_its_type(part: str) -> None:
    found = {str(path.relative_to(ROOT)): untyped(path.read_text()) for path in sorted((ROOT / part).rglob("*.py"))}
    assert len(found) > 10 and not {path: calls for path, calls in found.items() if calls}


def test_a_buffer_without_a_type_is_found() -> None:
    assert len(untyped("torch.zeros(3, device=d)\ntorch.zeros(3, dtype=t)\nx.new_zeros(3)\ntorch.tensor([1])")) == 2
