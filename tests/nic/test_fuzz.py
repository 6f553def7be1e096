"""Random and damaged packets through the card under sanitizers: the short form of ``make fuzz-nic``."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CARD = ("codec", "message_stream", "packet", "receiver", "segment", "statistics", "transmitter")
SOURCES = ["tests/fuzz/nic_card.cpp", *(f"csrc/nic/{name}.cpp" for name in CARD), "csrc/inceptionn_chunk.cpp", "csrc/isa.cpp"]
FLAGS = ("-std=gnu++17", "-O0", "-g1", "-Icsrc", "-Wno-psabi", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PACKETS = 20_000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("g++"):
        pytest.skip("needs g++: apt-get install g++")
    if not (ROOT / "csrc").is_dir():
        pytest.skip("needs a checkout with the sources")
    built = tmp_path_factory.mktemp("fuzz") / "nic_card_fuzz"
    done = subprocess.run(
        ["g++", *FLAGS, *SOURCES, "-o", str(built), "-ldl"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("needs the sanitizers' libraries: apt-get install g++")
    assert done.returncode == 0, done.stderr
    return built


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_no_packet_is_a_fault(driver: Path, seed: int) -> None:
    done = subprocess.run([str(driver), str(PACKETS), str(seed)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    counted = re.fullmatch(
        r"(\d+) packets in \d+ s: (\d+) compressed, (\d+) restored, (\d+) damaged, \d+ .*no fault\n", done.stdout
    )
    assert counted, done.stdout
    packets, compressed, restored, damaged = map(int, counted.groups())
    # They reach the inside of the card: what is compressed, restored and refused is not rare.
    assert packets >= PACKETS and compressed > PACKETS / 100 and restored > PACKETS / 50 and damaged > PACKETS / 100
