"""Names of devices and instances among other words."""

from __future__ import annotations

from each_row import each_row
from paceline.hardware import devices
from paceline.hardware.instances import device_in
from paceline.hardware.phrases.machine_names import known_name, name_at
from paceline.hardware.phrases.tokens import spaced, tokens


@each_row(
    ("text", "name", "rented"),
    [
        ("H100 80GB HBM3 nodes", "H100 80GB HBM3", False),
        ("A100-SXM4-80GB:8", "A100-SXM4-80GB", False),
        ("3090 with an NVLink bridge", "3090 NVLink", False),
        ("H100s", "H100", False),
        ("L40S", "L40S", False),
        ("L40Ss", "L40S", False),
        ("V100S PCIe 32GB", "V100S PCIe 32GB", False),
        ("v5p-512 slice", "v5p-512", True),
        ("GB200 NVL4", "GB200 NVL4", True),
        ("Colab T4", "Colab T4", True),
        ("A100 60GB", "A100", False),
    ],
)
def test_the_longest_true_name(text: str, name: str, rented: bool) -> None:
    found = name_at(tokens(spaced(text), known_name), 0)
    assert found is not None and (found.text, found.rented) == (name, rented)


def test_every_device_is_read_by_each_of_its_names() -> None:
    for entry in devices():
        for text in (entry.name, *entry.aliases):
            found = name_at(tokens(spaced(text), known_name), 0)
            assert found is not None and device_in(found.text) == entry, text


def test_a_provider_before_a_name_is_no_machine() -> None:
    assert name_at(tokens("Kaggle TPU v3-8", known_name), 0) is None
    assert name_at(tokens("Kaggle", known_name), 0) is not None
    assert name_at(tokens("Kaggle Colab " * 15, known_name), 0) is not None  # in linear time
