"""What stands behind an attached model: shared by copies, absent from saved ones, and where a backward pass ends."""

from __future__ import annotations

import copy
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.exchange_thread import promise
from paceline.training.attach.hooks.base import HookBase, outside_backward, step_end


class Bare(HookBase):
    """Without groups and threads: what follows from its own fields alone."""

    def __init__(self, scaler: Any = None) -> None:
        self.options, self._factor, self._usage = AttachOptions(grad_scaler=scaler), 1.0, None
        self._shadowed = []
        self.ratios: list[float] = []
        self.checks: list[str] = []
        self._work: Any = SimpleNamespace(
            check=lambda: self.checks.append("now"), after_backward=lambda then: self.checks.append("at the end")
        )

    def _rescale(self, ratio: float) -> None:
        self.ratios.append(ratio)

    def _keep_residuals(self, keep: bool) -> None:
        """It has none."""


def test_a_copied_model_shares_its_hook_and_a_saved_one_has_none() -> None:
    hook = Bare()
    assert copy.deepcopy({"hook": hook})["hook"] is hook
    assert pickle.loads(pickle.dumps(hook)) is None


def test_a_hook_is_called_within_a_backward_pass_or_for_a_rank_without_data() -> None:
    seen = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: seen.append(outside_backward()))
    weight.sum().backward()
    assert seen == [False] and outside_backward()


@pytest.mark.parametrize("last", [False, True])
def test_the_last_bucket_ends_the_step(last: bool) -> None:
    before = time.perf_counter()
    end = step_end(last, torch.device("cpu"))
    assert (end is not None) == last
    assert end is None or (before <= end.backward_end.host_s <= time.perf_counter() and end.joined)


def test_without_data_the_step_waits_for_its_buckets_itself() -> None:
    hook = Bare()
    futures = [promise(torch.ones(2)) for _ in range(2)]
    assert hook._to_ddp(futures[0], last=False) is futures[0] and hook.checks == []
    for future in futures:
        future.set_result(torch.zeros(2))
    hook._to_ddp(futures[1], last=True)
    assert hook.checks == ["now"] and hook._shadowed == []


def test_within_a_backward_pass_what_went_wrong_is_raised_at_its_end() -> None:
    hook, future = Bare(), promise(torch.ones(2))
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: hook._to_ddp(future, last=True) and None)
    weight.sum().backward()
    assert hook.checks == ["at the end"] and hook._shadowed == []


def test_residuals_follow_the_factor_of_a_scaler() -> None:
    scaler = SimpleNamespace(get_scale=lambda: scaler.factor, factor=8.0)
    hook = Bare(scaler)
    for factor in (8.0, 8.0, 2.0):
        scaler.factor = factor
        hook._follow_scaler()
    assert hook.ratios == [8.0, 0.25]
    plain = Bare()
    plain._follow_scaler()
    assert plain.ratios == []


def test_where_nothing_can_be_unused_nothing_is_asked() -> None:
    parts = {"a": torch.ones(2)}
    assert Bare()._take_used(parts) == set() == Bare()._unused(parts, set())
