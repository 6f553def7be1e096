"""Labs whose hosts have network cards: real gloo, real sockets, what the wire carries. Needs root and /dev/net/tun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from card_pipe import MISSING
from paceline import lab
from paceline.codecs import decode, encode, get
from paceline.errors import UserError
from paceline.lab import card, journal, kernel

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

GLOO = """
import datetime, os, sys, time
import torch, torch.distributed as dist
from paceline.nic.marking import marking

to, marks, rounds = sys.argv[1], sys.argv[2] == "marked", int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=100))
if marks:
    with marking() as marked:
        group = dist.new_group(list(range(world)))
        dist.barrier(group=group)
    assert marked
else:
    group = dist.new_group(list(range(world)))
values = torch.randn(300_007, generator=torch.Generator().manual_seed(rank)) * 0.02
for _ in range(rounds):
    total = values.clone()
    dist.all_reduce(total, group=group)
integers = torch.arange(70_000, dtype=torch.int64) * (rank + 1)
dist.all_reduce(integers)
torch.save({"before": values, "after": total, "integers": integers, "nic": os.environ.get("PACELINE_NIC")}, f"{to}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""
SOCKETS = """
import os, socket, struct, sys, time
import numpy as np
from paceline.nic.marking import mark_sockets

address, to, port = sys.argv[1], sys.argv[2], int(os.environ["MASTER_PORT"])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
values = (np.random.default_rng(5).standard_normal(200_001) * 0.02).astype("<f4").tobytes()
if os.environ["RANK"] == "0":
    with socket.create_server((address, port), family=family) as server:
        link, _ = server.accept()
        with link, open(f"{to}/received", "wb") as file:
            began = time.perf_counter()
            link.sendall(b"!")  # nothing comes before the clock runs
            while data := link.recv(1 << 16):
                file.write(data)
            print(time.perf_counter() - began)
else:
    for _ in range(2000):
        try:
            link = socket.create_connection((address, port), timeout=100)
            break
        except OSError:
            time.sleep(0.05)
    with link:
        mark_sockets([link.fileno()])
        link.recv(1)
        link.sendall(struct.pack("<6Q", 48 + len(values), 1, 7, 0, len(values), 0) + values)
"""


def through_codec(values: np.ndarray) -> np.ndarray:
    return decode(encode(get("inceptionn"), np.ascontiguousarray(values)))


def gloo(made: lab.Lab, to: Path, marks: str = "marked", rounds: int = 1) -> list[dict[str, np.ndarray]]:
    """What each rank had before and after an all-reduce over a group of its own."""
    import torch

    to.mkdir(exist_ok=True)
    made.run([sys.executable, "-c", GLOO, str(to), marks, str(rounds)], timeout=200, env=environment())
    found = [torch.load(to / f"{rank}.pt") for rank in range(made.topology.hosts)]
    for ranks in found:
        assert ranks["nic"] == made.topology.nic
        assert np.array_equal(ranks["integers"].numpy(), np.arange(70_000) * sum(range(1, len(found) + 1)))  # unmarked: exact
    return [{name: ranks[name].numpy() for name in ("before", "after")} for ranks in found]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}


def check_sums(ranks: list[dict[str, np.ndarray]]) -> None:
    """Of each block one rank has its own plus the other's as it came, the other what of that came back."""
    (x0, x1), (after0, after1) = ([rank[name] for rank in ranks] for name in ("before", "after"))
    assert np.array_equal(through_codec(after0), through_codec(after1))  # equal after the owners' pass, to the bit
    at0, at1 = x0 + through_codec(x1), x1 + through_codec(x0)
    of_0 = (after0 == at0) & (after1 == through_codec(at0))
    of_1 = (after1 == at1) & (after0 == through_codec(at1))
    # A value that two segments share goes as it is: few do.
    assert 0.4 < of_0.mean() < 0.6 and (of_0 | of_1).mean() > 0.995
    assert not np.array_equal(after0, x0 + x1)


