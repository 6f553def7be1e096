"""Tests of the bytes that frameworks add, against closed forms and the saved tensors of PyTorch."""

from __future__ import annotations

import pytest

from paceline.hardware import cluster as named_cluster
from paceline.hardware.cluster import Cluster
from paceline.memory_timeline import BEYOND
from paceline.prediction.passes.recompute import recomputed
from paceline.prediction.predictor import Predictor
from paceline.prediction.step.framework_memory import PIECES
from paceline.strategy.recompute import NO_RECOMPUTE, Recompute
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


def chosen(world_size: int, **choices: object) -> Strategy:
    return Strategy.of(world_size=world_size, global_batch_size=world_size, precision="bf16", optimizer="adam", **choices)


def sizes(framework: str, network: Workload, on: Cluster, **choices: object) -> dict[str, float]:
    return dict(Predictor(framework=framework).step(network, on, chosen(on.world_size, **choices)).memory)


def test_deepspeed_holds_two_buckets_and_a_billion_gathered_weights() -> None:
    network, on = Workload.named("llama-2-7b", 64), named_cluster("A100", 8, 1)
    plain, deep = (sizes(name, network, on, sharding="zero2") for name in ("hf-trainer", "deepspeed"))
    assert "reduce buckets" not in plain and deep["reduce buckets"] == 2 * 2 * 500_000_000
    assert sizes("deepspeed", network, on, sharding="zero3")["gathered"] == 2 * 1_000_000_000
    small = Workload.named("gpt2", 64)
    held = sizes("deepspeed", small, on, sharding="zero3")["gathered"]
    assert held >= 2 * small.num_parameters and "reduce buckets" not in sizes("deepspeed", network, on, sharding="zero3")


def test_fragments_are_a_share_of_sharded_steps_alone() -> None:
    network = Workload.named("gpt2", 64)
    for devices, sharding, share in ((4, "zero3", 0.15), (4, "ddp", 0.0), (1, "zero3", 0.0)):
        of = sizes("hf-trainer", network, named_cluster("A100", devices, 1), sharding=sharding)
        assert of["fragments"] == pytest.approx(PIECES + share * sum(size for name, size in of.items() if name not in BEYOND))


@pytest.mark.parametrize("framework", ["deepspeed", "hf-trainer", "lightning"])
def test_many_steps_have_the_memory_of_one(framework: str) -> None:
    network, on = Workload.named("llama-3.2-1b", 256), named_cluster("A100", 4, 1)
    candidates = [(on, chosen(4, sharding=s, recompute=r)) for s in ("ddp", "zero2", "zero3") for r in ("none", "full")]
    predictor = Predictor(framework=framework)
    table = predictor.many(network, candidates)
    for row, (cluster, of) in enumerate(candidates):
        assert table.memory_bytes[row] == pytest.approx(predictor.step(network, cluster, of).memory_bytes)


def test_norms_on_fp32_copies_save_what_pytorch_saves() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'paceline[train]'")
    rows, width = 6, 64

    def saved(trained: bool) -> int:
        sizes: dict[int, int] = {}
        weight = torch.ones(width, dtype=torch.bfloat16, requires_grad=trained)
        x = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)

        def pack(tensor: object) -> object:
            if tensor.numel() == rows * width:  # type: ignore[attr-defined]
                sizes[tensor.untyped_storage().data_ptr()] = tensor.nbytes  # type: ignore[attr-defined]
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            wide = x.to(torch.float32)  # as LlamaRMSNorm of transformers computes
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            keep = weight * wide.to(torch.bfloat16)
        assert keep.requires_grad
        return sum(sizes.values())

    assert saved(True) == 6 * rows * width and saved(False) == 4 * rows * width
    tokens = 32
    whole, adapted = (Workload.named("llama-2-7b", tokens, lora=lora) for lora in (None, "r=8"))
    norms, hidden = 2 * 32 + 1, 4096
    for network, more in ((whole, 4), (adapted, 2)):
        wide, narrow = (recomputed(network, NO_RECOMPUTE, numbers).kept_bytes for numbers in ("narrow upcast", "narrow"))
        assert wide - narrow == pytest.approx(more * norms * tokens * hidden, rel=2e-3)
    block = Recompute.of("full")
    inputs = [recomputed(whole, block, numbers).kept_bytes for numbers in ("narrow upcast", "narrow")]
    assert inputs[0] - inputs[1] == pytest.approx(4 * tokens * hidden, rel=2e-3)  # the last norm alone: blocks store no copies


def test_kernels_that_fuse_gates_save_their_inputs_alone() -> None:
    network, on = Workload.named("llama-3-8b", 64, lora="r=8"), named_cluster("A100", 1, 1)
    plain, fused = (sizes(name, network, on, recompute="none")["activations"] for name in ("hf-trainer", "unsloth"))
    ffn, blocks = 14336, 32
    assert plain - fused > 2 * ffn * blocks * 64  # the result of the activation, in 16 bits, among others
