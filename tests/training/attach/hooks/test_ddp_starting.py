"""The thread that begins the all-reduces of uncompressed buckets."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline
from distributed import launch
from paceline.training.attach.hooks import ddp


def fail_to_begin(rank: int, workers: int, compression: str) -> list[Any]:
    """The second bucket of the second step cannot be begun: no exchange waits for it forever."""
    net = DistributedDataParallel(nn.Sequential(*(nn.Linear(60, 60) for _ in range(6))), bucket_cap_mb=0.02)
    hook = paceline.attach(net, compression)
    begin, names = ddp.begin_allreduce, []

    def broken(*given: Any) -> Any:
        names.append(threading.current_thread().name)
        if hook.step == 1 and len(names) % 3 == 2:
            raise ValueError("no memory for this bucket")
        return begin(*given)

    ddp.begin_allreduce = broken
    said = []
    for _ in range(3):
        try:
            net(torch.ones(2, 60)).sum().backward()
            said.append("")
        except ValueError as error:
            said.append(str(error))
    return [said, set(names)]


@pytest.mark.parametrize("compression", ["dense", "bf16"])
def test_what_goes_wrong_before_a_bucket_is_sent_is_raised(compression: str) -> None:
    for said, names in launch(fail_to_begin, 2, compression=compression):
        assert said == ["", "no memory for this bucket", "no memory for this bucket"] and names == {"paceline-start"}
