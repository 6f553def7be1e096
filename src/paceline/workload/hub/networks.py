"""Layer table of any model of transformers or diffusers, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any

from paceline.errors import UserError
from paceline.workload.builders.attention import eager
from paceline.workload.builders.layer_builders import lay_out
from paceline.workload.factory import describe_error
from paceline.workload.hub import inputs, roles
from paceline.workload.hub.attention import fused_attention as as_kernel
from paceline.workload.hub.diffusion_inputs import diffusion_examples
from paceline.workload.hub.kernels import builder
from paceline.workload.hub.library import TEXT, built, language_model, quiet
from paceline.workload.hub.merged import merged
from paceline.workload.hub.skipped import Skipped, skipping
from paceline.workload.hub.towers import TILES, has_tower, is_usual, seen_images, with_images
from paceline.workload.layers import Coverage, Layer, LayerTable, Parameter
from paceline.workload.sample_size import FROZEN_VISION, SampleSize
from paceline.workload.tracing.trace import trace


class ShortSample(UserError):
    """Sequence with too few tokens for its images. The language model alone does not replace it."""


def hub_table(
    settings: Mapping[str, Any],
    library: str,
    seq_len: int | None,
    *,
    name: str,
    source: str,
    fused_attention: bool = True,
    usual: int = 8192,
    size: SampleSize | None = None,
) -> LayerTable:
    """Return the layer table of one training step of the model that a configuration describes.

    Args:
        library: ``library.library_of(settings)``.
        seq_len: tokens of a sample; None: the longest of the configuration, at most ``usual``.
        fused_attention: do not write scores to memory.
        size: size of a sample with images; None: the usual one.

    Raises:
        UserError: as ``library.built``, ``inputs.example`` and ``trace``; a length of a model without sequences.
    """
    try:
        module, what = built(settings, library)
        if library == TEXT and (size is not None or is_usual(module.config)):
            return _of_images(settings, module, what, seq_len, name, source, fused_attention, usual, size or SampleSize())
        return _traced(module, what, library, seq_len, name, source, fused_attention, usual, size)
    except ShortSample:
        raise
    except UserError as error:
        if size is not None:
            raise
        alone = language_model(settings) if library == TEXT else None
        if alone is None:
            raise error
        return _traced(*alone, library, seq_len, name, source, fused_attention, usual, size)


def _of_images(
    settings: Mapping[str, Any],
    module: Any,
    what: str,
    seq_len: int | None,
    name: str,
    source: str,
    fused_attention: bool,
    usual: int,
    size: SampleSize,
) -> LayerTable:
    """Return the table of a model of images with text whose images are known. Other arguments and errors: ``hub_table``."""
    if not has_tower(module.config):
        raise UserError(f"--input for {name}, whose images are not known here", "leave it out")
    if wrong := ", ".join(sorted(size.words - {FROZEN_VISION})) or ("a clip" if size.frames else ""):
        raise UserError(f"--input {wrong} for {name}", "give image:1024x1024,tokens:512, images:2 or frozen-vision")
    seen = seen_images(module.config, size)
    taken = seen.count * seen.tokens
    tokens = size.tokens + taken if size.tokens else seq_len or inputs.longest(module.config, usual)
    if tokens <= taken or (size.tokens and seq_len not in (None, tokens)):
        raise ShortSample(
            f"a sequence of {seq_len or tokens:,} tokens with {seen.text} of {seen.tokens:,} tokens",
            f"give --seq-len {taken + 512} or --input tokens:512",
        )
    alone, about = (language_model(settings) or (module, what)) if module.config.model_type in TILES else (module, what)
    text = replace(inputs.examples(alone, tokens)[-1], remark="; tower of images by its modules")
    whole = with_images(traced_module(alone, about, [text], True, name=name, source=source), module, seen, size.words)
    note = (
        f"{name}: one sample is a sequence of {tokens:,} tokens, {taken:,} of them from {seen.text}"
        f"{'' if size.height else ', the usual size (--input image:1024x1024,tokens:512 says another)'}."
    )
    frozen = ("The tower of images is frozen; its projector is trained.",) if FROZEN_VISION in size.words else ()
    whole = replace(whole, notes=(note, *frozen))
    return whole if fused_attention else eager(whole)


def _traced(
    module: Any,
    what: str,
    library: str,
    seq_len: int | None,
    name: str,
    source: str,
    fused_attention: bool,
    usual: int,
    size: SampleSize | None,
) -> LayerTable:
    """Return the table of a module. Other arguments and errors: ``hub_table``."""
    try:
        if library == TEXT:
            examples = inputs.examples(module, seq_len or inputs.longest(module.config, usual))
        else:
            examples = diffusion_examples(module, size)
    except (AttributeError, TypeError) as error:  # a configuration without the usual sizes
        raise UserError(
            f"the inputs of {type(module).__name__} are not known here: {describe_error(error)}", _LEFT_OUT
        ) from error
    if seq_len is not None and (library != TEXT or "tokens" not in examples[0].sample):
        raise UserError(f"{name} has no sequence length to choose", f"one sample is {examples[0].sample}")
    whole = traced_module(module, what, examples, library == TEXT, name=name, source=source)
    return whole if fused_attention else eager(whole)


def traced_module(
    module: Any, what: str, examples: Sequence[inputs.Example], is_text: bool, *, name: str, source: str
) -> LayerTable:
    """Return the table of a module of a library, with the first of the examples that it takes.

    Args:
        what: the library with its version and class.
        is_text: whether the library is transformers, whose attention runs as a kernel that is chosen.

    Raises:
        UserError: a module that fails with all of them.
    """
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    first: UserError | None = None
    for example, (kernel, shortened, apart) in product(examples, _WAYS):
        with ExitStack() as stack:
            stack.enter_context(quiet())
            if is_text:
                stack.enter_context(as_kernel(module, kernel))
            plan = stack.enter_context(skipping(module, builder, repeats=shortened, apart=apart))
            try:
                about = f"{source}; {what}{example.remark}"
                table = trace(module, example.given, name=name, sample=example.sample, source=about, loss=_loss)
            except UserError as error:
                first = first or error
                continue
        if plan.uneven and not apart:
            continue
        whole = _expanded(table, plan, _vocabulary(module.config))
        if whole.num_parameters == trained:  # else blocks share weights, and are no copies
            return whole
    raise UserError((first or UserError(f"{name} shares weights in ways that are not known here")).message, _LEFT_OUT)


_WAYS = tuple((kernel, *blocks) for blocks in ((True, 0), (True, 1), (False, 0)) for kernel in (True, False))
"""Attention as the kernel or as the library runs it, whether equal blocks run once, and how many of them run in front; the
first that works."""
_LEFT_OUT = (
    "values that a file leaves out are the defaults of the library's class: give a whole config.json; or trace the module with "
    "inputs of your own: write a function that returns both, and name it module:function"
)
_EMBEDDING, _PRODUCT_OF_TWO = "Embedding", "Mul"


def _kind(layer: Layer, name: str, weighted: bool) -> str:
    """Return the kind by which memory and division go: that of a table by hand if it is one of them, else the class."""
    if weighted and layer.kind.endswith(_EMBEDDING):
        return _EMBEDDING
    return _PRODUCT_OF_TWO if name.endswith(".multiply") else layer.kind


def _vocabulary(config: Any) -> int:
    own = config.get_text_config() if hasattr(config, "get_text_config") else config
    value = getattr(own, "vocab_size", 0)
    return value if type(value) is int else 0


def _loss(output: Any) -> Any:
    """Return the cross entropy of logits, of each row against a class; else the mean of all outputs."""
    import torch

    from paceline.workload.tracing.operations import tensors_in

    if hasattr(output, "sample"):  # the noise that was added
        return torch.nn.functional.mse_loss(output.sample, torch.empty_like(output.sample))
    logits = getattr(output, "logits", None)
    if logits is None or logits.dim() > 3:
        first = getattr(output, "last_hidden_state", None)
        parts = [first] if first is not None else [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
        return torch.stack([part.mean() for part in parts]).sum()
    rows = logits.flatten(0, -2)
    return torch.nn.functional.cross_entropy(rows, torch.empty(rows.shape[0], dtype=torch.int64))


def _expanded(table: LayerTable, plan: Skipped, vocabulary: int) -> LayerTable:
    """Return the table with the layers of skipped modules, and with the package's names."""
    own: dict[str, list[tuple[Layer, list[tuple[str, tuple[int, ...]]]]]] = {}  # layers and parameters, by path in the trace
    order: list[str] = []
    for index, layer in enumerate(table.layers):
        order.append(layer.name)
        weights = [(p.name, p.shape) for p in table.parameters if p.layer == index]
        *first_parts, last = merged(layer, plan.sliding.get(layer.name, 0))
        own[layer.name] = [*((part, []) for part in first_parts), (last, weights)]
    for path, specs in plan.layers.items():
        seen = own.get(path)
        own[path] = _of_builder(path, [replace(spec, weights=()) for spec in specs] if path in plan.tied else specs)
        if seen and plan.builders[path].saves:
            own[path] = [(_saving(layer, seen[-1][0]), weights) for layer, weights in own[path]]
    rows: list[tuple[Layer, list[tuple[str, tuple[int, ...]]]]] = []
    for path in order:
        if path not in plan.like:
            rows += own[path]
            continue
        first = plan.like[path]
        for inner in order:
            if inner == first or inner.startswith(f"{first}."):
                rows += [
                    (_moved(layer, first, path), [(_renamed(weight, first, path), shape) for weight, shape in weights])
                    for layer, weights in own[inner]
                ]
    names = roles.named([layer for layer, _ in rows], vocabulary)
    layers = [
        replace(layer, name=given, kind=_kind(layer, given, bool(weights)))
        for (layer, weights), given in zip(rows, names, strict=True)
    ]
    flat = [(index, weight, shape) for index, (_, weights) in enumerate(rows) for weight, shape in weights]
    back = sorted(range(len(flat)), key=lambda place: (-flat[place][0], -place))
    ready = {place: turn for turn, place in enumerate(back)}
    parameters = [Parameter(name=n, shape=shape, layer=i, ready=ready[at]) for at, (i, n, shape) in enumerate(flat)]
    calls = sum(o.calls for layer in layers for o in layer.operations)
    unknown = table.coverage.unknown
    return replace(
        table,
        layers=tuple(layers),
        parameters=tuple(parameters),
        coverage=Coverage(ops=calls, known=calls - sum(unknown.values()), unknown=unknown),
    )


def _of_builder(path: str, specs: list[Any]) -> list[tuple[Layer, list[tuple[str, tuple[int, ...]]]]]:
    """Return layers and weights of a builder, inside the block of a module's path."""
    layers, parameters = lay_out([spec.named(_block(path)) if spec.name else replace(spec, name=path) for spec in specs])
    return [(layer, [(p.name, p.shape) for p in parameters if p.layer == index]) for index, layer in enumerate(layers)]


def _saving(layer: Layer, traced: Layer) -> Layer:
    """Return a layer that saves what the trace saw."""
    return replace(layer, activation_bytes=traced.activation_bytes, activation_bytes_half=traced.activation_bytes_half)


def _block(path: str) -> str:
    head = roles.block_of(path)
    return head or f"{path}."


def _moved(layer: Layer, before: str, after: str) -> Layer:
    return replace(layer, name=_renamed(layer.name, before, after))


def _renamed(name: str, before: str, after: str) -> str:
    return after + name[len(before) :] if name == before or name.startswith(f"{before}.") else name
