"""Labs as the kernel has them. Needs root; every test also checks that the machine's own network is as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from paceline import lab
from paceline.errors import UserError
from paceline.lab import journal, kernel

STREAM = """
import json, os, socket, sys, time
seconds, port = float(sys.argv[1]), int(os.environ["MASTER_PORT"])
address = os.environ["MASTER_ADDR"]
if os.environ["RANK"] == "0":
    with socket.create_server((address, port)) as server:
        link, _ = server.accept()
    buffer, total, began = bytearray(1 << 16), 0, None
    start = time.perf_counter()
    while count := link.recv_into(buffer):
        total += count
        if began is None and time.perf_counter() - start > 0.3 and count < len(buffer):  # what had queued up has been read
            began, before = time.perf_counter(), total
    took = time.perf_counter() - began if began else 1.0
    print(json.dumps({"bytes": total, "rate": (total - before) / took if began else 0.0}))
elif os.environ["RANK"] == "1":
    for _ in range(2000):
        try:
            link = socket.create_connection((address, port), timeout=100)
            break
        except OSError:
            time.sleep(0.05)
    end = time.monotonic() + seconds
    data = bytes(100_000)
    while time.monotonic() < end:
        link.sendall(data)
    link.close()
"""


def stream(made: lab.Loopback, seconds: float) -> dict[str, float]:
    """What host 0 received from host 1 over TCP."""
    results = made.run([sys.executable, "-c", STREAM, str(seconds)], timeout=200)
    found = json.loads(results[0].stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def pair(name: str) -> Iterator[lab.Lab]:
    with lab.up(2, "100Mb/s", name) as made:
        yield made


def namespaces(name: str) -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=100).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith(f"paceline-{name}")}


@pytest.mark.long
def test_up_and_down_from_the_command_line(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}

    def paceline(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paceline", "lab", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)

    up = ("up", "--hosts", "3", "--link", "1Gb/s", "--name", name)
    first = paceline(*up)
    assert first.returncode == 0 and first.stdout == f"{name}: 3 hosts, 1.00 Gb/s each way; up\n"
    assert f"namespace 4 of 4: paceline-{name}-h2" in first.stderr
    again = paceline(*up)
    assert (again.returncode, again.stderr) == (0, "") and "was up already" in again.stdout
    other = paceline(*up[:2], "4", *up[3:])
    assert other.returncode == 2 and "is up with 3 hosts, not 4" in other.stderr and "lab down" in other.stderr
    ran = paceline("exec", "--name", name, "--", "ip", "-br", "-4", "addr", "show", "dev", "pl0")
    assert ran.returncode == 0
    assert sorted(line.split()[1] + line.split()[-1] for line in ran.stdout.splitlines()) == [
        f"{host}10.77.0.{host + 1}/24" for host in range(3)
    ]
    status = paceline("status", "--name", name)
    assert "3 hosts, 1.00 Gb/s each way; complete" in status.stdout and status.stdout.count(" up ") == 3
    assert max(map(len, status.stdout.splitlines())) <= 80
    gone = paceline("down", "--name", name)
    assert (gone.returncode, gone.stdout) == (0, f"{name}: down\n")
    assert namespaces(name) == set()


def test_sys_stays_visible_and_counters_start_at_zero(pair: lab.Lab) -> None:
    results = pair.run(["sh", "-c", "ls /sys/class/net /sys/bus | sort | md5sum; cat /proc/net/if_inet6"], timeout=100)
    own = subprocess.run(["sh", "-c", "ls /sys/class/net /sys/bus | sort | md5sum"], capture_output=True, text=True, timeout=90)
    assert [result.stdout for result in results] == [own.stdout] * 2
    time.sleep(1.0)  # what must not come has had time to
    assert all(count.tx_bytes == count.rx_bytes == 0 for count in pair.counters())


def test_a_stream_runs_at_the_links_rate_and_the_counters_have_its_bytes(pair: lab.Lab) -> None:
    assert pair.topology.link
    ratios, total = [], 0.0
    for _ in range(10):  # a machine that is busy with other things is late now and then; it never is early
        seen = stream(pair, 2.5)
        total += seen["bytes"]
        ratios.append(seen["rate"] / pair.topology.link)
        if ratios[-1] > 0.87:
            break
    assert 0.87 < max(ratios) < 1.0, ratios  # 0.956 is what headers leave
    receiver, sender = pair.counters()
    assert 1.0 <= sender.tx_bytes / total < 1.07
    assert 1.0 <= receiver.rx_bytes / total < 1.07
    assert sender.rx_bytes == receiver.tx_bytes < 0.05 * total and sender.tx_packets > 0


def test_a_cut_cable_stops_a_stream_and_a_mended_one_lets_it_go_on(pair: lab.Lab) -> None:
    def moved() -> int:
        return pair.counters()[0].rx_bytes

    job = threading.Thread(target=stream, args=(pair, 12.0))
    job.start()
    until = time.monotonic() + 100
    while moved() < 1_000_000 and time.monotonic() < until:
        time.sleep(0.05)
    pair.cut(1)
    assert pair.status().links == ("up", "cut") and pair.status().complete
    before = once_still(moved)
    assert before >= 1_000_000
    pair.mend(1)
    job.join(timeout=200)
    assert not job.is_alive() and moved() > before and pair.status().links == ("up", "up")
    with pytest.raises(UserError, match="no host 2; give one from 0 to 1"):
        pair.cut(2)


def test_two_labs_side_by_side(name: str) -> None:
    with lab.up(2, "100Mb/s", name) as one, lab.up(2, "50Mb/s", f"{name}-h0") as two:
        assert len(namespaces(name)) == 6 and lab.labs() == [name, f"{name}-h0"]
        stream(two, 0.5)
        assert all(count.tx_bytes == 0 for count in one.counters()) and two.counters()[1].tx_bytes > 100_000
        one.down()
        assert two.status().complete and not one.status().complete
    assert namespaces(name) == set() and lab.labs() == []


def test_what_looks_alike_is_not_touched(name: str) -> None:
    alike = [f"paceline-{name}-h9", f"paceline-{name}x-h0", f"paceline-{name}"]
    for entry in alike:
        kernel.add_namespace(entry)
    try:
        inodes = [(Path("/var/run/netns") / entry).stat().st_ino for entry in alike]
        with lab.up(2, "1Gb/s", name):
            assert len(namespaces(name)) == 6
        assert [(Path("/var/run/netns") / entry).stat().st_ino for entry in alike] == inodes
        assert namespaces(name) == set(alike)
    finally:
        for entry in alike:
            kernel.delete_namespace(entry)


def test_a_namespace_of_our_name_that_no_file_lists_is_refused(name: str) -> None:
    entry = f"paceline-{name}-h1"
    kernel.add_namespace(entry)
    try:
        with pytest.raises(UserError, match=f"{entry} is there already, and no file says that Paceline made it"):
            lab.up(2, "1Gb/s", name)
        assert lab.down(name) == [] and namespaces(name) == {entry}
    finally:
        kernel.delete_namespace(entry)


def test_a_namespace_that_took_the_place_of_ours_is_left_alone(pair: lab.Lab) -> None:
    entry = pair.topology.namespace(1)
    kernel.delete_namespace(entry)
    kernel.add_namespace(entry)
    try:
        status = pair.status()
        assert status.links == ("up", "gone") and not status.complete and "host 1 (10.77.0.2)" in status.lacking[0]
        with pytest.raises(UserError, match="incomplete: host 1"):
            pair.run(["true"])
        assert pair.down() == [f"{entry} is now another's namespace; left alone"]
        assert namespaces(pair.topology.name) == {entry}
    finally:
        kernel.delete_namespace(entry)


def test_an_incomplete_lab_is_made_anew(pair: lab.Lab) -> None:
    kernel.delete_namespace(pair.topology.namespace(0))
    said: list[str] = []
    again = lab.up(2, "100Mb/s", pair.topology.name, say=said.append)
    assert again.fresh and again.status().complete and "made again" in said[0]


@pytest.mark.parametrize("after", [0, 1, 3, 4, 9, 15])
def test_a_failure_in_the_middle_leaves_nothing(after: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = kernel.system, []

    def fails(command: Sequence[str]) -> str:
        making = command[0] == "tc" or command[:3] == ("ip", "netns", "add") or "add" in command
        if making and len(done) == after:
            done.append(command)
            raise kernel.CommandFailed(f"{' '.join(command)}: injected")
        done.extend([command] if making and len(done) < after else [])
        return real(command)

    monkeypatch.setattr(kernel, "missing", lambda: [])
    monkeypatch.setattr(kernel, "system", fails)
    with pytest.raises(UserError, match=r"cannot make the lab: .*injected; nothing of it is left"):
        lab.up(3, "1Gb/s", name)
    assert namespaces(name) == set() and lab.labs() == []


def test_an_interrupted_up_leaves_nothing(name: str) -> None:
    def say(text: str) -> None:
        if "namespace 3" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.up(3, "1Gb/s", name, say=say)
    assert namespaces(name) == set() and lab.labs() == []


KILLED = """
import os, sys
from paceline import lab
from paceline.lab import journal, kernel
count, real = int(sys.argv[2]), kernel.system

