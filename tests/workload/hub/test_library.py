"""Modules of transformers and diffusers from a configuration."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec

import pytest

from config_cases import LLAMA
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.hub import library

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


@needs_transformers
def test_a_file_that_names_no_class_has_the_head_of_its_kind() -> None:
    module, what = library.built({"model_type": "smollm3", **LLAMA}, "transformers")
    assert type(module).__name__ == "SmolLM3ForCausalLM" and what.startswith("transformers ")
    assert all(p.is_meta for p in module.parameters())


def test_advice_stays_off_the_terminal_though_a_library_sets_its_level(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("transformers.own_test")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    with library.quiet():
        logger.setLevel(logging.WARNING)  # as an import does
        logger.warning("within")
    logger.warning("after")
    logger.removeHandler(handler)
    assert capsys.readouterr().err == "after\n"


@needs_transformers
def test_code_of_a_checkpoint_is_never_run() -> None:
    own = {"model_type": "stripedhyena2", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "hidden_size": 64}
    with pytest.raises(UserError, match=r"defines no model_type 'stripedhyena2'.*never run"):
        Workload.from_config(own)


@needs_transformers
def test_values_that_the_class_refuses_are_named() -> None:
    with pytest.raises(UserError, match="does not build 'smollm3'"):
        Workload.from_config({"model_type": "smollm3", **LLAMA, "hidden_size": "wide"})


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"unknown model_type 'smollm3'.*paceline\[hub\]"):
        Workload.from_config({"model_type": "smollm3", **LLAMA})
