"""Write the layer tables of models of transformers and diffusers, for those who have neither library nor torch.

    python benchmarks/hub_tables.py [NAME ...]

It writes `src/paceline/workload/zoo/hub.zip`: the models of `zoo/hub/configurations.json` (values of their config.json on
huggingface.co) by their names, and each kind of model that a library defines with the defaults of its configuration class, by
the name of the kind. Kinds that do not trace, that are a part of another model, or whose FLOPs are not known for 97 % of the
operations are left out. Needs `pip install 'paceline[hub]'`. Takes ten minutes on two cores; names trace these alone, and keep
the others.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from importlib import import_module
from typing import Any

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.hub import kept
from paceline.workload.hub.library import quiet

PARTS = "vision|text|audio|encoder|decoder|vq\\w*|model|qformer|talker\\w*|thinker|prompt\\w*|projector|tokenizer|codec"
PART = re.compile(rf"({PARTS})(_\w+)?$")
"""Kinds that are one part of another kind."""
SECONDS, KNOWN = 40.0, 0.97
"""Most processor time of a trace, and the least share of operations with known FLOPs."""
LEAST = 1_000_000
DENOISERS = re.compile(r"(Transformer[23]DModel|^UNet2D\w*Model|^AutoencoderKL|^ControlNetModel)$")


def configurations() -> dict[str, dict[str, Any]]:
    """Return configurations by name, those with values of their own first."""
    transformers: Any = import_module("transformers")
    diffusers: Any = import_module("diffusers")
    own = {name: dict(settings) for name, settings in kept.configurations().items()}
    kinds = {f"transformers/{kind}": {"model_type": kind} for kind in transformers.CONFIG_MAPPING if not PART.search(kind)}
    denoisers = {f"diffusers/{kind}": {"_class_name": kind} for kind in sorted(dir(diffusers)) if DENOISERS.search(kind)}
    return own | kinds | denoisers


def group(table: Workload, settings: dict[str, Any]) -> str:
    """Return the group in which a user looks for a model."""
    if "_class_name" in settings:
        return "diffusion"
    if "sound" in table.sample or "Whisper" in table.source or "Speech" in table.source:
        return "speech"
    if "image" in table.sample:
        return "images and text" if "tokens" in table.sample else "images"
    causal = any(o.causal for layer in table.layers for o in layer.operations if o.kind == "attention")
    scans = any(layer.kind == "Scan" for layer in table.layers)
    mixed = any(".experts." in layer.name for layer in table.layers)
    return "hybrids" if scans else "mixtures" if mixed else "language" if causal else "encoders"


def traced(settings: dict[str, Any], name: str) -> Workload | None:
    """Return the table of a configuration; None if it does not trace in time."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with quiet():
            return Workload.from_config(settings, name=name)
    except (UserError, Exception):
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def row(item: tuple[str, dict[str, Any]]) -> tuple[str, str, list[Any]]:
    """Return a name, the text of its table and its line of the index; empty if it is left out."""
    name, settings = item
    table = traced(settings, name)
    if table is None or table.coverage.share < KNOWN or not table.counts_half or table.num_parameters < LEAST:
        return name, "", []
    what = table.source.partition("; ")[2]
    defaults = "" if "/" not in name else "; the defaults of its configuration class"
    text = json.dumps(table.to_json() | {"source": what + defaults}, separators=(",", ":"))
    return name, text, [group(table, settings), table.num_parameters, table.sample]


def main(names: Sequence[str]) -> None:
    """Trace all, or these alone and keep the others, and write the file."""
    every = configurations()
    before = dict(kept.kept_models()) if names else {}
    index: dict[str, Any] = {}
    new = kept.FILE.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_LZMA) as file, ProcessPoolExecutor() as pool:
        rows = {name: (text, line) for name, text, line in pool.map(row, [(n, every[n]) for n in names or every])}
        for name in every:
            text, line = rows.get(name, ("", []))
            if name not in rows and name in before:
                text, line = json.dumps(kept.kept_table(name).to_json(), separators=(",", ":")), list(astuple(before[name]))
            if not line:
                print(f"{name}: left out", flush=True)
                continue
            file.writestr(zipfile.ZipInfo(f"{name}.json", (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_LZMA)
            index[name] = line
        file.writestr(zipfile.ZipInfo(kept.INDEX, (1980, 1, 1, 0, 0, 0)), json.dumps(index, indent=0), zipfile.ZIP_LZMA)
    new.replace(kept.FILE)
    print(f"{len(index)} models, {kept.FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
