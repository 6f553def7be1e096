"""Bytes of weights."""

from __future__ import annotations

from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.sizes import BYTES, weight_bytes
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Residual, Transformer, images, tokens


def test_bytes_are_those_of_the_smaller_network() -> None:
    for model, example in ((Residual(), images()), (Transformer(), tokens())):
        found = structures_of(model, example)
        gone = {each.number for every in found.layers().values() for each in every[::2][: len(every) - 1]}
        for removed in (set[int](), gone):
            small = shrunk(model, found, removed)
            tensors = [*small.parameters(), *small.buffers()]
            assert weight_bytes(found, removed) == BYTES * sum(each.numel() for each in tensors if each.dim())
