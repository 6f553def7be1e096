"""Pollux's form finds what it was made from, and says nothing far from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_rows import case
from paceline.validation.baselines import Baselines
from paceline.validation.case import Case
from paceline.validation.pollux import PolluxForm


def test_the_pollux_form_finds_what_it_was_made_from() -> None:
    rows = []
    for n in (1, 2, 4, 8):
        for batch in (16, 32, 64):
            compute, network = 0.05 + 0.004 * batch, (0.03 + 0.005 * (n - 2)) if n > 1 else 0.0
            step = (compute**2 + network**2) ** 0.5
            given = {"num_gpus": str(n), "local_batch": str(batch), "step_time_s": str(step)}
            rows.append(case("pollux_sia", num_nodes="1", sync_time_s="0", **given))
    asked = replace(rows[-1], step_s=1.0)
    form = PolluxForm.fit(rows)
    assert form is not None and PolluxForm.fit(rows[:4] * 2) is None and PolluxForm.fit([]) is None
    far = replace(rows[-1], keys=replace(rows[-1].keys, devices=10**6))
    assert form(far) is None
    for row in rows:
        assert form(row) == pytest.approx(row.step_s, rel=0.02)
    assert Baselines(rows, [*rows, asked], "scale")(asked)["Pollux form"] == pytest.approx(rows[-1].step_s, rel=0.02)


def grid(parameters: tuple[float, ...]) -> list[Case]:
    """Rows that the form gives exactly: with a, b, c, d inside a node and between nodes, and the exponent."""
    a, b, *network, g = parameters
    table = []
    for devices, nodes in ((1, 1), (2, 1), (4, 1), (8, 2), (16, 4)):
        for batch in (16, 32, 64):
            c, d = network[2:] if nodes > 1 else network[:2]
            wait = c + d * (devices - 2) if devices > 1 else 0.0
            step = ((a + b * batch) ** g + wait**g) ** (1 / g)
            given = {"num_gpus": str(devices), "local_batch": str(batch), "step_time_s": repr(step), "sync_time_s": "0"}
            table.append(case("pollux_sia", num_nodes=str(nodes), placement=str(devices // nodes) * nodes, **given))
    return table


@pytest.mark.parametrize("exponent", [1.0, 2.0, 5.0])
def test_nodes_have_a_network_of_their_own(exponent: float) -> None:
    rows = grid((0.05, 0.004, 0.02, 0.003, 0.1, 0.004, exponent))
    form = PolluxForm.fit(rows)
    assert form is not None and len(form.parameters) == 7 and form.seen_s == (rows[0].step_s, max(r.step_s for r in rows))
    assert all(form(row) == pytest.approx(row.step_s, rel=0.05) for row in rows)


def test_fewer_shapes_than_parameters_are_no_fit() -> None:
    rows = grid((0.05, 0.004, 0.02, 0.003, 0.1, 0.004, 2.0))
    inside = [row for row in rows if row.keys.nodes == 1]
    assert PolluxForm.fit(rows[-6:]) is None and PolluxForm.fit(inside[:4]) is None
    assert PolluxForm.fit([row for row in rows if row.keys.devices == 1] * 3) is None, "nothing says what the network takes"
    assert PolluxForm.fit(inside) is not None
