"""Table of all codecs by name, and by the number in the header."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.codecs.codec import Codec
from paceline.codecs.reference.dense import Bf16, Fp32
from paceline.codecs.reference.inceptionn import Inceptionn
from paceline.codecs.reference.inceptionn_scaled import InceptionnScaled
from paceline.codecs.reference.integer import Int4, Int8
from paceline.codecs.reference.sign import Sign
from paceline.codecs.reference.ternary import Ternary, TernarySum
from paceline.codecs.reference.topk import TopK

_ALL: tuple[type[Codec], ...] = (
    Fp32,
    Bf16,
    Ternary,
    TernarySum,
    Inceptionn,
    InceptionnScaled,
    Int8,
    Int4,
    Sign,
    TopK,
)

BY_CODE: Mapping[int, type[Codec]] = {c.code: c for c in _ALL}
BY_NAME: Mapping[str, type[Codec]] = {c.name: c for c in _ALL if c is not TernarySum}
