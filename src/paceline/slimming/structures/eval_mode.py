"""Temporary eval mode of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set all modules to eval mode without a cache among the outputs, and restore each one's mode, such as a frozen norm's."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with _without_cache(model):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """Switch off ``use_cache`` of Hugging Face's configurations: a cache of keys and values is no tensor."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = vars(module).get("config")
        for each in (config, getattr(config, "text_config", None)):
            if getattr(each, "use_cache", False) is True:
                configs[id(each)] = each
    with ExitStack() as stack:
        for config in configs.values():
            config.use_cache = False
            stack.callback(setattr, config, "use_cache", True)
        yield
