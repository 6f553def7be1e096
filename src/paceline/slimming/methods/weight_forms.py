"""Forms of the weights in an ONNX file: fp32, int8 and int4 as ONNX Runtime's tools write them. Declared here once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from paceline.errors import UserError, unknown

BLOCKS = (16, 32, 64, 128, 256)
"""Numbers of weights with one scale that ``MatMulNBits`` takes (docs/ContribOperators.md of ONNX Runtime)."""
ACCURACIES = (0, 1, 2, 3, 4)
"""Accuracy levels of ``MatMulNBits``: 0 unset, 1 fp32, 2 fp16, 3 bf16, 4 int8 activations (docs/ContribOperators.md)."""
SETTINGS = ("block", "symmetric", "accuracy")


@dataclass(frozen=True, slots=True)
class WeightForm:
    """Form of a file's weights.

    Attributes:
        name: in Paceline. ``title``: in sentences. ``bits``: bits of a weight of a matrix product.
        blocks: whether ``MatMulNBits`` holds matrix products, with a scale for each block of weights.
        help: one line on what it changes.
        block, symmetric, accuracy: settings of ``MatMulNBits``. The defaults are those of ONNX Runtime's quantiser.
    """

    name: str
    title: str
    bits: int
    blocks: bool
    help: str
    block: int = 128
    symmetric: bool = False
    accuracy: int = 0

    @property
    def file_name(self) -> str:
        """Part of a file's name: ``int4-block32`` for ``int4:block=32``."""
        return str(self).replace(":", "-").replace("=", "")

    def __str__(self) -> str:
        """Return the form as ``parse`` reads it, with the settings that differ from the defaults."""
        changed = [f"block={self.block}"] * (self.block != 128)
        changed += ["symmetric"] * self.symmetric + [f"accuracy={self.accuracy}"] * (self.accuracy != 0)
        return ":".join([self.name, *changed])

    @classmethod
    def parse(cls, text: str) -> WeightForm:
        """Parse ``int4`` or ``int4:block=32:symmetric:accuracy=4``.

        Raises:
            UserError: an unknown form or setting, or a setting of a form without blocks.
        """
        name, *given = (part.strip() for part in text.split(":"))
        if name not in WEIGHTS:
            raise unknown("form of weights", name, WEIGHTS)
        form = WEIGHTS[name]
        if given and not form.blocks:
            those = ", ".join(each.name for each in WEIGHTS.values() if each.blocks)
            raise UserError(f"{given[0]!r} for weights in {name}", f"only {those} have settings")
        for part in given:
            form = _with(form, part)
        return form


def _with(form: WeightForm, part: str) -> WeightForm:
    """Return the form with one setting. Raises UserError for an unknown setting or value."""
    key, equals, value = part.partition("=")
    if key == "symmetric" and not equals:
        return replace(form, symmetric=True)
    legal = {"block": BLOCKS, "accuracy": ACCURACIES}.get(key)
    if legal is None:
        raise unknown("setting of weights", key, SETTINGS)
    if value not in map(str, legal):
        raise UserError(f"{part!r} for weights", f"give {key}= one of {', '.join(map(str, legal))}")
    return replace(form, block=int(value)) if key == "block" else replace(form, accuracy=int(value))


FP32 = WeightForm("fp32", "fp32", 32, False, "weights as they were trained")
INT8 = WeightForm("int8", "int8", 8, False, "weights and activations of products and convolutions in 8 bits")
INT8_BLOCKS = WeightForm("int8-blocks", "int8 in blocks", 8, True, "products have weights in 8 bits, a scale for each block")
INT4 = WeightForm("int4", "int4", 4, True, "products and embeddings have weights in 4 bits, a scale for each block")
WEIGHTS: Mapping[str, WeightForm] = {form.name: form for form in (FP32, INT8, INT8_BLOCKS, INT4)}
"""Forms by name, with ONNX Runtime's default settings."""


def parse_weights(text: str) -> tuple[WeightForm, ...]:
    """Parse a list such as ``int8,int4:block=32``. fp32, which is always measured, is left out.

    Raises:
        UserError: as ``WeightForm.parse``, or a form that is given twice.
    """
    found = [WeightForm.parse(part) for part in text.split(",") if part.strip()]
    return distinct(form for form in found if form != FP32)


def distinct(forms: Iterable[WeightForm]) -> tuple[WeightForm, ...]:
    """Return the forms. Raises UserError if one is given twice."""
    every = tuple(forms)
    twice = next((form for number, form in enumerate(every) if form in every[:number]), None)
    if twice is not None:
        raise UserError(f"weights in {twice} twice", "give each form once")
    return every
