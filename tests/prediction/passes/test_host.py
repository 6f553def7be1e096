"""What the host launches, and where a pass waits for it."""

from __future__ import annotations

import pytest

import paceline
from paceline.array_types import Array
from paceline.calibration.constants import efficiency
from paceline.hardware import Cluster, device
from paceline.prediction import Predictor
from paceline.prediction.mesh.expert_parallel import expert_share
from paceline.prediction.passes.host import (
    GROUPED_S,
    LOOP_S,
    MEASURED_EXPERTS,
    hook_seconds,
    host_launches,
    host_seconds,
    own_operations,
)
from paceline.strategy import Strategy
from paceline.strategy.parallelism import Parallelism
from paceline.workload import Workload
from traced_layers import work

ORDINARY, TUNED = efficiency("ordinary"), efficiency("tuned")
H100, B200 = device("H100"), device("B200")


def test_ordinary_software_launches_every_kernel() -> None:
    workload = Workload.named("mixtral-8x7b")
    forward, backward = host_launches(workload, ORDINARY, H100, "bf16")
    assert forward.tolist() == [work(layer, "calls_forward") for layer in workload.layers]
    added = [max(0, work(layer, "calls_backward") - work(layer, "calls_forward")) for layer in workload.layers]
    products = [any(o.kind == "matmul" for o in layer.operations) for layer in workload.layers]
    least = LOOP_S / ORDINARY.host_s
    for launches, layer, more, product in zip(backward, workload.layers, added, products, strict=True):
        assert launches == pytest.approx(work(layer, "calls_backward") - (0 if product else more * (1 - least)))


def test_sums_of_gradients_cost_the_host_a_fraction_of_a_launch() -> None:
    """A DenseNet adds the gradients of every layer that reads a tensor; a ResNet has one or two readers of each."""
    counts = {}
    for name in ("timm/densenet121", "resnet-50"):
        workload = Workload.named(name)
        launched = sum(o.calls for layer in workload.layers for o in layer.operations if not o.autocast)
        counts[name] = host_launches(workload, ORDINARY, H100, "bf16").sum() / launched
    assert counts["resnet-50"] > 0.99 and counts["timm/densenet121"] < 0.8


def test_tuned_software_launches_blocks_of_experts_with_a_product_for_each() -> None:
    assert not host_launches(Workload.named("llama-3-8b"), TUNED, H100, "bf16").any()
    workload = Workload.named("deepseek-v2-lite")  # the first block has no experts
    apart = host_launches(workload, TUNED, H100, "bf16")
    names = [layer.name for layer in workload.layers]
    dense = [i for i, name in enumerate(names) if not name.startswith("blocks.") or name.startswith("blocks.0.")]
    assert not apart[:, dense].any()
    last = names.index("blocks.1.experts.contract")
    one = host_launches(workload, ORDINARY, H100, "bf16")[:, last]
    launches = MEASURED_EXPERTS + (64 - MEASURED_EXPERTS) * GROUPED_S / TUNED.expert_host_s
    assert (apart[:, last] - one).tolist() == pytest.approx(
        [launches - 1, 2 * (launches - 1)]
    )  # two products in the backward pass
    assert MEASURED_EXPERTS < launches < 64
    own = expert_share(workload, Parallelism(data=8, expert=8)).workload
    assert (host_launches(own, TUNED, H100, "bf16")[:, last] - one).tolist() == [7, 2 * 7]
    gate, expand = (names.index(f"blocks.1.experts.{name}") for name in ("gate", "expand"))
    assert not apart[:, gate].any() and apart[0, expand] == pytest.approx(launches)  # one product for both


def test_the_host_launches_casts_of_inputs_and_gradients_too() -> None:
    workload = expert_share(Workload.named("qwen-3-30b-a3b"), Parallelism(data=8, expert=8)).workload
    products = 7  # queries, keys, values, the projection, the router, both products of experts
    scales = (2 * products, 4 * products)  # both operands of a product; two products in the backward pass
    for precision, (forward, backward) in (("mxfp8", scales), ("fp8-current", (0, 0))):
        more = host_launches(workload, TUNED, H100, precision) - host_launches(workload, TUNED, H100, "bf16")
        assert more.sum(axis=1).tolist() == [48 * (products + forward), 48 * (products + backward)]
        assert (host_launches(workload, ORDINARY, H100, precision) == host_launches(workload, ORDINARY, H100, "bf16")).all()


def test_a_step_in_four_bits_takes_the_host_as_long_as_in_eight() -> None:
    """Nemotron 3 Super takes 1 to 2 % less under NVFP4 on GB200, although its casts have more kernels (Megatron-Bridge)."""
    workload = Workload.named("nemotron-3-super-120b-a12b")
    assert (
        host_launches(workload, TUNED, B200, "nvfp4") == host_launches(workload, TUNED.of_year(2026.0), B200, "mxfp8")
    ).all()


