"""What a step raises has a type that a script can name: ``except paceline.LostRank`` around ``backward()``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from distributed import launch_and_let_fail, launch_once
from paceline.training.attach.attach import attach
from paceline.training.exchanges.wires import collectives

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "static graph": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
}


def backward(model: DDP, seed: int) -> None:
    model(torch.randn(6, 40, generator=torch.Generator().manual_seed(seed))).square().mean().backward()


def raised(call: Any) -> str:
    try:
        call()
    except paceline.ReplicasDiverged as error:
        return f"diverged: {error}"
    except paceline.PayloadError as error:
        return f"payload: {error}"
    except paceline.LostRank as error:
        return f"lost: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def faults(rank: int, workers: int) -> dict[str, Any]:
    """Weights that drift apart under each setting of DDP's, and a message that is damaged on every rank."""
    seen: dict[str, Any] = {}
    for name, options in SETTINGS.items():
        for compression in ("dense", "int8", "powersgd"):
            torch.manual_seed(1)
            model = DDP(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4)), **options)
            attach(model, compression, check_every=2)
            told = []
            for step in range(3):
                if rank and step == 1:
                    with torch.no_grad():
                        model.module[0].weight += 1
                told.append(raised(lambda model=model, step=step: backward(model, step)))
            seen[name, compression] = told

    model = DDP(nn.Linear(40, 40))
    attach(model, "int8", min_elements=0)
    exchange = collectives.Wire.all_to_all

    def changed(self: Any, outgoing: Any, expected: Any, name: str, *more: Any) -> Any:
        pending = exchange(self, outgoing, expected, name, *more)
        result = pending._result

        def flipped() -> Any:
            parts = [part.clone() for part in result()]
            parts[1 - rank][40] ^= 4
            return parts

        pending._result = flipped
        return pending

    collectives.Wire.all_to_all = changed  # type: ignore[method-assign]
    seen["damaged"] = [raised(lambda: backward(model, 1)) for _ in range(2)]
    collectives.Wire.all_to_all = exchange  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_replicas_that_drifted_apart_are_an_error_of_their_own(setting: str, compression: str) -> None:
    for seen in launch_once(faults, 2):
        before, *after = seen[setting, compression]
        assert before == "no error"
        assert after == ["diverged: weights of rank 1 differ from those of rank 0"] * 2


def test_a_damaged_message_is_an_error_of_its_own() -> None:
    for seen in launch_once(faults, 2):
        for told in seen["damaged"]:
            assert told.startswith("payload: a message of rank ")


def vanish(rank: int, workers: int) -> None:
    """The last rank is killed in its third step; the others catch that."""
    model = DDP(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4)))
    attach(model, "int8", min_elements=0)
    for step in range(5):
        if step == 2 and rank == workers - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            backward(model, step)
        except paceline.LostRank as error:
            print(f"caught: {error}", flush=True)
            os._exit(7)


def test_a_lost_rank_is_caught_by_its_type() -> None:
    zero, one = launch_and_let_fail(vanish, 2)
    assert one.code == -signal.SIGKILL
    assert zero.code == 7 and "caught: rank 1 is lost" in zero.said, zero.said


def test_the_errors_are_public_and_need_no_torch() -> None:
    names = ["LostRank", "ReplicasDiverged", "PayloadError"]
    source = str(Path(paceline.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {source!r}); import paceline\n"
    code += f"print(*(issubclass(getattr(paceline, name), Exception) for name in {names}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "True True True False\n", done.stderr
    assert set(names) <= set(paceline.__all__)
