"""Forms of weights: names, settings and refusals."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.slimming.methods.weight_forms import FP32, INT4, INT8, WeightForm, parse_weights


def test_a_list_of_forms_is_read_and_written_alike() -> None:
    forms = parse_weights("fp32, int8,int4:block=32:symmetric:accuracy=4,int4")
    assert forms[0] == INT8 and forms[2] == INT4 and FP32 not in forms and parse_weights("fp32") == ()
    assert (forms[1].block, forms[1].symmetric, forms[1].accuracy) == (32, True, 4)
    assert [str(form) for form in forms] == ["int8", "int4:block=32:symmetric:accuracy=4", "int4"]
    assert (
        all(WeightForm.parse(str(form)) == form for form in forms) and forms[1].file_name == "int4-block32-symmetric-accuracy4"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int5", "unknown form of weights 'int5'; legal: fp32, int8, int8-blocks, int4"),
        ("int8:block=32", "'block=32' for weights in int8; only int8-blocks, int4 have settings"),
        ("int4:blocks=32", "unknown setting of weights 'blocks'.*block"),
        ("int4:block=33", "'block=33' for weights; give block= one of 16, 32, 64, 128, 256"),
        ("int4:accuracy=9", "'accuracy=9' for weights; give accuracy= one of 0, 1"),
        ("int8,int4,int8", "weights in int8 twice"),
    ],
)
def test_other_forms_are_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_weights(text)
