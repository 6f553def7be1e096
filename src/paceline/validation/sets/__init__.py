"""Sets of measurements of ``paceline validate``, each with an adapter from a row to a case or a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from paceline.csv_rows import Row
from paceline.errors import UserError, shorten, unknown
from paceline.validation.case import UNREADABLE, Case, Skip

_MODULES: Mapping[str, str] = {
    "mlperf": "mlperf",
    "pollux_sia": "pollux_sia",
    "neusight": "neusight",
    "llmfoundry": "llmfoundry",
    "nvidia_dle": "nvidia_dle",
    "lambda": "lambda_",
    "tf_benchmarks": "tf_benchmarks",
    "vtrain": "vtrain",
    "megatron_bridge": "megatron_bridge",
    "dgxc": "dgxc",
    "torchtitan": "torchtitan",
    "megatron_table": "megatron_table",
    "published": "published",
}
NAMES = tuple(_MODULES)
BAD_ROW = (UserError, ValueError, ArithmeticError)
"""Errors that malformed cells of a row raise."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Columns of a file of the set, and the conversion of a row to a case.

    Columns in ``numbers`` hold a number or nothing, those in ``texts`` anything. ``joined`` merges the rows of one run.
    """

    name: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    case: Callable[[Row], Case | Skip]
    joined: Callable[[Sequence[Row]], Sequence[Row]] = tuple

    def read(self, row: Row) -> Case | Skip:
        """Return the row as a case, or the reason to skip it, such as text instead of a number, or an impossible job."""
        for column in self.numbers:
            try:
                row.number_of(column)
            except UserError as error:
                return Skip(UNREADABLE, f"no number in column {column}", good=False, detail=error.message)
        try:
            return self.case(row)
        except BAD_ROW as error:
            detail = f"{row.place}: {error}"
            reason = error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            return Skip(UNREADABLE, shorten(reason), good=False, detail=detail)


def adapter(name: str) -> Adapter:
    """Return the adapter of that name. Raises UserError with the nearest names."""
    if name not in _MODULES:
        raise unknown("set", name, NAMES, f"one of {', '.join(NAMES)}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    return Adapter(name, module.TEXTS, module.NUMBERS, module.case, getattr(module, "joined", tuple))
