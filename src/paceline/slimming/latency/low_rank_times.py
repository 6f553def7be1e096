"""Measurement of thin layers and the whole layer that they replace, in turns, on ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from paceline.slimming.export.onnx_export import feed, open_session
from paceline.slimming.latency.latency import WARM_UP

TURN_S, QUIET, MOST = 0.004, 10, 100
"""Seconds of a turn; turns without a fall by ``NOTICED`` of any least time that end the timing; most turns."""
NOTICED = 0.01
Key = TypeVar("Key")


def chain_seconds(chains: Mapping[Key, Sequence[nn.Module]], shape: tuple[int, ...], threads: int = 1) -> dict[Key, float]:
    """Return the seconds of chains of layers by name, each the least of many runs.

    Each time includes the cost of one call, so only differences count.

    Args:
        chains: convolutions or linear layers. ``shape``: shape of the input of each chain.
    """
    given = np.random.default_rng(0).standard_normal(shape, np.float32)
    models = {}
    for name, layers in chains.items():
        entering = given.reshape(-1, shape[-1]) if isinstance(layers[0], nn.Linear) else given
        models[name] = onnx_chain(layers, entering.shape), (torch.from_numpy(entering),)
    return least_seconds(models, threads)


def least_seconds(models: Mapping[Key, tuple[Any, tuple[Any, ...]]], threads: int = 1) -> dict[Key, float]:
    """Return the least seconds of a run of each model, by name. The models take turns until no minimum falls.

    On a busy machine the minimum is close to that of an idle one.

    Args:
        models: an ONNX model or its file, and inputs, by name.
    """
    runs = {}
    for name, (model, inputs) in models.items():
        session = open_session(model, threads)
        given = feed(session, inputs)
        for _ in range(WARM_UP):
            session.run(None, given)
        start = time.perf_counter()
        session.run(None, given)
        runs[name] = session, given, max(1, round(TURN_S / max(time.perf_counter() - start, 1e-7)))
    least, quiet = dict.fromkeys(runs, float("inf")), 0
    for _ in range(MOST):
        quiet += 1
        for name, (session, given, times) in runs.items():
            for _ in range(times):
                start = time.perf_counter()
                session.run(None, given)
                seconds = time.perf_counter() - start
                if seconds < (1 - NOTICED) * least[name]:
                    quiet = 0
                least[name] = min(least[name], seconds)
        if quiet == QUIET:
            break
    return least


def onnx_chain(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> Any:
    """Return an ONNX model of consecutive convolutions or linear layers with their weights, built in a millisecond. Zeros
    replace any other padding, at equal time.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights = [], []
    for number, layer in enumerate(layers):
        operands = [f"x{number}", f"w{number}"]
        tensors = {f"w{number}": layer.weight, f"b{number}": layer.bias}
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor):
                weights.append(numpy_helper.from_array(tensor.detach().float().cpu().numpy(), name))
        operands += [f"b{number}"] if isinstance(layer.bias, torch.Tensor) else []
        kind, settings = ("Gemm", {"transB": 1}) if isinstance(layer, nn.Linear) else ("Conv", _window(layer))
        nodes.append(helper.make_node(kind, operands, [f"x{number + 1}"], **settings))
    given = helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info(f"x{len(layers)}", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "chain", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _window(layer: Any) -> dict[str, Any]:
    settings = {"strides": list(layer.stride), "dilations": list(layer.dilation), "group": layer.groups}
    if isinstance(layer.padding, str):
        return settings | {"auto_pad": {"same": "SAME_UPPER", "valid": "VALID"}[layer.padding]}
    return settings | {"pads": [*layer.padding, *layer.padding]}
