"""Ranks behind a switch that adds: each sends its gradient once, receives the same sum, and learns when the switch dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed import free_port, launch, launch_and_let_fail
from paceline import codecs
from paceline.codecs import Key
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.reference.ternary import Ternary
from paceline.errors import UserError
from paceline.lab.adding_switch import VARIABLE
from paceline.strategy import EXCHANGES
from paceline.training.exchanges import exchange_streams
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.switch_wire import SwitchWire

COUNT, CHUNK = 10_007, 4096


def through_switch(rank: int, workers: int, address: str) -> dict[str, Any]:
    """One rank's sums through the switch, and its bytes."""
    os.environ[VARIABLE] = address
    wire = SwitchWire(Wire(dist.group.WORLD, torch.device("cpu"), Meter(dist.get_rank()), 150))
    values = torch.rand(COUNT, generator=torch.Generator().manual_seed(wire.rank)) * 2 - 1
    sums: dict[str, Any] = {}
    for name, codec in (("fp32", Fp32()), ("ternary", Ternary(scale=1.0))):
        stream = CodecStream(codec, values.clone(), Key(1, 2 + wire.rank), 0)
        wire.meter.begin_step()
        exchange_streams([(stream, EXCHANGES["switch"])], wire, CHUNK)
        sums[name], sums[f"{name} bytes"] = stream.values, wire.meter.sent_bytes
    return sums


@pytest.fixture
def switch() -> Any:
    port = free_port()
    command = [sys.executable, "-m", "paceline.training.exchanges.wires.switch_server", "127.0.0.1", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parent)
    yield f"127.0.0.1:{port}", process
    process.kill()
    process.wait()


@pytest.mark.long
def test_ranks_of_processes_receive_equal_sums(switch: Any) -> None:
    sums = launch(through_switch, 3, address=switch[0])
    values = [torch.rand(COUNT, generator=torch.Generator().manual_seed(rank)) * 2 - 1 for rank in range(3)]
    parts = [
        torch.cat(
            [
                torch.from_numpy(codecs.decode(codecs.encode(Ternary(scale=1.0), v[a : a + CHUNK], Key(1, 2 + rank), a)))
                for a in range(0, COUNT, CHUNK)
            ]
        )
        for rank, v in enumerate(values)
    ]
    for of_rank in sums:
        assert torch.equal(of_rank["fp32"], (values[0] + values[1]) + values[2])
        assert torch.equal(of_rank["ternary"], (parts[0] + parts[1]) + parts[2])
        assert of_rank["fp32 bytes"] == 4 * COUNT + 3 * 32  # each worker sends its gradient once


@pytest.mark.long
def test_ranks_fail_clearly_when_the_switch_dies(switch: Any, tmp_path: Path) -> None:
    exchanged = tmp_path / "exchanged"

    def kill_after_an_exchange() -> None:
        while not exchanged.exists() and switch[1].poll() is None:
            time.sleep(0.05)
        switch[1].kill()

    threading.Thread(target=kill_after_an_exchange, daemon=True).start()
    outcomes = launch_and_let_fail(endless, 2, address=switch[0], exchanged=str(exchanged))
    assert exchanged.exists() and all(o.code == 1 and "WireError" in o.said for o in outcomes)


def endless(rank: int, workers: int, address: str, exchanged: str) -> None:
    os.environ[VARIABLE] = address
    wire = SwitchWire(Wire(dist.group.WORLD, torch.device("cpu"), Meter(dist.get_rank()), 150))
    while True:
        exchange_streams([(CodecStream(Fp32(), torch.ones(COUNT), Key(0, 0), 0), EXCHANGES["switch"])], wire, CHUNK)
        Path(exchanged).touch()


def test_without_a_switch_the_command_that_gives_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    wire = Wire.__new__(Wire)
    wire.group, wire.device, wire.meter, wire.timeout_s, wire.soundness = None, torch.device("cpu"), Meter(0), 1.0, None  # type: ignore[assignment]
    monkeypatch.setattr(Wire, "__init__", lambda self, *_: self.__dict__.update(wire.__dict__))
    with pytest.raises(UserError, match="no switch adds"):
        SwitchWire(wire)
