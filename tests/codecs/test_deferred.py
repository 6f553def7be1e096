"""Checks whose results are read at the end: errors name their message, and bad data makes everything after it unreadable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline import codecs
from paceline.codecs import ADD, SET, PayloadError, deferred
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.reference.integer import Int8
from queued_kernels import play

KEY = codecs.key(1, 2)


def sent(checks: deferred.Checks, codec: Any, values: torch.Tensor) -> torch.Tensor:
    out = torch.empty(codecs.max_payload_bytes(codec, values.numel()), dtype=torch.uint8)
    (payload,) = checks.encode(codec, [(values, 0)], KEY, [out])
    return payload


def test_one_wait_for_hundreds_of_messages(monkeypatch):
    waits = play(monkeypatch)
    values, out = torch.randn(5), torch.zeros(5)
    checks, others = deferred.Checks(values), deferred.Checks(values)
    for _ in range(300):
        checks.decode(Fp32(), sent(checks, Fp32(), values), out, ADD)
    others.decode(Fp32(), sent(others, Fp32(), values), out, SET)
    deferred.settle([checks, others])
    assert waits.total() == 1 and torch.equal(out, values)
    deferred.settle([checks, others])
    assert waits.total() == 1, "nothing is left to ask"


@pytest.mark.parametrize("before", [0, 300])
def test_a_damaged_message_names_its_sender_and_spoils_what_follows(before, monkeypatch):
    play(monkeypatch)
    values, out = torch.randn(50), torch.zeros(50)
    checks, receiver = deferred.Checks(values), deferred.Checks(values)
    message = sent(checks, Int8(), values)
    message[35] ^= 1
    with deferred.naming(lambda m: f"message {m.numel()}"):
        checks.decode(Int8(), message, out, ADD)
    assert not out.any(), "a damaged message leaves the values"
    for _ in range(before):  # in later memory for states
        spoiled = sent(checks, Int8(), values)
    spoiled = sent(checks, Int8(), values)
    receiver.decode(Int8(), spoiled, out, ADD)
    assert not out.any()
    for told, words in ((checks, f"message {message.numel()}: {deferred.DAMAGED}"), (receiver, deferred.DAMAGED)):
        with pytest.raises(PayloadError, match=words):
            deferred.settle([told])


def test_values_without_form_are_told_later(monkeypatch):
    play(monkeypatch)
    values = torch.tensor([1.0, float("nan")])
    checks = deferred.Checks(values)
    message = sent(checks, Int8(), values)
    checks.decode(Int8(), message, torch.zeros(2), SET)
    with pytest.raises(ValueError, match="NaN") as error:
        deferred.settle([checks])
    assert not isinstance(error.value, PayloadError)


def test_a_wrong_length_is_told_at_once(monkeypatch):
    play(monkeypatch)
    checks = deferred.Checks(torch.zeros(4))
    with pytest.raises(PayloadError, match="4 elements of int8 do not take"):
        checks.decode(Int8(), torch.zeros(50, dtype=torch.uint8), torch.zeros(4), SET)
