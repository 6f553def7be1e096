"""Groups hold each name once."""

from __future__ import annotations

from paceline import hardware
from paceline.serve.catalogue_groups import device_groups, maker, model_groups
from paceline.workload import names


def test_every_device_is_in_one_group_and_the_newest_comes_first() -> None:
    groups = {group.title: [entry.name for entry in group.entries] for group in device_groups()}
    listed = [name for members in groups.values() for name in members]
    assert sorted(listed) == sorted(device.name for device in hardware.devices() if device.kind != "cpu")
    assert next(iter(groups)) == "NVIDIA NVLink servers" and "RTX 4090" in groups["NVIDIA desktop cards"]
    servers = groups["NVIDIA NVLink servers"]
    assert servers.index("B200") < servers.index("H100 SXM") < servers.index("A100 SXM 80GB")
    assert "MI300X" in groups["AMD GPUs of servers"] and "TPU v5p" in groups["Google"]


def test_makers_are_companies() -> None:
    own = {device.name: maker(device) for device in hardware.devices()}
    assert (own["Gaudi 2"], own["Trainium 2"], own["MI100"], own["TPU v4"]) == ("Intel", "AWS", "AMD", "Google")


def test_every_model_is_in_one_group() -> None:
    groups = {group.title: [entry.name for entry in group.entries] for group in model_groups()}
    assert sorted(name for members in groups.values() for name in members) == sorted(names())
    assert "llama-3-8b" in groups["llama models"] and "resnet-50" in groups["images, speech, recommendation"]