def test_graphs_hold_blocks_up_to_the_router_on_blackwell() -> None:
    workload = Workload.named("qwen-3-30b-a3b")
    launches = [host_launches(workload, TUNED, chip, "bf16").sum(axis=0) for chip in (H100, B200)]
    names = [layer.name for layer in workload.layers]
    before = [i for i, name in enumerate(names) if ".attention" in name or name.endswith(("norm", "router", "route"))]
    own = [i for i in before if names[i].startswith("blocks.")]
    assert launches[0][own].all() and not launches[1][own].any()
    moved = [i for i, name in enumerate(names) if name.endswith(("dispatch", "combine", "experts.contract"))]
    assert (launches[0][moved] == launches[1][moved]).all() and launches[1][moved].all()


def test_graphs_hold_experts_of_one_kernel_on_blackwell_under_mxfp8_since_2026() -> None:
    workload = Workload.named("qwen-3-30b-a3b")
    assert not host_launches(workload, TUNED, B200, "mxfp8").any()
    for constants, precision in ((TUNED, "bf16"), (TUNED.of_year(2026.0), "mxfp8"), (ORDINARY, "mxfp8")):
        assert host_launches(workload, constants, B200, precision).any()


def test_where_graphs_hold_everything_the_host_costs_nothing() -> None:
    assert host_seconds(device("H100"), TUNED) == host_seconds(device("H100"), ORDINARY) == ORDINARY.host_s > 0
    assert [host_seconds(device(name), TUNED) for name in ("MI300X", "TPU v4")] == [0.0] * 2
    assert (
        host_seconds(B200, ORDINARY) == host_seconds(B200, TUNED) == ORDINARY.host_s
        and host_seconds(device("TPU v4"), ORDINARY) == 0.0
    )
    assert host_seconds(device("Gaudi 2"), ORDINARY) == ORDINARY.host_s and host_seconds(device("Gaudi 2"), TUNED) == 0.0
    held_out = efficiency("tuned", "Hopper")
    assert held_out.expert_host_s == efficiency("ordinary", "Hopper").host_s


def test_small_experts_wait_for_the_host_and_large_micro_batches_do_not() -> None:
    workload, cluster = Workload.named("qwen-3-30b-a3b"), paceline.Cluster.named("8 H100")
    model = Predictor(framework="tuned")

    def launching(micro_batch: int, experts: int = 8) -> float:
        strategy = Strategy.of(
            data=8, global_batch_size=8 * micro_batch, precision="bf16", expert=experts, sharding="distributed_optimizer"
        )
        return model.step(workload, cluster, strategy).exposed["launch overhead"]

    one, eight = launching(1), launching(8)
    assert one > 0.1 and eight < 0.5 * one
    assert one == pytest.approx(launching(1), rel=0) and launching(1, 4) > one  # more experts on a device


def test_hooks_of_modules_are_of_shared_out_weights_alone() -> None:
    net, on = Workload.named("llama-3-8b"), Cluster.named("8 A100")
    e = Predictor(framework="deepspeed").typical

    def hooks(**choices: object) -> Array | None:
        return hook_seconds(net, Strategy.of(world_size=8, global_batch_size=8, **choices), e)

    whole = hooks(sharding="zero3")
    assert whole is not None and hooks(sharding="zero2") is None and hooks(tensor=8) is None
    # one of each product, the table of tokens and the logits
    assert whole.sum() == pytest.approx(2 * e.framework.module_host_s * (32 * 7 + 2))
    short = Workload.named("llama-3-8b", 64)
    way = Strategy.of(world_size=8, global_batch_size=8, sharding="zero3", precision="bf16")
    plain, hooked = (Predictor(framework=name).step(short, on, way) for name in ("hf-trainer", "deepspeed"))
    assert hooked.exposed["launch overhead"] > plain.exposed["launch overhead"]


def test_kernels_of_an_adapter_are_bare_launches() -> None:
    net, lora = Workload.named("llama-3-8b"), Workload.named("llama-3-8b", lora="r=8")
    plain, more = (float(host_launches(of, ORDINARY, H100, "bf16").sum()) for of in (net, lora))
    frozen = sum(o.calls for layer in lora.layers for o in layer.operations[: own_operations(layer)] if not o.autocast)
    added = sum(o.calls for layer in lora.layers for o in layer.operations[own_operations(layer) :])
    assert more <= frozen + added * LOOP_S / ORDINARY.host_s + 1e-9 < plain + added
