"""The sets of measurements that ``paceline validate`` knows: one adapter each, from a row to a case or a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from paceline.csv_rows import Row
from paceline.errors import unknown
from paceline.validation.case import Case, Skip

_MODULES: Mapping[str, str] = {
    "mlperf": "mlperf",
    "pollux_sia": "pollux_sia",
    "neusight": "neusight",
    "llmfoundry": "llmfoundry",
    "nvidia_dle": "nvidia_dle",
    "lambda": "lambda_",
    "tf_benchmarks": "tf_benchmarks",
    "vtrain": "vtrain",
}
NAMES = tuple(_MODULES)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The columns that a file of the set has, and how a row becomes a case.

    ``numbers`` hold a number or nothing, ``texts`` anything; ``case`` raises UserError for what is neither.
    """

    name: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    case: Callable[[Row], Case | Skip]

    def read(self, row: Row) -> Case | Skip:
        """The row as a case, or the reason to skip it. Raises UserError for text where a number belongs."""
        for column in self.numbers:
            row.number_of(column)
        return self.case(row)


def adapter(name: str) -> Adapter:
    """The adapter of that name. Raises UserError with the nearest names."""
    if name not in _MODULES:
        raise unknown("set", name, NAMES, f"one of {', '.join(NAMES)}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    return Adapter(name, module.TEXTS, module.NUMBERS, module.case)