def counted(command):
    global count
    if "add" in command or "set" in command:
        count -= 1
        if count < 0:
            os.kill(os.getpid(), 9)
    return real(command)

kernel.system = counted
lab.up(3, "1Gb/s", sys.argv[1])
"""


@pytest.mark.everyday("2-up", "12-down")
@pytest.mark.parametrize(("after", "then"), [(0, "down"), (2, "down"), (2, "up"), (12, "down"), (20, "up")])
def test_after_a_kill_down_and_up_find_what_is_left(after: int, then: str, name: str, runtime: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, name, str(after)], timeout=200, env=environment)
    assert done.returncode == -signal.SIGKILL
    left = journal.load(name)
    assert left and left.phase == "building" and namespaces(name) <= set(left.namespaces)
    assert len(namespaces(name)) == min(after, 4)
    if then == "up":
        made = lab.up(2, "100Mb/s", name)  # other parameters are no obstacle: that lab never was up
        assert made.fresh and made.status().complete and len(namespaces(name)) == 3
    lab.down(name)
    assert namespaces(name) == set() and not list(runtime.glob("lab-*"))


def test_exec_ends_the_rest_and_down_ends_what_a_killed_exec_left(pair: lab.Lab) -> None:
    with pytest.raises(lab.HostFailed, match=r"host 1 \(10.77.0.2, rank 1\) ended with code 5"):
        pair.run(["sh", "-c", "[ {rank} = 0 ] || exit 5; sleep 1000"], timeout=200)
    code = "import sys; from paceline import lab; lab.find(sys.argv[1]).run(['sh', '-c', 'sleep 77 & sleep 78'])"
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}
    runner = subprocess.Popen([sys.executable, "-c", code, pair.topology.name], env=environment)
    bystander = subprocess.Popen(["sleep", "1000"])
    guest = subprocess.Popen([*kernel.enter(pair.topology.namespace(0)), "sleep", "1000"])
    try:
        until = time.monotonic() + 100
        while (len(inside(pair, 0)) < 4 or len(inside(pair, 1)) < 3) and time.monotonic() < until:
            time.sleep(0.05)
        assert (len(inside(pair, 0)), len(inside(pair, 1))) == (4, 3)
        runner.kill()
        runner.wait()
        ours = set(inside(pair, 0)) | set(inside(pair, 1))
        notes = pair.down()
        assert sum("that paceline lab exec started" in note for note in notes) == 2
        assert any(f"process {guest.pid} not of Paceline left running" in note for note in notes)
        assert guest.poll() is None and bystander.poll() is None
        assert reaped(ours - {guest.pid})
    finally:
        for process in (runner, bystander, guest):
            process.kill()
            process.wait()


def once_still(count: Callable[[], int], for_s: float = 0.5, within_s: float = 100.0) -> int:
    """The count, once it has not changed for a while: what was under way has arrived."""
    deadline = time.monotonic() + within_s
    before, since = count(), time.monotonic()
    while time.monotonic() - since < for_s:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)
        now = count()
        if now != before:
            before, since = now, time.monotonic()
    return before


def inside(made: lab.Lab, host: int) -> list[int]:
    return [int(word) for word in kernel.system(("ip", "netns", "pids", made.topology.namespace(host))).split()]


def reaped(pids: set[int]) -> bool:
    """Whether they are zombies at most: whoever adopted them may take its time."""

    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "Z"

    return all(state(pid) == "Z" for pid in pids)


def test_leaving_a_lab_that_was_up_before_keeps_it(pair: lab.Lab) -> None:
    with lab.up(2, "100Mb/s", pair.topology.name) as again:
        assert not again.fresh
    assert lab.find(pair.topology.name).status().complete


def test_several_ranks_on_a_host_share_its_network(pair: lab.Lab) -> None:
    script = "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE $(readlink /proc/self/ns/net)"
    results = pair.run(["sh", "-c", script], per_host=2, timeout=100)
    assert [r.stdout.split()[0] for r in results] == ["0/2", "1/2", "0/2", "1/2"]
    seen = [r.stdout.split()[1] for r in results]
    assert seen[0] == seen[1] != seen[2] == seen[3]
