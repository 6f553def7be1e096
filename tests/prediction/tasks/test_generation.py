"""Generation against published rates of vLLM, which nothing was fitted to, and against closed forms."""

from __future__ import annotations

import pytest

from paceline.calibration.constants import efficiency
from paceline.hardware import Cluster
from paceline.prediction.tasks.forward_only import cache_elements, weights_read
from paceline.prediction.tasks.generation import Generation, generation
from paceline.strategy import Strategy
from paceline.strategy.tasks.task import Reward, StepTask
from paceline.workload import Workload


def generated(cluster: str, batch: int, task: str, seq_len: int = 1152, network: str = "llama-3.1-8b") -> Generation:
    where, made = Cluster.named(cluster), StepTask.of(task)
    assert isinstance(made, Reward)
    strategy = Strategy.of(world_size=where.world_size, tensor=where.world_size, global_batch_size=batch, precision="bf16")
    return generation(Workload.named(network, seq_len), where, strategy, made, efficiency("ordinary"))


@pytest.mark.parametrize(("batch", "tokens_per_s"), [(1, 75.0), (8, 495.0)])
def test_vllm_on_an_a100_is_met(batch: int, tokens_per_s: float) -> None:
    """Musgrave 2026, vLLM throughput-latency sweep on NVIDIA A100: Llama 3.1 8B, 1,024 tokens in, 128 out, A100 40GB."""
    made = generated("1 A100 40GB", batch, "grpo:completion=128,samples=1,share=0.9")
    assert batch * 128 / made.seconds == pytest.approx(tokens_per_s, rel=0.1)


def test_cache_and_weights_are_those_of_the_configuration() -> None:
    for network, width in (("llama-3-8b", 32 * 2 * 8 * 128), ("qwen2.5-7b", 28 * 2 * 4 * 128), ("gpt2", 12 * 2 * 768)):
        assert cache_elements(Workload.named(network, 512)) == pytest.approx(width)
        assert cache_elements(Workload.named(network, 512, fused_attention=False)) == pytest.approx(width)
    whole, active = weights_read(Workload.named("mixtral-8x7b", 512))
    assert active / whole == pytest.approx(12.9 / 46.7, rel=0.05)  # of 8 experts 2 are active


def test_a_small_batch_reads_the_weights_once_for_all() -> None:
    one, two = (generated("1 H100", batch, "grpo:completion=128,samples=1,share=0.9", 256) for batch in (1, 2))
    assert two.seconds < 1.1 * one.seconds


def test_sequences_beyond_the_cache_wait_for_a_turn() -> None:
    few, many = (generated("1 H100", batch, "grpo:completion=1024,samples=1,share=0.3", 2048) for batch in (16, 640))
    assert few.at_once == 16 and many.at_once < 640
    assert many.seconds > 640 / many.at_once * few.seconds * 0.9
    assert many.memory["generation engine"] == pytest.approx(0.3 * 80 * 2**30, rel=0.1)


def test_two_devices_read_half_each_and_add_their_sums() -> None:
    one, two = (generated(cluster, 8, "grpo:completion=128,share=0.5", 256) for cluster in ("1 H100", "2 H100"))
    assert one.seconds / 2 < two.seconds < one.seconds
    assert two.spent["intra-node link"] > 0


def test_the_host_of_transformers_launches_every_kernel() -> None:
    slow, fast = (generated("1 H100", 8, f"grpo:completion=128,engine={engine}", 256) for engine in ("hf", "vllm"))
    assert slow.spent["launch overhead"] > 0 == fast.spent["launch overhead"]
    assert slow.seconds > 2 * fast.seconds
