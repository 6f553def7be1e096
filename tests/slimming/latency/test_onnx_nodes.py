"""Single nodes of ONNX Runtime."""

from __future__ import annotations

import time
from typing import Any

import pytest

from paceline.slimming.latency import onnx_nodes
from paceline.slimming.latency.onnx_nodes import ConvolutionWindow, OnnxNode, is_blocked, seconds

PLAIN = ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1))


def convolution(inputs: tuple[int, ...], leaving: int, kernel: tuple[int, ...], *, groups: int = 1, stride: int = 1) -> float:
    ones = (1,) * len(kernel)
    window = ConvolutionWindow(kernel, (stride,) * len(kernel), tuple(size // 2 for size in kernel), ones, groups)
    return seconds(OnnxNode("conv", inputs, leaving, window))


def test_more_work_takes_longer() -> None:
    assert seconds(OnnxNode("linear", (64, 512), 512)) > seconds(OnnxNode("linear", (64, 512), 64))
    wide = convolution((1, 64, 28, 28), 64, (3, 3))
    thin = convolution((1, 64, 28, 28), 16, (3, 3))
    depthwise = convolution((1, 64, 28, 28), 64, (3, 3), groups=64)
    assert 0 < depthwise < wide > thin > 0


def test_groups_one_dimension_and_odd_channels_are_timed() -> None:
    assert convolution((1, 24, 9, 9), 36, (3, 3), groups=12) > 0
    assert convolution((1, 8, 32), 16, (5,), stride=2) > 0
    assert convolution((1, 17, 9, 9), 5, (1, 1)) > 0


def test_blocks_are_as_onnx_runtime_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_nodes, "block", lambda: 16)
    assert is_blocked(32, 8, PLAIN) and is_blocked(20, 8, PLAIN)
    assert not is_blocked(18, 8, PLAIN), "ONNX Runtime reorders channels by four"
    assert not is_blocked(8, 64, PLAIN), "less than a block"
    assert is_blocked(32, 32, ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1), 32))
    assert not is_blocked(32, 32, ConvolutionWindow((3, 3), (1, 1), (1, 1), (1, 1), 4))
    monkeypatch.setattr(onnx_nodes, "block", lambda: 1)
    assert not is_blocked(32, 32, PLAIN)


def test_one_thread_is_timed_by_what_the_processor_spent() -> None:
    assert onnx_nodes.clock_for(1) is time.thread_time and onnx_nodes.clock_for(2) is time.perf_counter


def test_copies_in_turn_are_timed_each() -> None:
    node = OnnxNode("linear", (64, 1024), 1024)
    assert 0.3 < seconds(node, copies=4) / seconds(node) < 30


def test_what_a_call_costs_is_timed_beside_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that takes three times as long by now, for calls as well."""
    now, slow = [0.0], 1.0
    monkeypatch.setattr(onnx_nodes, "clock_for", lambda threads: lambda: now[0])

    def calls_of(cost: float) -> Any:
        return [lambda: now.__setitem__(0, now[0] + slow * cost)]

    monkeypatch.setattr(onnx_nodes, "_calls", lambda *_: calls_of(5e-6))
    monkeypatch.setattr(onnx_nodes, "_empty_calls", lambda threads: calls_of(2e-6))
    assert onnx_nodes.alone([], {}, {}) == pytest.approx(3e-6)
    slow = 3.0
    assert onnx_nodes.alone([], {}, {}) == pytest.approx(9e-6)
