"""Every codec by its name and by its number."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.codecs import encode, get, names
from paceline.codecs.container import read_header
from paceline.codecs.registry import BY_CODE, BY_NAME
from paceline.errors import UserError


def test_an_unknown_codec_names_the_nearest():
    assert {"ternary", "fp32", "bf16"} <= set(names()) and "ternary-sum" not in names()
    with pytest.raises(UserError, match="ternary"):
        get("ternery")


HEADER_BYTES = 32
"""Of a header: docs/wire-format.md, "A message"."""


@pytest.mark.parametrize("code", BY_CODE)
def test_a_number_is_of_one_codec(code: int) -> None:
    codec = BY_CODE[code]
    assert codec.code == code and 0 < code < 256 and len({other.name for other in BY_CODE.values()}) == len(BY_CODE)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_codec_comes_back_from_its_header(name: str) -> None:
    codec = get(name)
    payload = encode(codec, np.linspace(-1, 1, 100, dtype=np.float32))
    header, _ = read_header(payload[:HEADER_BYTES].tobytes())
    assert BY_CODE[header.codec] is BY_NAME[name] is type(codec) and header.elements == 100
    assert BY_CODE[header.codec].of(header.parameters).name == name
