"""Devices of a user's own file: facts as given, beside those of the catalogue, and errors that say what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from facts import facts
from paceline import hardware
from paceline.errors import UserError
from paceline.hardware.device_rows import VARIABLE
from paceline.prediction import predict
from paceline.strategy import Strategy
from paceline.workload import Workload

X1 = Path(__file__).parents[2] / "examples/my_chip.toml"
NEEDED = 'name = "N"\nkind = "gpu"\nlink = "PCIe 4"\npeak_flops = {fp32 = 1e13}\nmemory = 8e9\nmemory_bandwidth = 1e12\n'


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the user's file."""

    def write(text: str) -> Path:
        file = tmp_path / f"devices{len(list(tmp_path.iterdir()))}.toml"
        file.write_text(text, encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(file))
        return file

    return write


def test_the_example_is_a_device_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hardware.devices()
    monkeypatch.setenv(VARIABLE, str(X1))
    chip = hardware.device("x1")
    assert (chip.memory.value, chip.units.value, chip.chip) == (96e9, 100, "Hopper")
    assert chip.peak("bf16").value == 600e12 and "given by the user" in chip.memory.source
    assert hardware.devices() == (chip, *before) and hardware.find("X1") == chip
    step = predict(Workload.named("bert-large"), hardware.cluster("X1", 8, 1), Strategy.of(world_size=8, global_batch_size=256))
    assert step.step_time_s > 0 and step.cluster["device"] == "X1"
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UserError, match="unknown device 'X1'"):
        hardware.device("X1")


def test_one_of_the_same_name_replaces_the_catalogue_s(own) -> None:
    own("[[device]]\n" + NEEDED.replace('"N"', '"A100 SXM 80GB"'))
    assert hardware.device("A100 SXM 80GB").memory.value == 8e9
    assert sum(device.name == "A100 SXM 80GB" for device in hardware.devices()) == 1


def test_a_number_may_carry_its_source(own) -> None:
    sheet = '[sources.sheet]\ntitle = "Datasheet"\nurl = "https://example.org"\ndate = "2026-01-01"\n'
    own(sheet + "[[device]]\n" + NEEDED.replace("memory = 8e9", 'memory = {value = 8e9, source = "sheet"}'))
    assert hardware.device("N").memory.source == "Datasheet <https://example.org>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"has no \[\[device\]\]"),
        ("[[device]\n", facts("TOML", "docs/add-a-chip.md")),
        ("[[device]]\n" + NEEDED.replace("memory = 8e9\n", ""), "has no memory; take them from the datasheet"),
        ("[[device]]\n" + NEEDED + "memmory = 1\n", "unknown key of .*'memmory'.*did you mean memory"),
        ("[[device]]\n" + NEEDED.replace('"gpu"', '"gpus"'), "unknown kind of .*did you mean gpu"),
        ("[[device]]\n" + NEEDED + 'architecture = "Hoper"\n', "unknown architecture of .*nearest: Hopper"),
        ("[[device]]\n" + NEEDED.replace("memory = 8e9", "memory = -1"), facts("memory", "-1", "positive")),
        ("[[device]]\n" + NEEDED.replace("memory = 8e9", 'memory = "80 GB"'), facts("memory", "'80 GB'", "positive")),
        ("[[device]]\n" + NEEDED.replace("fp32 =", "fp23 ="), "unknown precision of .*'fp23'"),
        ("[[device]]\n" + NEEDED.replace("PCIe 4", "PCIe 44"), "unknown link of N"),
        ("[[device]]\n" + NEEDED.replace("{fp32 = 1e13}", "1e13"), "write {bf16 = 989e12}"),
        ("device = 3\n", r"has no \[\[device\]\]"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(own, text: str, words: str) -> None:
    own(text)
    with pytest.raises(UserError, match=words):
        hardware.devices()


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere.toml")
    with pytest.raises(UserError, match=r"cannot read /nowhere\.toml: No such file"):
        hardware.device("A100")