def wait_until(true: Callable[[], bool], seconds: float = 150.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def one_card(made: lab.Lab, host: int) -> card.CardCounters:
    found = made.cards()[host]
    assert found is not None
    return found


@pytest.fixture
def pair(name: str) -> Iterator[lab.Lab]:
    if lacking := kernel.lacking_parts("tap"):
        pytest.skip(f"needs a kernel with {lacking[0]} interfaces")
    with lab.up(2, "200Mb/s", name, nic="inceptionn") as made:
        yield made


@pytest.mark.long
def test_an_all_reduce_gives_what_the_codec_gives_and_the_link_carries_less(pair: lab.Lab, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    plain = gloo(pair, tmp_path, "unmarked")
    assert np.array_equal(plain[0]["after"], plain[0]["before"] + plain[1]["before"])
    before = pair.counters()
    assert one_card(pair, 0).segments == 0
    check_sums(gloo(pair, tmp_path))
    after = pair.counters()
    for host in (0, 1):
        sent = one_card(pair, host)
        assert sent.left_alone == sent.damaged == sent.dropped == sent.gaps == 0
        assert sent.compressed > 800 and sent.bytes_before > 1_200_000 > 2.5 * sent.bytes_after
        assert (
            sent.restored == one_card(pair, 1 - host).compressed and sent.received_bytes < one_card(pair, 1 - host).bytes_after
        )
        both_fewer = 2 * before[host].tx_bytes - after[host].tx_bytes
        assert both_fewer == pytest.approx(sent.bytes_before - sent.bytes_after, rel=0.15)  # headers of segments are not saved


@pytest.mark.long
@pytest.mark.everyday("9-has died")
@pytest.mark.parametrize(("signalled", "wrong"), [(signal.SIGKILL, "has died"), (signal.SIGSTOP, "is stopped")])
def test_a_card_that_fails_ends_the_job_with_one_error_and_the_same_up_makes_it_anew(
    pair: lab.Lab, tmp_path: Path, signalled: signal.Signals, wrong: str
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    seen: list[BaseException] = []

    def job() -> None:
        try:
            gloo(pair, tmp_path, rounds=10_000)
        except lab.HostFailed as error:
            seen.append(error)

    running = threading.Thread(target=job)
    running.start()
    wait_until(lambda: one_card(pair, 0).compressed > 200)
    killed = time.monotonic()
    failed = one_card(pair, 1).process
    os.kill(failed, signalled)
    running.join(timeout=100)
    assert not running.is_alive() and time.monotonic() - killed < 30
    assert [str(error) for error in seen] == [f"host 1 (10.77.0.2): its network card {wrong}; the same lab up replaces it"]
    status = pair.status()
    assert status.lacking == ("the network card of host 1",) and status.links == ("up", "up") and status.cards[1] is None
    assert status.to_json()["hosts"][0]["nic"]["compressed"] > 200 and status.to_json()["hosts"][1]["nic"] == {}
    with pytest.raises(UserError, match="incomplete: the card of host 1; the same paceline lab up replaces it"):
        pair.run(["true"])
    again = lab.up(2, "200Mb/s", pair.topology.name, nic="inceptionn")
    assert again.fresh and again.status().complete and not kernel.has_mark(failed, pair.topology.name)
    again.run(["true"], timeout=200)


def test_a_card_that_is_stopped_for_a_moment_is_at_work(pair: lab.Lab, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "STOPPED_S", 60)
    process = one_card(pair, 1).process
    directory = journal.card_directory(pair.topology.name)
    os.kill(process, signal.SIGSTOP)
    going_on = threading.Timer(0.1, os.kill, (process, signal.SIGCONT))
    going_on.start()
    assert card.fault(pair.topology, directory, 1) == ""
    going_on.join()
    assert pair.status().complete


@pytest.mark.long
def test_two_jobs_at_once_and_down_leaves_nothing(pair: lab.Lab, tmp_path: Path, runtime: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    results: list[list[dict[str, np.ndarray]]] = []
    jobs = [threading.Thread(target=lambda i=i: results.append(gloo(pair, tmp_path / str(i)))) for i in range(2)]  # type: ignore[misc]
    for running in jobs:
        running.start()
    for running in jobs:
        running.join()
    assert len(results) == 2
    for ranks in results:
        check_sums(ranks)
    processes = [one_card(pair, host).process for host in (0, 1)]
    assert pair.down() == []  # the cards are part of the lab, not something that was left running
    wait_until(lambda: not any(kernel.has_mark(process, pair.topology.name) for process in processes))
    assert list(runtime.iterdir()) == []


@pytest.mark.long
def test_large_packets_and_ipv6(name: str, tmp_path: Path) -> None:
    values = (np.random.default_rng(5).standard_normal(200_001) * 0.02).astype(np.float32)
    with lab.up(2, "200Mb/s", name, nic="inceptionn", mtu=9000, ipv6=True) as made:
        for address in (made.topology.address6(0), made.topology.address(0)):
            before = one_card(made, 1)
            made.run([sys.executable, "-c", SOCKETS, address, str(tmp_path)], timeout=200, env=environment())
            received = (tmp_path / "received").read_bytes()
            assert np.array_equal(np.frombuffer(received[48:], np.float32), through_codec(values))
            sent = one_card(made, 1)
            segments, compressed = sent.segments - before.segments, sent.compressed - before.compressed
            assert 800_000 / 8960 < segments < 200 and compressed >= segments - 2


def test_an_engine_with_a_rate_is_never_faster(name: str, tmp_path: Path) -> None:
    with lab.up(2, "1Gb/s", name, nic="inceptionn-scaled:0.02Gb/s") as made:
        results = made.run(
            [sys.executable, "-c", SOCKETS, made.topology.address(0), str(tmp_path)], timeout=200, env=environment()
        )
        assert one_card(made, 0).restored > 500
    data, credit = 8 * 4 * 200_001, 0.001 * 2 + 64 * 8 * 1448 / 20e6  # of both cards, and what one batch holds
    assert float(results[0].stdout) > data / 20e6 - credit


def test_ports_are_marked_by_the_kernel(name: str, tmp_path: Path) -> None:
    if not kernel.which("nft"):
        pytest.skip("needs nft: apt-get install nftables")
    pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    with lab.up(2, "200Mb/s", name, nic="inceptionn,bound=2^-10", nic_ports="30001-65535") as made:
        check_sums(gloo_of_all_groups(made, tmp_path))
        assert one_card(made, 0).flows >= 2 and one_card(made, 0).gaps == 0


def gloo_of_all_groups(made: lab.Lab, to: Path) -> list[dict[str, np.ndarray]]:
    """As gloo, where every connection is marked from its first packet on, the one with the integers too."""
    import torch

    code = GLOO.replace("dist.all_reduce(integers)", "")
    made.run([sys.executable, "-c", code, str(to), "unmarked", "1"], timeout=200, env=environment())
    return [{k: v.numpy() for k, v in torch.load(to / f"{rank}.pt").items() if k in ("before", "after")} for rank in (0, 1)]


def test_a_host_that_dies_takes_its_card_along_and_comes_back_with_one(pair: lab.Lab) -> None:
    process = one_card(pair, 1).process
    assert pair.power_off(1) == [] and not kernel.has_mark(process, pair.topology.name)
    assert pair.status().complete and pair.status().links == ("up", "cut")
    pair.power_on(1)
    assert pair.status().complete and pair.status().links == ("up", "up") and one_card(pair, 1).process != process
    pair.run(["true"], timeout=200)


@pytest.mark.long
def test_up_and_status_on_the_command_line(name: str) -> None:
    def paceline(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paceline", "lab", *words, "--name", name]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **environment()})

    up = ("up", "--hosts", "2", "--link", "100Mb/s", "--nic", "inceptionn:10Gb/s")
    first = paceline(*up)
    assert first.stdout == f"{name}: 2 hosts, 100 Mb/s each way, cards inceptionn,bound=2^-10:10Gb/s; up\n", first.stderr
    assert " ".join(paceline(*up).stdout.split()).endswith("was up already, left as it is")
    other = paceline(*up[:-2])
    assert other.returncode == 2 and "is up with cards inceptionn,bound=2^-10:10Gb/s, not no cards" in other.stderr
    status = paceline("status").stdout
    assert "complete" in status and "left alone" in status and max(map(len, status.splitlines())) <= 80
    os.kill(one_card(lab.find(name), 0).process, signal.SIGKILL)
    assert "lacking: the network card of host 0" in paceline("status").stdout
    assert paceline("down").stdout == f"{name}: down\n"


def test_what_a_card_cannot_do_is_said_at_once(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="loopback has no network cards"):
        lab.up(2, None, name, nic="inceptionn")
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"nft is missing.*apt-get install nftables"):
        patch.setattr(kernel, "which", lambda tool: None if tool == "nft" else "/bin/true")
        card.check(lab.lab.topology(2, "1Gb/s", name, nic="inceptionn", nic_ports="1-2"))
    monkeypatch.setattr(card, "program", lambda: tmp_path / "none")
    with pytest.raises(UserError, match="no network card; make native"):
        lab.up(2, "1Gb/s", name, nic="inceptionn")
    assert name not in lab.labs()


def test_a_card_that_does_not_start_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(journal.DIRECTORY, str(tmp_path / "runtime"))
    broken = tmp_path / "engine.so"
    broken.write_bytes(b"no library")
    with pytest.raises(
        UserError, match=r"cannot make the lab: the card of host 0: _nic_card: .*engine.so.*nothing of it is left"
    ):
        lab.up(2, "1Gb/s", name, nic=f"inceptionn,engine={broken}")
    assert lab.labs() == [] and list((tmp_path / "runtime").iterdir()) == []
