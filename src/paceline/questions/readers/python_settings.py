"""Reader of Python text, which is parsed and never run.

It reads configurations of torchtitan, scripts around trainers, and plain settings.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.errors import UserError
from paceline.questions.asked import typed_names
from paceline.questions.facts import Reading, StatedFact
from paceline.questions.readers.launches import read_options
from paceline.questions.readers.settings import add_defaults, read_leaves, read_settings
from paceline.questions.readers.source import Source, leaves
from paceline.questions.readers.torch_calls import TORCH_CALLS, torch_facts
from paceline.strategy.choices.synonyms import ACCELERATE, HF, LIGHTNING, TORCHTITAN, folded

Values = dict[str, Any]
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_TRL = ("SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig", "ORPOConfig", "KTOConfig", "CPOConfig")
"""Classes of TRL with the options of a training."""
_ADAPTERS = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
_RECOMPUTED = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
_CONVERTED = {"Float8LinearConverter": "float8", "MXFP8LinearConverter": "mx"}
_LARGEST = 10**18


def python_module(text: str) -> ast.Module | None:
    """Return the parsed module of a Python text; None for other texts."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    return module if any(isinstance(node, kinds) for node in module.body) else None


def read_python(module: ast.Module, source: Source, function: str = "") -> Reading:
    """Return what a Python text states.

    Args:
        function: function of a torchtitan configuration, if the file has several.

    Raises:
        UserError: no settings in it, or several configurations.
    """
    names = _constants(module.body, {})
    configurations = {
        node.name: node for node in module.body if isinstance(node, ast.FunctionDef) and _titan_call(node) is not None
    }
    if configurations:
        return _titan(_chosen(configurations, function, source), module, names, source)
    found = Reading()
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        _call(call, names, source, found)
    if not found.facts:
        typed = [(name, value) for name, value in names.items() if folded(name) in typed_names()]
        found.add(read_options(HF, [(name, value) for name, value in typed if _is_plain(value)], source))
    if not found.facts:
        raise UserError(f"{source.name} has no settings of a training", "give a configuration, or a script with its arguments")
    return found


def read_statements(text: str, source: Source) -> Reading:
    """Return what the calls of some statements state; nothing for a text that is no Python."""
    found = Reading()
    try:
        module = ast.parse(text)
    except SyntaxError:
        return found
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        _call(call, {}, source, found)
    return found


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _chosen(configurations: Mapping[str, ast.FunctionDef], function: str, source: Source) -> ast.FunctionDef:
    """Return the configuration of a name, or the only one. Raises UserError."""
    if function and function in configurations:
        return configurations[function]
    if function or len(configurations) > 1:
        names = ", ".join(list(configurations)[:8])
        first = next(iter(configurations))
        raise UserError(f"{source.name} has configurations {names}", f"name one: --from {source.name}:{first}")
    return next(iter(configurations.values()))


def _titan_call(function: ast.FunctionDef) -> ast.Call | None:
    """Return the call of ``Trainer.Config`` that a function returns; None for other functions."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Trainer.Config"):
            return node
    return None


def _titan(function: ast.FunctionDef, module: ast.Module, names: Values, source: Source) -> Reading:
    call = _titan_call(function)
    assert call is not None
    local = _constants(function.body, names)
    tree = {word.arg: _tree(word.value, local) for word in call.keywords if word.arg}
    made = {ast.unparse(node.func).split(".")[0] for node in ast.walk(function) if isinstance(node, ast.Call)}
    again = next((node.value for node in call.keywords if node.arg == "activation_checkpoint"), None)
    if again is not None:
        kind = ast.unparse(again).partition(".")[0]
        tree["activation_checkpoint"] = {"mode": _RECOMPUTED.get(kind, "none")}
    tree = {name: value for name, value in tree.items() if value is not None and name not in ("model_spec", "loss")}
    if converters := [_CONVERTED[name] for name in made if name in _CONVERTED]:
        tree["model"] = {"converters": converters}
    groups = tree.get("optimizer", {}).get("param_groups") if isinstance(tree.get("optimizer"), Mapping) else None
    if isinstance(groups, list) and groups and isinstance(groups[0], Mapping):
        tree["optimizer"] = {**tree["optimizer"], "name": groups[0].get("optimizer_name"), "param_groups": None}
    network = _registered(function, module, local)
    if network:
        tree["model"] = {**tree.get("model", {}), **network}
    return read_settings(TORCHTITAN, tree, source)


def _registered(function: ast.FunctionDef, module: ast.Module, names: Values) -> Values:
    """Return the module and the flavor of ``model_registry``."""
    modules = {
        alias.asname or alias.name: (node.module or "").rpartition(".")[2]
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("model_registry"):
            flavor = _value(node.args[0], names) if node.args else None
            first = ast.unparse(node.func).split(".")[0]
            own = modules.get(first, "")
            return {"name": own if first == "model_registry" else first, "flavor": flavor}
    return {}


def _tree(node: ast.expr, names: Values) -> Any:
    """Return the values of a call's keywords, and of calls within; None for what is not plain."""
    if isinstance(node, ast.Call):
        return {word.arg: _tree(word.value, names) for word in node.keywords if word.arg}
    if isinstance(node, ast.List | ast.Tuple):
        return [_tree(each, names) for each in node.elts]
    return _value(node, names)


