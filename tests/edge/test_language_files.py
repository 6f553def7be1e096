"""The answer says what opens the smaller model."""

from __future__ import annotations

import itertools

from paceline.edge.language_files import opens_note
from paceline.edge.language_settings import LanguageRun
from paceline.slimming.methods.budget import Budget


def test_what_opens_the_smaller_model_is_said() -> None:
    run = LanguageRun(model="m", text="t", out="runs/a", budget=Budget.parse("decode=2x"))
    assert "paceline.slim.load('runs/a/model') does" in opens_note(run, (), opens=False)
    said = opens_note(run, ("attn.c_attn.weight",), opens=True)
    assert "opens in transformers" in said and "fewer of attn.c_attn, so they stay whole; --widths free" in said
    assert "stay whole" not in opens_note(run, (), opens=True)


def test_a_folder_is_named_only_if_it_is_written() -> None:
    for opens, writes in itertools.product((True, False), repeat=2):
        run = LanguageRun(model="m", text="t", out="runs/a", budget=Budget.parse("decode=2x"), writes=writes)
        assert ("runs/a/model" in opens_note(run, (), opens)) == writes
