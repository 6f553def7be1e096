"""Largest published global batch with which a network, or one of its family, reached its quality."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.prediction.learning import convergence
from paceline.workload.family import family
from paceline.workload.layers import LayerTable

UNPUBLISHED = 4096
"""Largest global batch of a family without published ones: the smallest of the families' largest."""
_TOKENS = re.compile(r"of ([0-9]+) tokens")


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """The largest batch in samples, and its publication; ``source`` says if there is none."""

    samples: int
    source: str

    def __str__(self) -> str:
        return f"{self.samples:,} samples ({self.source})"


def published_batch(workload: LayerTable) -> PublishedBatch:
    """Return the largest published batch: of the network, of the next smaller network of its family, or ``UNPUBLISHED``.

    Batches of sequences compare by their tokens.
    """
    if workload.name in convergence.networks():
        curve = convergence.mlperf(workload.name)
        return PublishedBatch(int(curve.high_batch), f"the largest that reached {curve.target}")
    named = [row for row in _rows() if workload.name in row.get("workloads", ())]
    kind, weights = family(workload), workload.num_parameters + workload.frozen
    alike = [row for row in _rows() if row.get("family") == kind and workload.sample.startswith(row["sample"])]
    rows = named or [row for row in alike if row.get("parameters", 0) <= weights]
    tokens = int(match[1]) if (match := _TOKENS.search(workload.sample)) else 1
    batches = [
        PublishedBatch(row["samples"] if "samples" in row else max(1, row["tokens"] // tokens), _source(row)) for row in rows
    ]
    if not batches:
        return PublishedBatch(UNPUBLISHED, f"no batch is published for {kind}; this is the least of any family")
    return max(batches, key=lambda batch: batch.samples)


def _source(row: Mapping[str, Any]) -> str:
    text = f"{row['source']}, recalled and not checked" if row.get("recalled") else str(row["source"])
    return f"{row['tokens']:,} tokens, {text}" if "tokens" in row else text


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    import tomllib
    from importlib.resources import files

    data = tomllib.loads(files("paceline.prediction").joinpath("published_batches.toml").read_text(encoding="utf-8"))
    return tuple(data["batch"])
