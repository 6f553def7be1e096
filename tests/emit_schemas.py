"""Names that the tools of emitted files know, kept in ``planning/emit_schemas.json`` with the release that has them.

``PYTHONPATH=src:tests python -m emit_schemas`` writes those of the tools that this Python has, and leaves the others.
Megatron-LM and Megatron-Bridge are read from their sources (``EMIT_SOURCES``: a folder with their unpacked wheels).
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "planning" / "emit_schemas.json"
Schema = dict[str, Any]


def load() -> Mapping[str, Schema]:
    """The kept names by target."""
    schemas: dict[str, Schema] = json.loads(FILE.read_text(encoding="utf-8"))
    return schemas


def _options(parser: argparse.ArgumentParser) -> Schema:
    """Options by kind, with their choices."""
    kinds: Schema = {"flags": [], "values": [], "lists": [], "choices": {}}
    for action in parser._actions:
        kind = "flags" if action.nargs == 0 else "values" if action.nargs in (None, "?") else "lists"
        for option in (option.removeprefix("--") for option in action.option_strings if option.startswith("--")):
            kinds[kind].append(option)
            if action.choices:
                kinds["choices"][option] = sorted(str(getattr(choice, "name", choice)) for choice in action.choices)
    return {kind: sorted(names) if isinstance(names, list) else names for kind, names in kinds.items()}


def _fields(owner: Any) -> list[str]:
    return sorted(field.name for field in dataclasses.fields(owner))


def _parameters(call: Any) -> list[str]:
    return sorted(set(inspect.signature(call).parameters) - {"self", "args", "kwargs"})


def _torchrun() -> Schema:
    run = importlib.import_module("torch.distributed.run")
    return {"version": version("torch").partition("+")[0], **_options(run.get_args_parser())}


def _accelerate() -> Schema:
    config = importlib.import_module("accelerate.commands.config.config_args").ClusterConfig
    parser = importlib.import_module("accelerate.commands.launch").launch_command_parser()
    options = sorted(action.dest for action in parser._actions)
    return {"version": version("accelerate"), "file": _fields(config), "sections": options, **_options(parser)}


def _deepspeed() -> Schema:
    constants = vars(importlib.import_module("deepspeed.runtime.constants")).values()
    zero = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    offload = importlib.import_module("deepspeed.runtime.zero.offload_config")
    tensor = importlib.import_module("deepspeed.runtime.tensor_parallel.config").TPTrainingConfig
    checkpointing = importlib.import_module("deepspeed.runtime.activation_checkpointing.config")
    names = {value for value in constants if isinstance(value, str) and re.fullmatch("[a-z_0-9]+", value)}
    return {
        "version": version("deepspeed"),
        "file": sorted(names | {"bf16", "fp16", "optimizer", "zero_optimization", "tensor_parallel", checkpointing.ACT_CHKPT}),
        "zero_optimization": sorted(zero.model_fields),
        "offload_optimizer": sorted(offload.DeepSpeedZeroOffloadOptimizerConfig.model_fields),
        "offload_param": sorted(offload.DeepSpeedZeroOffloadParamConfig.model_fields),
        "tensor_parallel": sorted(tensor.model_fields),
        "activation_checkpointing": sorted(checkpointing.ACT_CHKPT_DEFAULT),
    }


def _skypilot() -> Schema:
    schemas = importlib.import_module("sky.utils.schemas")
    resources = schemas.get_resources_schema()
    return {
        "version": version("skypilot"),
        "file": sorted(schemas.get_task_schema()["properties"]),
        "resources": sorted(resources["properties"]),
        "clouds": sorted(importlib.import_module("sky.skylet.constants").ALL_CLOUDS),
        "network_tier": sorted(importlib.import_module("sky.utils.resources_utils").NetworkTier.supported_tiers()),
    }


def _dstack() -> Schema:
    models = "dstack._internal.core.models"
    task = importlib.import_module(f"{models}.configurations").TaskConfiguration
    fleet = importlib.import_module(f"{models}.fleets").BackendFleetConfiguration
    resources = importlib.import_module(f"{models}.resources").ResourcesSpec
    backends = importlib.import_module(f"{models}.backends.base").BackendType
    return {
        "version": version("dstack"),
        "file": sorted(task.model_fields),
        "fleet": sorted(fleet.model_fields),
        "resources": sorted(resources.model_fields),
        "backends": sorted(backend.value for backend in backends),
    }


def _lightning() -> Schema:
    pytorch = importlib.import_module("lightning.pytorch")
    fsdp = importlib.import_module("torch.distributed.fsdp").FullyShardedDataParallel
    ddp = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    return {
        "version": version("lightning"),
        "lightning.Trainer": _parameters(pytorch.Trainer),
        "lightning.pytorch.strategies.DDPStrategy": sorted({*_parameters(pytorch.strategies.DDPStrategy), *_parameters(ddp)}),
        "lightning.pytorch.strategies.FSDPStrategy": sorted(
            {*_parameters(pytorch.strategies.FSDPStrategy), *_parameters(fsdp)}
        ),
    }


TITAN = {
    "Trainer.Config": "trainer:Trainer",
    "TrainingConfig": "config:TrainingConfig",
    "ParallelismConfig": "config:ParallelismConfig",
    "CompileConfig": "config:CompileConfig",
    "OptimizersContainer.Config": "components.optimizer:OptimizersContainer",
    "ParamGroupConfig": "components.optimizer:ParamGroupConfig",
    "LRSchedulersContainer.Config": "components.optimizer:LRSchedulersContainer",
    "HuggingFaceTextDataLoader.Config": "hf_datasets.text_datasets:HuggingFaceTextDataLoader",
    "ChunkedLossWrapper.Config": "components.loss:ChunkedLossWrapper",
    "CrossEntropyLoss.Config": "components.loss:CrossEntropyLoss",
    "FullAC.Config": "distributed.activation_checkpoint:FullAC",
    "SelectiveAC.Config": "distributed.activation_checkpoint:SelectiveAC",
    "Float8LinearConverter.Config": "components.quantization:Float8LinearConverter",
    "MXFP8LinearConverter.Config": "components.quantization:MXFP8LinearConverter",
    "NVFP4LinearConverter.Config": "components.quantization:NVFP4LinearConverter",
    "ComplexRoPE.Config": "models.common:ComplexRoPE",
    "Embedding.Config": "models.common:Embedding",
    "RMSNorm.Config": "models.common:RMSNorm",
    "Linear.Config": "models.common:Linear",
    "llama3.Llama3Model.Config": "models.llama3:Llama3Model",
    "ModelSpec": "protocols.model_spec:ModelSpec",
}
"""Classes that files of torchtitan call."""
_REGISTRIES = ("llama3", "qwen3", "deepseek_v3", "gpt_oss")


def _torchtitan() -> Schema:
    found: Schema = {"version": version("torchtitan")}
    for name, place in TITAN.items():
        module, _, owner = place.partition(":")
        one = getattr(importlib.import_module(f"torchtitan.{module}"), owner)
        found[name] = _fields(one.Config if name.endswith(".Config") else one)
    llama = importlib.import_module("torchtitan.models.llama3")
    found["model_registry"] = _parameters(llama.model_registry)
    found["llama3._build_llama3_layers"] = _parameters(llama._build_llama3_layers)
    for name in _REGISTRIES:
        module = vars(importlib.import_module(f"torchtitan.models.{name}"))
        found[f"flavors of {name}"] = next(sorted(value) for key, value in module.items() if key.endswith("_configs"))
    return found


def _slurm() -> Schema:
    """Options of its help, and one that only its page has."""
    program = shutil.which("sbatch")
    if program is None:
        raise ImportError("sbatch")
    told = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=100).stdout
    release = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=100).stdout
    return {"version": release.split()[-1], "file": sorted({*re.findall(r"--([a-z][a-z-]+)", told), "open-mode"})}


def _sources() -> Path:
    if "EMIT_SOURCES" not in os.environ:
        raise ImportError("EMIT_SOURCES")
    return Path(os.environ["EMIT_SOURCES"])


def _release(name: str) -> str:
    return next(_sources().rglob(f"{name}-*.dist-info")).name.removeprefix(f"{name}-").removesuffix(".dist-info")


def megatron_arguments() -> Any:
    """Megatron-LM's module of arguments from its unpacked wheel."""
    import typing_extensions

    typing.override = typing_extensions.override  # Python 3.12's
    sys.path.insert(0, str(next(_sources().rglob("megatron/training/arguments.py")).parents[2]))
    return importlib.import_module("megatron.training.arguments")


