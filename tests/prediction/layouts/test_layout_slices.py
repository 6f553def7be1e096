"""Slices of layouts: what divides the layers, and the network that asks for bytes of an element."""

from __future__ import annotations

from paceline import Workload
from paceline.prediction.layouts.layout_slices import PROBE, LayoutSlice, probe_network
from paceline.strategy.context_exchange import CONTEXT_EXCHANGES
from paceline.strategy.recompute import Recompute

SLICE = LayoutSlice(
    tensor=4,
    sequence=True,
    context=2,
    context_exchange=CONTEXT_EXCHANGES["ring"],
    precision="bf16",
    micro_batch_size=2,
    recompute=Recompute.of("none"),
    expert=8,
)


def test_a_slice_is_a_mesh_of_one_group_of_experts() -> None:
    mesh = SLICE.mesh()
    assert (mesh.tensor, mesh.sequence, mesh.context, mesh.expert, mesh.pipeline) == (4, True, 2, 8, 1)
    assert mesh.stage_devices % mesh.expert_devices == 0
    assert SLICE.division == (4, True, 2, CONTEXT_EXCHANGES["ring"], 8) and SLICE.width == 0.5


def test_a_probe_has_equal_tensors_each_a_block() -> None:
    gpt = Workload.named("gpt2")
    probe = probe_network(gpt, 3, 100)
    assert [p.size for p in probe.parameters] == [PROBE] * 3 and probe.frozen == 100
    assert len({p.name.split(".")[1] for p in probe.parameters}) == 3
    assert probe_network(gpt, 3, 100) is probe