def _value(node: ast.expr, names: Values) -> Any:
    """Return a plain value: a constant, a name of one, arithmetic of whole numbers; None for others."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each, names) for each in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, names)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, names), _value(node.right, names)
        if type(left) in (int, float) and type(right) in (int, float) and max(abs(left), abs(right)) < _LARGEST:
            try:
                return _OPERATIONS[type(node.op)](left, right)
            except ZeroDivisionError:
                return None
    return None


def _constants(body: list[ast.stmt], names: Values) -> Values:
    """Return the names that statements bind to plain values."""
    found = dict(names)
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = getattr(node, "value", None)
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and isinstance(value, ast.expr):
            plain = _value(value, found)
            if plain is not None:
                found[targets[0].id] = plain
    return found


def _call(call: ast.Call, names: Values, source: Source, found: Reading) -> None:
    """Add what the call of a known class or function states."""
    name = ast.unparse(call.func).rpartition(".")[2]
    given = {word.arg: _tree(word.value, names) for word in call.keywords if word.arg}
    known = {key: value for key, value in given.items() if value is not None}
    if name.endswith("TrainingArguments") or name in _TRL:
        found.add(read_leaves(HF, leaves(known, source.name), source))
        add_defaults(HF, found, source)
        if name in _TRL:
            found.facts.append(StatedFact("framework", "trl", source.name, f"a {name}", 3, assumed=True))
    elif name in ("LoraConfig", "get_peft_model") and ("r" in known or name == "LoraConfig"):
        adapters = {"use_peft": True, **{_ADAPTERS.get(key, key): value for key, value in known.items()}}
        found.add(read_leaves(HF, leaves(adapters, source.name), source))
    elif name == "BitsAndBytesConfig":
        found.add(read_leaves(HF, leaves(known, source.name), source))
    elif name == "from_pretrained":
        _pretrained(call, known, names, source, found)
    elif name in TORCH_CALLS:
        found.facts += torch_facts(name, call, known, source)
    elif name == "Accelerator":
        found.add(read_leaves(ACCELERATE, leaves(known, source.name), source))
    elif name == "Trainer" and {"devices", "strategy", "precision", "accelerator"} & known.keys():
        strategy = next((word.value for word in call.keywords if word.arg == "strategy"), None)
        if isinstance(strategy, ast.Call):
            known["strategy"] = None
            _call(strategy, names, source, found)
        found.add(read_leaves(LIGHTNING, leaves({"trainer": known}, source.name), source))
        add_defaults(LIGHTNING, found, source)


def _pretrained(call: ast.Call, known: Values, names: Values, source: Source, found: Reading) -> None:
    """Add the network that ``from_pretrained`` loads, and what it says of the weights."""
    loader = ast.unparse(call.func).rpartition(".")[0].rpartition(".")[2]
    if any(part in loader for part in ("Tokenizer", "Processor", "Config", "Peft")):
        return
    first = call.args[0] if call.args else next((w.value for w in call.keywords if w.arg in _NAMES), None)
    model = _value(first, names) if first is not None else None
    if isinstance(model, str) and not any(fact.name == "workload" for fact in found.facts):
        found.facts.append(StatedFact("workload", model, source.name, f"{loader}.from_pretrained({model})"))
        found.understood += 1
    kept = ("attn_implementation", "load_in_4bit", "load_in_8bit", "max_seq_length", "use_gradient_checkpointing")
    found.add(read_leaves(HF, leaves({key: known[key] for key in kept if key in known}, source.name), source))
    if loader.startswith("Fast"):
        found.facts.append(StatedFact("framework", "unsloth", source.name, loader, 4, assumed=True))


_NAMES = ("model_name", "pretrained_model_name_or_path")


def functions_of(module: ast.Module) -> Iterator[str]:
    """Yield the names of a module's functions."""
    yield from (node.name for node in module.body if isinstance(node, ast.FunctionDef))