def _megatron() -> Schema:
    parser = megatron_arguments().add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return {"version": _release("megatron_core"), **_options(parser)}


_BRIDGE = {
    "model": "GPTModelProvider",
    "train": "TrainingConfig",
    "dataset": "GPTDatasetConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dist": "DistributedInitConfig",
    "tokenizer": "TokenizerConfig",
    "comm_overlap": "CommOverlapConfig",
}
"""Classes of the parts of Megatron-Bridge's ``ConfigContainer``."""


def _nemo() -> Schema:
    classes: dict[str, list[tuple[list[str], list[str]]]] = {}
    renamed: dict[str, str] = {}
    recipes: set[str] = set()
    for path in _sources().rglob("megatron/**/*.py"):
        text = path.read_text(encoding="utf-8")
        if "recipes" in path.parts:
            recipes |= set(re.findall(r"\b[a-z0-9_]+_pretrain_config\b", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                renamed |= {name.asname: name.name for name in node.names if name.asname}
            if isinstance(node, ast.ClassDef):
                fields = [x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                classes.setdefault(node.name, []).append((fields, bases))

    def fields_of(name: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        for fields, bases in classes.get(name, []):
            yield from (field for field in fields if not field.startswith("_"))
            for base in {*bases, *(renamed.get(base, base) for base in bases)} - {name, *above}:
                yield from fields_of(base, (*above, name))

    parts = {part: sorted(set(fields_of(owner))) for part, owner in _BRIDGE.items()}
    return {"version": _release("megatron_bridge"), **parts, "recipes": sorted(recipes)}


READERS: Mapping[str, Callable[[], Schema]] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "skypilot": _skypilot,
    "dstack": _dstack,
    "lightning": _lightning,
    "torchtitan": _torchtitan,
    "sbatch": _slurm,
    "megatron": _megatron,
    "nemo": _nemo,
}
"""Readers of names by target."""


def main() -> None:
    """Write the names of the tools that this Python has."""
    kept = dict(load()) if FILE.is_file() else {}
    for target, reader in READERS.items():
        try:
            kept[target] = reader()
        except ImportError as missing:
            print(f"{target}: kept, as it needs {missing}")
        else:
            print(f"{target}: {kept[target]['version']}")
    parts = []
    for target in filter(kept.__contains__, READERS):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in kept[target].items())
        parts.append(f" {json.dumps(target)}: {{\n{rows}\n }}")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
