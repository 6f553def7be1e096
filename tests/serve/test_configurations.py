"""Configurations that the page is given: by their contents, few of them, small, and models alone."""

from __future__ import annotations

import json

import pytest

from paceline.errors import UserError
from paceline.serve.configurations import MOST_BYTES, MOST_KEPT, Configurations

CONFIG = {
    "model_type": "llama",
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4},
    **{"num_key_value_heads": 4, "vocab_size": 100, "max_position_embeddings": 32},
}


def body(**changes: object) -> bytes:
    return json.dumps({**CONFIG, **changes}).encode()


def test_equal_contents_have_one_name() -> None:
    kept = Configurations()
    assert kept.keep(body()) == kept.keep(body()) != kept.keep(body(vocab_size=101))
    assert kept.workload(kept.keep(body()), 16).sample == "sequence of 16 tokens"


def test_the_one_not_used_for_longest_is_forgotten() -> None:
    kept = Configurations()
    names = [kept.keep(body(vocab_size=100 + n)) for n in range(MOST_KEPT)]
    kept.workload(names[0], None)
    kept.keep(body(vocab_size=99))
    kept.workload(names[0], None)
    with pytest.raises(UserError, match=r"give the config\.json to the page again"):
        kept.workload(names[1], None)


@pytest.mark.parametrize(
    "given", [b"{", b"[1]", b"\xff\xfe", b" " * (MOST_BYTES + 1), body(num_hidden_layers=10**9), body(model_type="x")]
)
def test_what_is_no_configuration_is_refused(given: bytes) -> None:
    with pytest.raises(UserError):
        Configurations().keep(given)
