"""Layers of an LSTM or GRU with different widths, as a sequence of PyTorch's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from paceline.slimming.structures.given_tensors import StateList, narrows_states

Dims = Mapping[str, Mapping[int, Tensor]]
"""Remaining indices, by parameter and dimension."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class RecurrentStack(nn.Module):
    """Recurrent layers with the interface of ``nn.LSTM`` or ``nn.GRU``, except for the states. Layers have different widths, so
    each state is a list with one tensor of shape (batch, units) per layer and direction. It leaves the network as one tensor
    (``WholeStates``).

    Args:
        layers: modules with one layer each. ``dropout``: between them.
        wholes: widths of the states before slimming. ``stay``: remaining units, by state and by layer and direction.
    """

    def __init__(
        self, layers: list[nn.RNNBase], dropout: float, wholes: Sequence[int] = (), stay: Sequence[Sequence[Tensor]] = ()
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.drop = nn.Dropout(dropout)
        self._wholes, self._stay = tuple(wholes), [list(each) for each in stay]

    def forward(self, x: Any, states: Any = None) -> tuple[Any, Any]:
        """Run ``x`` through all layers. ``states``: as returned, hidden and cell states, or hidden states only."""
        ends = []
        for number, layer in enumerate(self.layers):
            x, end = layer(self._dropped(x) if number else x, None if states is None else self._layer_state(states, number))
            ends.append(end)
        if self._has_cells:
            return x, tuple(self._state([end[part] for end in ends], part) for part in range(2))
        return x, self._state(ends, 0)

    def _state(self, ends: list[Tensor], part: int) -> list[Tensor]:
        every = [one for end in ends for one in end.unbind(0)]
        return StateList(every, self._wholes[part], self._stay[part]) if self._wholes else every

    def _dropped(self, x: Any) -> Any:
        return x._replace(data=self.drop(x.data)) if isinstance(x, PackedSequence) else self.drop(x)

    def _layer_state(self, states: Any, number: int) -> Any:
        """Return the state of layer ``number``: a tensor, or a tuple of hidden and cell state."""
        if self._has_cells:
            return tuple(self._part(state, number) for state in states)
        return self._part(states, number)

    def _part(self, state: Any, number: int) -> Tensor:
        directions = 2 if self.layers[0].bidirectional else 1
        return torch.stack(tuple(state[number * directions : (number + 1) * directions]))

    @property
    def _has_cells(self) -> bool:
        return isinstance(self.layers[0], nn.LSTM)


def stacked(module: nn.RNNBase, dims: Dims) -> nn.Module:
    """Return a recurrent module without the removed units, of the same class if all layers keep one width."""
    layers = [_layer(module, number, dims) for number in range(module.num_layers)]
    if len(layers) == 1:
        return layers[0]
    shapes = {(layer.hidden_size, layer.proj_size) for layer in layers}
    own_inputs = {layer.input_size for layer in layers[1:]}
    if len(shapes) > 1 or own_inputs != {(layers[0].proj_size or layers[0].hidden_size) * (1 + module.bidirectional)}:
        return RecurrentStack(layers, module.dropout, *_remaining(module, dims, range(module.num_layers)))
    whole = _made(module, layers[0].input_size, layers[0].hidden_size, layers[0].proj_size, module.num_layers)
    with torch.no_grad():
        for number, layer in enumerate(layers):
            for name, tensor in layer.named_parameters():
                getattr(whole, name.replace("_l0", f"_l{number}")).copy_(tensor)
    return _narrowing(whole, module, dims, range(module.num_layers))


def _layer(module: nn.RNNBase, number: int, dims: Dims) -> nn.RNNBase:
    """Return one layer of a module. Both directions must keep equally many units: the wider one decides."""
    gates = _GATES[type(module).__name__]
    tensors: dict[str, Tensor] = {}
    for suffix in ("", "_reverse") if module.bidirectional else ("",):
        for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"):
            name = f"{part}_l{number}{suffix}"
            if hasattr(module, name):
                tensor = getattr(module, name).detach()
                for dim, stay in dims.get(name, {}).items():
                    tensor = tensor.index_select(dim, stay.to(tensor.device))
                tensors[f"{part}_l0{suffix}"] = tensor
    hidden = {tensor.shape[0] // gates for name, tensor in tensors.items() if name.startswith("weight_ih")}
    inputs = tensors["weight_ih_l0"].shape[1]
    projection = tensors["weight_hr_l0"].shape[0] if "weight_hr_l0" in tensors else 0
    if len(hidden) > 1:
        raise ValueError(f"the directions of layer {number} keep {' and '.join(map(str, sorted(hidden)))} units")
    layer = _made(module, inputs, hidden.pop(), projection, 1)
    with torch.no_grad():
        for name, tensor in tensors.items():
            getattr(layer, name).copy_(tensor)
    return _narrowing(layer, module, dims, [number])


def _remaining(module: nn.RNNBase, dims: Dims, numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[list[Tensor], ...]]:
    """Return whole widths of the states of some layers, and the remaining units by state and by layer and direction."""
    hidden: list[Tensor] = []
    cells: list[Tensor] = []
    for number in numbers:
        gated = dims.get(f"weight_ih_l{number}", {}).get(0)
        own = torch.arange(module.hidden_size) if gated is None else gated[: len(gated) // _GATES[type(module).__name__]]
        entering = dims.get(f"weight_hh_l{number}", {}).get(1)
        out = torch.arange(module.proj_size or module.hidden_size) if entering is None else entering
        hidden += [out] * (1 + module.bidirectional)
        cells += [own] * (1 + module.bidirectional)
    states = 1 + isinstance(module, nn.LSTM)
    return (module.proj_size or module.hidden_size, module.hidden_size)[:states], (hidden, cells)[:states]


def _narrowing(layer: nn.RNNBase, module: nn.RNNBase, dims: Dims, numbers: Sequence[int]) -> nn.RNNBase:
    """Return some layers of a module with a hook that narrows given states."""
    narrows_states(layer, *_remaining(module, dims, numbers))
    return layer


def _made(module: nn.RNNBase, inputs: int, hidden: int, projection: int, layers: int) -> nn.RNNBase:
    kind: Any = type(module)
    more = {"proj_size": projection} if projection else {}
    more |= {"nonlinearity": module.nonlinearity} if isinstance(module, nn.RNN) else {}
    made: nn.RNNBase = kind(
        inputs,
        hidden,
        layers,
        bias=module.bias,
        batch_first=module.batch_first,
        dropout=module.dropout if layers > 1 else 0.0,
        bidirectional=module.bidirectional,
        **more,
    )
    return made.to(next(module.parameters()))
