"""``AttachOptions``: what it checks, and who takes which of its fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.codecs import registry
from paceline.errors import UserError
from paceline.strategy import COMPRESSIONS, GradientExchange
from paceline.training.attach.attach_options import AttachOptions, check_runs

ILLEGAL: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1.5}, "seed=1.5; give a whole number"),
    ({"check_every": -1}, "check_every=-1; give a whole number"),
    ({"timeout_s": float("nan")}, "timeout_s=nan; give seconds"),
    ({"grad_scaler": 4.0}, "grad_scaler=4.0; give a torch.amp.GradScaler"),
    ({"candidates": "int8"}, "candidates='int8'; give a list"),
    ({"noise_scale": 1}, "noise_scale=1; give True or False"),
    ({"gather_bits": 4}, "gather_bits=4; give one of 0, 8, 16, 32"),
    ({"gather_bits": True}, "gather_bits=True; give one of"),
]


@pytest.mark.parametrize(("given", "said"), ILLEGAL)
def test_an_illegal_value_is_refused_with_what_is_legal(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match="give") as refused:
        AttachOptions(**given)
    assert said in str(refused.value)


def test_numbers_of_numpy_become_those_of_python() -> None:
    options = AttachOptions(seed=np.int64(3), timeout_s=np.float32(2), gather_bits=np.int8(8))  # type: ignore[arg-type]
    assert (options.seed, options.timeout_s, options.gather_bits) == (3, 2.0, 8)
    assert {type(options.seed), type(options.gather_bits)} == {int} and type(options.timeout_s) is float


def test_changes_replace_single_fields() -> None:
    options = AttachOptions.everywhere("OneBitAdam", AttachOptions(seed=1, check_every=5), {"seed": 2})
    assert options == AttachOptions(seed=2, check_every=5)


def test_what_a_caller_does_not_take_is_refused() -> None:
    with pytest.raises(UserError, match="check_every"):
        AttachOptions.everywhere("OneBitAdam", None, {"check_evry": 2})
    with pytest.raises(UserError, match="OneBitAdam takes no noise_scale"):
        AttachOptions.everywhere("OneBitAdam", AttachOptions(noise_scale=True), {})


def test_training_refuses_what_it_does_not_run() -> None:
    with pytest.raises(UserError, match="paceline lab up --switch"):
        check_runs(GradientExchange("dense", "switch"))
    with pytest.raises(UserError, match="paceline lab up --nic"):
        check_runs(GradientExchange("inceptionn", "ring", codec_at="nic"))
    with pytest.raises(UserError, match="training runs one server, not 2"):
        check_runs(GradientExchange("dense", "parameter_server", servers=2))
    host = GradientExchange("terngrad", codec_at="host")
    check_runs(host, "cpu")
    check_runs(host)
    with pytest.raises(UserError, match="give codec_at gpu"):
        check_runs(host, "cuda")


def test_a_compression_without_a_codec_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMPRESSIONS:
        check_runs(GradientExchange(name))
    monkeypatch.setattr(registry, "BY_NAME", {})
    check_runs(GradientExchange("powersgd"))
    with pytest.raises(UserError, match="cannot run compression int8, which has no codec"):
        check_runs(GradientExchange("int8"))


def test_auto_tries_the_compressions_that_were_accurate() -> None:
    assert AttachOptions().candidates == ("bf16", "bf16-coded", "int8", "fp8", "inceptionn-scaled", "terngrad")
