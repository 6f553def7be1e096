"""One text of a ``DenseRule``: ``min-elements=1024,last-layer=no,dense=*.embedding.*``, named as the options of its parts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from paceline.errors import UserError
from paceline.strategy.choices.choice_values import Flag, WholeNumber
from paceline.strategy.compression.compression import DenseRule

_PARTS = {"min-elements": WholeNumber("elements", 0), "last-layer": Flag(), "dense": None}
"""Parts of the text, and the legal values of each; None: patterns of names, one a part."""
_NEXT = re.compile(rf",(?=(?:{'|'.join(_PARTS)})=)")


def rule_text(rule: DenseRule) -> str:
    """Return the text of a rule, which states every part."""
    parts = [f"min-elements={rule.min_elements}", f"last-layer={'yes' if rule.last_layer else 'no'}"]
    return ",".join([*parts, *(f"dense={name}" for name in rule.names)])


def parse_rule(text: str, rule: DenseRule) -> DenseRule:
    """Return ``rule`` with the parts that a text states. Raises UserError for anything else."""
    changed: dict[str, Any] = {}
    for part in _NEXT.split(text):
        name, _, value = part.partition("=")
        if name not in _PARTS or not value:
            raise UserError(f"dense_rule {part!r}", "write it as min-elements=1024,last-layer=no,dense=*.embedding.*")
        if (values := _PARTS[name]) is None:
            changed["names"] = (*changed.get("names", ()), value)
        else:
            changed[name.replace("-", "_")] = values.parse(value, name)
    return replace(rule, **changed)
