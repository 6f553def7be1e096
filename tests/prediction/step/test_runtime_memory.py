"""Tests of the memory that no tensor holds, against measured communicators and the sources of NCCL."""

from __future__ import annotations

import pytest

import paceline
from paceline.hardware import cluster as named_cluster
from paceline.hardware.cluster import Cluster
from paceline.prediction.step.runtime_memory import (
    MIB,
    Communicator,
    communicator_bytes,
    communicators_bytes,
    context_bytes,
    groups,
    workspace_bytes,
)
from paceline.strategy.parallelism import Parallelism
from paceline.workload.table import Workload


def test_communicators_of_a100_have_the_measured_bytes() -> None:
    """544 MiB for two of four A100, 688 for more: an end of the tree, which has three connections (NVIDIA/nccl#964)."""
    four = named_cluster("A100", 4, 1)
    assert communicator_bytes(Communicator("pair", 2, 2), four) == 544 * MIB
    inner = communicator_bytes(Communicator("world", 4, 4), four)
    assert inner == 688 * MIB + 24 * 6 * MIB  # one connection more on inner devices


def test_sending_to_all_takes_what_was_measured_on_eight_h100() -> None:
    """An all-to-all adds 3.28 GB (NVIDIA/nccl#1685)."""
    eight = named_cluster("H100-SXM", 8, 1)
    plain, sends = (communicator_bytes(Communicator("experts", 8, 8, sends), eight) for sends in (0, 7))
    assert sends - plain == pytest.approx(3.28e9, rel=0.15)


def test_megatron_on_eight_h100_takes_several_gb() -> None:
    """Suspending all communicators frees about 7 GB with tensor, pipeline and data groups of two (verl-project/verl#6408)."""
    mesh, eight = Parallelism(data=2, tensor=2, pipeline=2), named_cluster("H100-SXM", 8, 1)
    names = [group.name for group in groups(mesh, 8, megatron=True)]
    assert names == ["world", "tensor", "data", "pipeline", "model", "embeddings"]
    found = communicators_bytes(mesh, eight, megatron=True)
    assert 4e9 < found < 7e9 and found > communicators_bytes(mesh, eight) > communicators_bytes(Parallelism(data=8), eight) > 0


def test_one_device_and_other_kinds_have_no_communicator() -> None:
    assert communicators_bytes(Parallelism(data=1), named_cluster("A100", 1, 1)) == 0
    tpu = Cluster.named("8 TPU v5e")
    assert communicators_bytes(Parallelism(data=8), tpu) == workspace_bytes(tpu.device) == 0 < context_bytes(tpu.device)


def test_what_is_counted_by_pytorch_is_less_than_the_device_s_total() -> None:
    p = paceline.predict("llama-3-8b", "8 H100", sharding="zero3", global_batch_size=8, recompute="full")
    beyond = sum(p.memory[name] for name in ("context", "communicators"))
    assert p.reserved_bytes == pytest.approx(p.memory_bytes - beyond) and p.allocated_bytes <= p.reserved_bytes


def test_a_compiled_block_saves_no_result_of_element_wise_kernels() -> None:
    """A block of Llama 3 8B: inputs of two norms, queries, keys, values and the result of attention, two inputs of the gate."""
    from paceline.prediction.passes.recompute import recomputed
    from paceline.strategy.recompute import NO_RECOMPUTE, Recompute

    tokens, hidden, ffn, heads = 64, 4096, 14336, 32
    network = Workload.named("llama-3-8b", tokens)
    sizes = {
        name: recomputed(network, NO_RECOMPUTE, name).kept[1:16] for name in ("narrow compiled", "narrow", "narrow upcast")
    }
    compiled = 2 * tokens * (2 * hidden + 2 * hidden + 2 * 1024 + 2 * ffn) + 4 * tokens * heads + 4 * 2 * tokens
    assert sum(sizes["narrow compiled"]) == pytest.approx(compiled, rel=2e-3)
    assert sum(sizes["narrow"]) - sum(sizes["narrow compiled"]) == pytest.approx(2 * tokens * (2 * hidden + 2 * ffn), rel=2e-3)
    by_operation = Recompute.of("selective:op")
    held = [recomputed(network, by_operation, name).kept_bytes for name in ("narrow", "narrow compiled")]
    # also the inputs of the last norm and of the logits are outside of blocks
    assert held[0] - held[1] == pytest.approx(32 * 2 * tokens * hidden + 2 * tokens * hidden, rel=1e-2)
