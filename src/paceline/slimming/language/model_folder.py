"""Smaller models of Hugging Face in folders: in its own format where a configuration states their widths, else with a plan."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.errors import UserError, shorten
from paceline.slimming.language.checkpoint import with_its_weights
from paceline.slimming.language.stated_config import is_hugging_face, quiet, stated_config
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load

PLAN, WEIGHTS, WHOLE, README = "plan.json", "model.safetensors", "whole", "README.md"
"""Files of a folder that transformers cannot open; ``WHOLE`` holds the configuration before slimming."""
KIND = "architectures"
"""Entry of a configuration with the name of the model's class."""
TEXT = """# A slimmed {kind}

Its layers have widths that no config.json of {kind} can state, so transformers, vLLM and llama.cpp cannot open this folder.
Paceline can (pip install 'paceline[train,hub]'):

```python
import paceline

model = paceline.slim.load("{name}")  # this folder
```
"""


def with_true_config(small: nn.Module, whole: nn.Module, plan: SlimPlan, inputs: tuple[Any, ...] = ()) -> nn.Module:
    """Return a smaller model whose ``save_pretrained`` writes what loads again. Models of other libraries are unchanged.

    Its configuration states the new widths if one can. Otherwise ``save_pretrained`` writes a folder for ``load_folder``.

    Args:
        inputs: an example, for models that take no tokens.
    """
    if not is_hugging_face(small) or not (plan.kept or plan.replacements):
        return small
    config = stated_config(whole, small, inputs)
    if config is None:
        small.save_pretrained = PlanFolder(small, plan, copy.deepcopy(whole.config))  # type: ignore[assignment]
        return small
    old = type(config)
    for module in small.modules():
        if type(getattr(module, "config", None)) is old:
            module.config = config
    return small


def opens_in_transformers(small: nn.Module) -> bool:
    """Return whether ``save_pretrained`` writes a folder that transformers opens."""
    return is_hugging_face(small) and not isinstance(small.save_pretrained, PlanFolder)


class PlanFolder:
    """``save_pretrained`` of a model that no configuration states.

    Args:
        config: of the whole model.
    """

    def __init__(self, model: nn.Module, plan: SlimPlan, config: Any) -> None:
        self.model, self.plan, self.config = model, plan, config

    def __call__(self, save_directory: str | Path, *_: Any, **__: Any) -> None:
        """Write weights, plan and the whole model's configuration. Options of transformers have no effect."""
        from safetensors.torch import save_model

        folder, kind = Path(save_directory), type(self.model).__name__
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").unlink(missing_ok=True)
            setattr(self.config, KIND, [kind])
            self.config.save_pretrained(folder / WHOLE)
            self.plan.save(folder / PLAN)
            save_model(self.model, str(folder / WEIGHTS), metadata={"format": "pt"})
            (folder / README).write_text(TEXT.format(kind=kind, name=folder.name), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {folder}: {error.strerror or error}", "give another place") from error
        what = f"no config.json of {kind} can state these widths, so transformers cannot open {folder}"
        warnings.warn(f"{what}; open it with paceline.slim.load({str(folder)!r})", UserWarning, stacklevel=2)


def load_folder(path: str | Path) -> nn.Module:
    """Load a smaller model from its folder, with its weights, in eval mode.

    Raises:
        UserError: another folder, a damaged one, or transformers is not installed.
    """
    folder = Path(path)
    try:
        import transformers
        from safetensors.torch import load_file, load_model
    except ModuleNotFoundError as error:
        raise UserError("transformers is not installed", "pip install 'paceline[hub]'") from error
    try:
        with quiet():
            if (folder / "config.json").is_file():
                kind = getattr(transformers, json.loads((folder / "config.json").read_text(encoding="utf-8"))[KIND][0])
                return with_its_weights(kind, folder).eval()
            config = transformers.AutoConfig.from_pretrained(folder / WHOLE, local_files_only=True)
            plan = SlimPlan.load(folder / PLAN)
            dtype = next(iter(load_file(str(folder / WEIGHTS)).values())).dtype
            with torch.random.fork_rng(devices=[]):
                whole: nn.Module = getattr(transformers, getattr(config, KIND)[0])(config).to(dtype)
        small = load(plan, whole).eval()
        load_model(small, str(folder / WEIGHTS))
    except UserError:
        raise
    except Exception as error:  # transformers and safetensors raise different errors
        what = f"{path} holds no slimmed model: {shorten(f'{type(error).__name__}: {error}')}"
        raise UserError(what, "give a folder that `save_pretrained` of a slimmed model wrote") from error
    small.save_pretrained = PlanFolder(small, plan, config)  # type: ignore[assignment]
    return small
