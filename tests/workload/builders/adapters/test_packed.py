"""Frozen weights of 4 and 8 bits: bytes by closed forms, kernels, and how they are sharded and gathered."""

from __future__ import annotations

import pytest

from paceline import predict
from paceline.workload import Workload
from paceline.workload.builders.adapters.packed import SLOW
from paceline.workload.builders.transformer import llama

H, KV, F, LAYERS = 4096, 1024, 14336, 32
SIZES = {"q_proj": H + H, "k_proj": H + KV, "v_proj": H + KV, "o_proj": H + H, "gate_proj": H + F, "up_proj": H + F}


def test_packed_products_keep_their_inputs() -> None:
    base = Workload.from_shape(llama(2, 64, 4, 4, 96, 100), 32)
    plain, packed = (base.with_lora(f"r=4,targets=v_proj{bits}") for bits in ("", ",bits=4"))
    attention, gate, down = 2 * 32 * 64, 2 * 32 * 64, 2 * 32 * 96  # what enters the products of a block, in 16 bits
    assert packed.kept_bytes("autocast") - plain.kept_bytes("autocast") == 2 * (attention + gate + down)


def test_frozen_products_in_four_bits() -> None:
    plain, packed, nf4 = (Workload.named("llama-3-8b", 512, lora=f"r=8{bits}") for bits in ("", ",bits=4", ",nf4"))
    assert packed == nf4 and not plain.frozen_bits and packed.frozen == plain.frozen
    embeddings = 2 * 128256 * 4096
    products = packed.frozen - embeddings
    expected = (4.5 * products + 16 * embeddings) / packed.frozen
    assert packed.frozen_bits == pytest.approx(expected, rel=1e-3)
    added = [
        sum(o.fixed_bytes for layer in network.layers for o in layer.operations if o.kind == "memory")
        for network in (plain, packed)
    ]
    assert added[1] - added[0] == pytest.approx(
        SLOW * 2 * 2 * products * 20.5 / 8, rel=1e-3
    )  # each pass, as bytes of fp32 tensors
    assert Workload.from_json(packed.to_json()) == packed
    steps = [predict(network, "A100", precision="bf16", global_batch_size=1) for network in (plain, packed)]
    assert steps[1].memory["frozen weights"] == pytest.approx(steps[0].memory["frozen weights"] * packed.frozen_bits / 16)
    assert steps[1].step_time_s > steps[0].step_time_s


PRODUCTS = 2 * (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 96)
"""Elements of the products of the network below."""


def small(text: str) -> Workload:
    return Workload.from_shape(llama(2, 64, 4, 2, 96, 100), 32).with_lora(text)


@pytest.mark.parametrize(("text", "bits"), [("bits=4", 4.5), ("bits=4,double=yes", 4 + 8 / 64 + 32 / 64 / 256)])
def test_bytes_of_codes_and_scales(text: str, bits: float) -> None:
    net = small(f"r=4,targets=q_proj,{text}")
    others = net.frozen - PRODUCTS
    assert net.frozen_bits * net.frozen == pytest.approx(bits * PRODUCTS + 16 * others)
    assert net.scale_bits * net.frozen == pytest.approx((bits - 4) * PRODUCTS) and net.unpacked == 64 * 96
    assert net.code_bits == pytest.approx(net.frozen_bits - net.scale_bits)


def test_eight_bits_have_a_scale_for_each_row() -> None:
    net = small("r=4,targets=q_proj,bits=8")
    rows = 2 * (64 + 32 + 32 + 64 + 96 + 96 + 64)
    assert net.scale_bits * net.frozen == pytest.approx(32 * rows)
    forward = [o for o in net.layers[2].operations if o.kind == "memory" and not o.backward and not o.eager]
    assert all(o.fixed_bytes == 0 for o in forward) and sum(o.bytes for o in forward) > 0  # nothing is unpacked


def test_peft_widens_what_is_not_packed() -> None:
    narrow, wide = (small(f"r=4,targets=q_proj,bits=4{more}") for more in ("", ",others=32"))
    others = narrow.frozen - PRODUCTS
    assert (wide.frozen_bits - narrow.frozen_bits) * narrow.frozen == pytest.approx(16 * others)
    assert wide.unpacked == 64 * 100  # the output layer, which autocast copies


def test_zero3_shards_and_gathers_codes() -> None:
    net = Workload.named("llama-3-8b", 512, lora="qlora")
    whole, shared = (predict(net, "8 A100", precision="bf16", sharding=s, global_batch_size=8) for s in ("ddp", "zero3"))
    codes, scales = net.code_bits / 8 * net.frozen, net.scale_bits / 8 * net.frozen
    assert whole.memory["frozen weights"] == pytest.approx(codes + scales)
    assert shared.memory["frozen weights"] == pytest.approx(codes / 8 + scales)
    moved = 2 * 7 / 8 * codes + 3 * 7 / 8 * 2 * net.num_parameters
    assert shared.wire_bytes_per_device == pytest.approx(moved, rel=1e-3)
    tables, block = 2 * 128256 * 4096, 4 / 8 * 218_103_808  # bytes of a table in 16 bits, and of a block's codes
    assert shared.memory["gathered"] == pytest.approx(tables + 2 * block, rel=0.1)  # the head, and blocks next to it


def test_recomputation_unpacks_once_more() -> None:
    net = Workload.named("llama-3-8b", 16, lora="qlora")
    none, full = (predict(net, "A100", precision="bf16", global_batch_size=1, recompute=r) for r in ("none", "full"))
    assert 1.3 < full.step_time_s / none.step_time_s < 1.55  # three times, not twice: a short sequence is all unpacking
    assert predict(net, "A100", precision="bf16", global_batch_size=1).step_time_s == full.step_time_s
