"""Layer tables of models of transformers and diffusers that the package keeps, which need neither library nor torch.

Models whose values are published have their own names. Others are a kind with the defaults of its configuration class, by the
library's name of the kind: ``transformers/deberta-v2``. Written by ``benchmarks/hub_tables.py``.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.names import fold
from paceline.workload.layers import LayerTable

FILE = Path(str(files("paceline.workload") / "zoo" / "hub.zip"))
INDEX = "index.json"
_CONFIGURATIONS = files("paceline.workload") / "zoo" / "hub" / "configurations.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """Group, number of parameters and sample of a kept model."""

    group: str
    parameters: int
    sample: str


@cache
def kept_models() -> Mapping[str, Kept]:
    """Return what is known of each kept model without its table, by name."""
    rows = json.loads(_archive().read(INDEX))
    return MappingProxyType({name: Kept(*row) for name, row in rows.items()})


@cache
def kept_name(name: str) -> str:
    """Return the kept model of a name in any case, with any separators; empty without one."""
    plain = fold(name)
    return _folded().get(plain, "") or _ALIASES.get(plain, "")


@cache
def configurations() -> Mapping[str, Mapping[str, Any]]:
    """Return the published configurations of kept models with their own names."""
    rows: dict[str, dict[str, Any]] = json.loads(_CONFIGURATIONS.read_text(encoding="utf-8"))
    return MappingProxyType(rows)


@cache
def kept_table(name: str) -> LayerTable:
    """Return the layer table of a kept model, by one of ``kept_models``."""
    return LayerTable.from_json(json.loads(_archive().read(f"{name}.json")))


_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        fold(other): name
        for other, name in {
            **{
                f"esm2_t{layers}_{size}_UR50D": f"esm2-{size.lower()}"
                for layers, size in ((6, "8M"), (12, "35M"), (30, "150M"))
            },
            **{
                f"esm2_t{layers}_{size}_UR50D": f"esm2-{size.lower()}"
                for layers, size in ((33, "650M"), (36, "3B"), (48, "15B"))
            },
            "siglip-so400m-patch14-384": "siglip-so400m",
            "wav2vec2-base-960h": "wav2vec2-base",
            "wav2vec2-large-960h": "wav2vec2-large",
            "hubert-base-ls960": "hubert-base",
            "all-MiniLM-L6-v2": "all-minilm-l6",
            "all-MiniLM-L12-v2": "all-minilm-l12",
            "all-mpnet-base-v2": "mpnet-base",
            "multilingual-e5-base": "xlm-roberta-base",
            "multilingual-e5-large": "xlm-roberta-large",
            "Olmo-3-7B-Think": "olmo-3-7b",
        }.items()
    }
)
"""Names on huggingface.co of kept models, by their letters and figures."""


@cache
def _folded() -> Mapping[str, str]:
    return {fold(name): name for name in kept_models()}


@cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(FILE.read_bytes()))
