"""Write the layer tables of published diffusion models: denoisers, text encoders and the encoders of autoencoders.

    python benchmarks/pipeline_tables.py

It reads `src/paceline/workload/zoo/pipelines/configurations.json`, the published ones, and writes `tables.zip` next to it, with
one table for each network and usual size. Needs `pip install 'paceline[hub]'`. Takes ten minutes.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator

from paceline.workload import pipelines
from paceline.workload.hub.pipeline_tables import autoencoder_table, denoiser_table, text_encoder_table
from paceline.workload.layers import LayerTable
from paceline.workload.sample_size import parse_sample


def tables() -> Iterator[tuple[str, LayerTable]]:
    """Yield each table with its name: a network, and the tokens or pixels of a sample."""
    done: set[str] = set()
    for name, entry in pipelines.pipelines().items():
        for text in (entry.size, *entry.sizes):
            size, key = parse_sample(text), f"{entry.autoencoder}@{text}"
            yield f"{name}@{text}", denoiser_table(entry.denoiser, size, entry.scale, name, entry.source)
            if key not in done:
                part = pipelines.parts()[entry.autoencoder]
                yield key, autoencoder_table(part.kind, part.config, size)
                done.add(key)
        for own, tokens in entry.text.items():
            key, part = f"{own}@{tokens}", pipelines.parts()[own]
            if key not in done:
                yield key, text_encoder_table(part.kind, part.config, tokens)
                done.add(key)


def main() -> None:
    """Trace all and write the file."""
    index = {}
    with zipfile.ZipFile(pipelines.TABLES, "w", zipfile.ZIP_LZMA) as file:
        for key, table in tables():
            text = json.dumps(table.to_json(), separators=(",", ":"))
            file.writestr(zipfile.ZipInfo(f"{key}.json", (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_LZMA)
            name, _, size = key.partition("@")
            print(f"{key}: {table.num_parameters:,} parameters, {table.coverage.share:.0%} of operations known", flush=True)
            if name in pipelines.pipelines() and pipelines.pipelines()[name].size == size:
                index[name] = [table.num_parameters, table.sample]
        file.writestr(zipfile.ZipInfo(pipelines.INDEX, (1980, 1, 1, 0, 0, 0)), json.dumps(index, indent=0), zipfile.ZIP_LZMA)
    print(f"{len(index)} models, {pipelines.TABLES.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
