"""Selections: values by option, and mistakes that name their control."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.serve.selection import ControlError, about, selection, start, value


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("workload", "gpt2")], "no device is given"),
        ([("workload", " "), ("device", "A100")], "no workload is given"),
        ([("nodse", "1")], "did you mean nodes"),
        ([("nodes", "1"), ("nodes", "")], "given twice"),
    ],
)
def test_what_is_no_question_is_refused(pairs: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        selection(pairs)


def test_a_mistake_names_its_control() -> None:
    with pytest.raises(ControlError) as caught:
        value({"nodes": "many"}, "nodes")
    assert caught.value.option == "nodes" and "not a whole number" in str(caught.value)
    with pytest.raises(ControlError) as inner, about("device"), about("lora"):
        raise UserError("wrong")
    assert inner.value.option == "lora"


def test_the_first_visit_is_a_usual_cluster_with_its_usual_network() -> None:
    first = start()
    assert (first["device"], first["devices-per-node"], first["nodes"]) == ("H100 SXM", "8", "2")
    assert first["network"] == "InfiniBand NDR" and "transport" not in first
