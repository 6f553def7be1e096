"""Predictions for processors that are not here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.hardware.edge import edge_device
from paceline.slimming.latency.edge_times import Machine, edge_times, on_device, this_machine
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_times import REST, LayerTimes
from paceline.slimming.latency.onnx_nodes import ConvolutionWindow, OnnxNode
from paceline.slimming.structures.tracing import structures_of

PI = edge_device("Raspberry Pi 4")
HERE = Machine(100 * PI.one_core.value, 10 * PI.bandwidth.value)
BUSY = OnnxNode("conv", (1, 64, 56, 56), 64, ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1)))
READING = OnnxNode("linear", (1, 4096), 4096)


def test_a_layer_is_as_far_from_the_roofline_there_as_here() -> None:
    least = 2 * BUSY.products / HERE.peak
    assert on_device([("c", BUSY, 2 * least)], 0.0, PI, here=HERE).seconds == pytest.approx(200 * least)
    assert on_device([("c", BUSY, least / 2)], 0.0, PI, here=HERE).seconds == pytest.approx(100 * least), "not beyond it"
    reads = READING.bytes / HERE.bandwidth
    assert on_device([("l", READING, reads)], 0.0, PI, here=HERE).seconds == pytest.approx(10 * reads)


def test_threads_help_where_arithmetic_counts_only() -> None:
    def take(node: OnnxNode, threads: int) -> float:
        return on_device([("n", node, 1.0)], 0.0, PI, threads, HERE).seconds

    assert take(BUSY, 4) == pytest.approx(take(BUSY, 1) / 4) and take(BUSY, 8) == take(BUSY, 4)
    assert take(READING, 4) == pytest.approx(take(READING, 1), rel=0.01)


def test_work_and_bytes_are_those_of_the_shapes() -> None:
    assert BUSY.products == 64 * 64 * 9 * 56 * 56 and BUSY.bytes == 4 * (2 * 64 * 56 * 56 + 64 * 64 * 9)
    assert READING.products == 4096**2 and READING.bytes == 4 * (2 * 4096 + 4096**2)
    both = OnnxNode("lstm", (2, 7, 8), 12, directions=2)
    assert both.products == 2 * 7 * 2 * 4 * 12 * (8 + 12)
    assert both.bytes == 4 * (2 * 7 * 8 + 2 * (2 * 7 * 12 + 4 * 12 * (8 + 12)))


def test_a_slimmed_network_is_predicted_with_a_range() -> None:
    found = structures_of(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), (torch.randn(512, 64),))
    times = LayerTimes(found, Latency(1e-3, 9e-4, 1.1e-3, 5))
    whole, half = (edge_times(times, PI, [each.number for each in found.every[:gone]]) for gone in (0, 128))
    assert (
        whole.low_s < whole.high_s and whole.low_s / whole.seconds == half.low_s / half.seconds and half.seconds < whole.seconds
    )
    assert list(whole.by_layer) == ["0", "2", REST] and "Raspberry Pi 4" in whole.note and "not measured" in whole.note


def test_this_machine_is_measured_once() -> None:
    assert this_machine() is this_machine() and this_machine().peak > 1e8 < this_machine().bandwidth
