"""Traced tables against the library's own modules: FLOPs by torch's counter, and tensors that a run on the CPU saves."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hub_cases import CONFIGS, DIFFUSION
from paceline.workload.builders.attention import eager
from paceline.workload.hub import inputs, library
from paceline.workload.hub.diffusion_inputs import diffusion_examples
from paceline.workload.hub.networks import hub_table
from paceline.workload.hub.small_kernels import ACTIVATION, NORM
from paceline.workload.tracing.operations import tensors_in

pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers"),
    pytest.mark.long,
]
TOKENS = 48
COUNTED = ("smollm3", "olmo3", "modernbert", "esm", "deberta-v2", "mbart", "lfm2", "swin", "dinov2", "convnext", "wav2vec2")
COUNTED += ("clip", "mllama")
COUNTED += ("ernie4_5_moe", "glm4_moe", "minimax_m2", "llama4_text")
LARGE = ("swin", "dinov2", "convnext", "wav2vec2", "clip")
"""Kinds that are counted on the meta device. Others decide by values, which it does not have."""
SAVED = ("smollm3", "olmo3", "llama4_text", "modernbert", "esm", "mbart", "lfm2", "dinov2", "clip", "mllama")
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def settings_of(kind: str) -> dict[str, Any]:
    given = {"model_type": kind, **CONFIGS[kind]}
    given |= PLAIN if kind in ("esm", "deberta-v2") else {}
    return given | ({"sliding_window": 64} if kind == "olmo3" else {})  # the CPU would keep a mask


def tokens_of(kind: str) -> int | None:
    return TOKENS if "vocab_size" in CONFIGS[kind] or kind == "mllama" else None


def filled(value: Any, batch: int, device: str) -> Any:
    """Return example inputs with values."""
    if isinstance(value, torch.Tensor):
        shape = (batch, *value.shape[1:])
        whole = not value.is_floating_point()
        return torch.randint(0, 5, shape, device=device) if whole else torch.randn(shape, device=device)
    if isinstance(value, dict):
        return {key: filled(part, batch, device) for key, part in value.items()}
    return type(value)(filled(part, batch, device) for part in value) if isinstance(value, list | tuple) else value


def loss_of(output: Any) -> torch.Tensor:
    logits = getattr(output, "logits", None)
    if logits is None or logits.dim() > 3:
        first = getattr(output, "last_hidden_state", None)
        parts = [first] if first is not None else [t for t in tensors_in(output) if t.is_floating_point() and t.requires_grad]
        return torch.stack([part.mean() for part in parts]).sum()
    rows = logits.flatten(0, -2)
    return torch.nn.functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device))


def counted(module: Any, given: dict[str, Any]) -> tuple[float, float]:
    """Return FLOPs of a sample as torch counts them: of convolutions in the forward pass, and of all products.

    Its formula of a convolution's backward pass takes no account of groups.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss_of(module(**given)).backward()
    flops = {str(name): work / 2 for name, work in counter.get_flop_counts()["Global"].items()}
    products = sum(work for name, work in flops.items() if "convolution" not in name)
    return flops.get("aten.convolution", 0.0), products


def same_flops(table: Any, module: Any, given: dict[str, Any]) -> None:
    operations = [o for layer in eager(table).layers for o in layer.operations]
    convolutions, products = counted(module, given)
    assert sum(o.flops for o in operations if o.kind == "conv" and not o.backward) == pytest.approx(convolutions, rel=0.01)
    assert sum(o.flops for o in operations if o.kind == "matmul") == pytest.approx(products, rel=0.01)


@pytest.mark.parametrize("kind", COUNTED)
def test_flops_are_those_of_torch_s_counter(kind: str) -> None:
    given, device = settings_of(kind), "meta" if kind in LARGE else "cpu"
    with library.quiet(), torch.device(device):
        module = library._transformer(given, kind)
        module.set_attn_implementation("eager")
        example = inputs.examples(module, TOKENS)[0]
        same_flops(
            hub_table(settings_of(kind), "transformers", tokens_of(kind), name="net", source=""),
            module,
            filled(example.given, 2, device),
        )


@pytest.mark.skipif(find_spec("diffusers") is None, reason="needs diffusers: pip install diffusers")
@pytest.mark.parametrize("kind", DIFFUSION)
def test_flops_and_parameters_of_diffusion(kind: str) -> None:
    given = {"_class_name": kind, **DIFFUSION[kind]}
    module, _ = library.built(given, "diffusers")
    table = hub_table(given, "diffusers", None, name="net", source="")
    assert table.num_parameters == sum(p.numel() for p in module.parameters())
    same_flops(table, module, filled(diffusion_examples(module)[0].given, 2, "meta"))


class Rms(torch.autograd.Function):
    """RMSNorm as one kernel: it saves its input in fp32, and a number for each row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(wide, scale)
        return wide * scale * (1 if weight is None else weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("what a forward pass saves is counted alone")


def as_on_a_gpu(module: Any) -> None:
    """Make norms and activations the kernels of a GPU: one each, norms in fp32, which autocast on a CPU does not do."""
    for own in module.modules():
        name = type(own).__name__
        if isinstance(own, torch.nn.LayerNorm | torch.nn.GroupNorm):
            own.forward = lambda x, own=own: type(own).forward(own, x.float())  # type: ignore[method-assign, misc]
        elif NORM.search(name) and not list(own.children()):
            own.forward = lambda x, own=own: Rms.apply(x, getattr(own, "weight", None))  # type: ignore[no-untyped-call]
        elif ACTIVATION.search(name) and not list(own.children()):
            own.forward = torch.nn.functional.gelu


def saved_bytes(module: Any, given: dict[str, Any]) -> int:
    """Return the bytes that one step under autocast saves, each storage once, without parameters."""
    held = {p.untyped_storage()._cdata for p in module.parameters()}
    seen: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in held:
            seen[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        result = loss_of(module(**given))
    assert result.isfinite()
    return sum(storage.nbytes() for storage in seen.values())


@pytest.mark.parametrize("kind", SAVED)
def test_activations_are_those_that_a_run_saves(kind: str) -> None:
    given = settings_of(kind)
    with library.quiet():
        module = library._transformer(given, kind).train()
        as_on_a_gpu(module)
        example = inputs.examples(module, TOKENS)[0].given
        run = [saved_bytes(module, filled(example, batch, "cpu")) for batch in (2, 4)]
    table = hub_table(settings_of(kind), "transformers", tokens_of(kind), name="net", source="")
    assert table.kept_bytes("autocast") == pytest.approx((run[1] - run[0]) / 2, rel=0.03)
