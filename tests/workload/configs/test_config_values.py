"""Values of a configuration: checked, with defaults, or refused."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.workload.configs.config_values import Config, drops, flag, number, refuse, sliding_window


def test_the_first_name_that_is_there_counts() -> None:
    config = {"a": None, "b": 3, "c": 4}
    assert number(config, "a", "b", "c") == 3 and number(config, "d", default=7) == 7
    assert flag({"tied": None}, "tied", True) and not flag({"tied": False}, "tied", True)
    assert drops({"x": 0.0, "y": 0.1}, "x", "y") and not drops({}, "x") and drops({}, "x", default=0.1)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "4"])
def test_a_dimension_is_a_whole_number(value: object) -> None:
    with pytest.raises(UserError, match=f"a {value!r} in the configuration; it is a whole number"):
        number({"a": value}, "a")


def test_other_kinds_of_values_are_refused() -> None:
    with pytest.raises(UserError, match="tied 1 in the configuration; it is true or false"):
        flag({"tied": 1}, "tied", True)
    with pytest.raises(UserError, match="a share that is no number"):
        drops({"x": "much"}, "x")
    with pytest.raises(UserError, match="clip 8 in the configuration is not known here; trace the module"):
        refuse({"clip": 8}, clip=None)


FULL, NEAR = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 8}, (8, 0)),
        ({"sliding_window": 8, "use_sliding_window": False}, None),
        ({"sliding_window": 8, "layer_types": [FULL] * 4}, None),
        ({"sliding_window": 8, "layer_types": [NEAR, FULL] * 2}, (8, 2)),
        ({"sliding_window": 8, "layer_types": [NEAR] * 3}, (8, 0)),
    ],
)
def test_windows_follow_the_kinds_of_layers(config: Config, window: tuple[int, int] | None) -> None:
    own = sliding_window(config)
    assert (own and (own.tokens, own.full_every)) == window


def test_a_window_by_default_and_kinds_that_are_unknown() -> None:
    window = sliding_window({}, default=4096)
    assert window is not None and window.tokens == 4096 and sliding_window({"sliding_window": None}, default=4096) is None
    with pytest.raises(UserError, match="blocks of linear_attention in layer_types"):
        sliding_window({"sliding_window": 8, "layer_types": ["linear_attention", FULL]})


@pytest.mark.parametrize("config", [{"num_hidden_layers": 2001}, {"n_layer": 10**40}, {"hidden_size": 1 << 41}])
def test_a_number_that_no_network_has_is_refused(config: dict[str, int]) -> None:
    (name,) = config
    with pytest.raises(UserError, match=f"{name} .*whole number from 1 to"):
        number(config, name)
    assert number({name: 2000}, name) == 2000
