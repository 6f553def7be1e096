"""Files of a slimmed language model: ``slim.json``, the runtime's files, and the model in Hugging Face's format."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from paceline.edge.language_settings import FOLDER, LanguageRun
from paceline.language_record import LanguageRecord
from paceline.rundir import write_whole
from paceline.slimming.language.model_folder import opens_in_transformers
from paceline.slimming.language.stated_config import quiet

TOKENIZER = "tokenizer"
"""Beginning of the names of tokenizers' files."""


def keep_files(run: LanguageRun, record: LanguageRecord, drafts: Path, files: Mapping[str, Path]) -> LanguageRecord:
    """Move the drafts to their places, write the record, and return it with the files.

    Args:
        files: drafts besides the smaller model's.
    """
    out = Path(run.out)
    names = ["plan.json", "weights.pt", f"model{run.runtime.target.suffix}", *(file.name for file in files.values())]
    names += [each.name for each in drafts.glob("less-removed.*") if each.suffix in (".json", ".pt")]
    data = [each.name for each in drafts.iterdir() if each.name.endswith(".data")]
    (out / "slim.json").unlink(missing_ok=True)
    for name in dict.fromkeys([*names, *data]):
        (drafts / name).replace(out / name)
    shutil.rmtree(out / FOLDER, ignore_errors=True)
    (drafts / FOLDER).replace(out / FOLDER)
    every = dict.fromkeys([*names, *data, *sorted(f"{FOLDER}/{each.name}" for each in (out / FOLDER).glob("*.safetensors"))])
    record = replace(record, files={name: str(out / name) for name in every})
    write_whole(out / "slim.json", json.dumps(record.to_json(), indent=1))
    return record


def save_model(run: LanguageRun, small: nn.Module, drafts: Path) -> bool:
    """Save the smaller model as a folder with the tokenizer of the whole one, and return whether transformers opens it."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record says what opens it
        small.save_pretrained(drafts / FOLDER)  # type: ignore[operator]
    for file in Path(run.model).iterdir():
        if file.name.startswith(TOKENIZER) or file.name in ("vocab.json", "merges.txt", "special_tokens_map.json"):
            shutil.copy(file, drafts / FOLDER / file.name)
    return opens_in_transformers(small)


def opens_note(run: LanguageRun, unstated: Collection[str], opens: bool) -> str:
    """Say what opens the smaller model, and which layers stay whole so that it opens.

    Args:
        unstated: kinds of layers whose widths a configuration cannot state.
    """
    place = f"{run.out}/{FOLDER}"
    if not opens:
        words = "No config.json can state these widths: transformers, vLLM and llama.cpp cannot open the smaller model."
        return f"{words} paceline.slim.load({place!r}) does." if run.writes else f"{words} paceline.slim.load would."
    words = f"The smaller model opens in transformers with equal logits, from {place}."
    if not run.writes:
        words = "The smaller model would open in transformers with equal logits; nothing was written."
    words = f"{words} vLLM and llama.cpp were not tried."
    if not unstated:
        return words
    whole = ", ".join(each.removesuffix(".weight").removesuffix(".bias") for each in unstated)
    return f"{words} config.json cannot state fewer of {whole}, so they stay whole; --widths free changes that."
