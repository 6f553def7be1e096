"""Training on the path to a budget, by plain settings that are sent to every worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UserError
from paceline.slimming.methods.budget import Budget
from paceline.slimming.slim import Slim


def settings(method: str, budget: Budget, table: str | Path, threads: int = 1, target: str = "onnxruntime") -> dict[str, Any]:
    """Return the settings that ``wrapped`` takes.

    Args:
        table: file of ``LayerTimes.to_json``: measured once, so that all workers decide equally.
    """
    cost = {"budget": [budget.kind, budget.value], "table": str(table)}
    return {"method": method, **cost, "threads": threads, "target": target}


def wrapped(optimizer: Optimizer, model: nn.Module, sample: Tensor, given: Mapping[str, Any], steps: int) -> Optimizer:
    """Return the optimizer with the penalty of these settings. Raises UserError as ``Slim``, or for a missing table."""
    try:
        table = json.loads(Path(given["table"]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the table of latencies {given['table']} cannot be read: {error}", "measure it again") from error
    same = {name: given[name] for name in ("method", "threads", "target")}
    slim = Slim(model, (sample,), budget=Budget(*given["budget"]), table=table, **same)
    return slim.wrap(optimizer, steps)
