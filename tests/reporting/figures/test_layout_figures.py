"""Pictures of a layout: pipeline, memory of its stages, mesh; and the page that shows them."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning import Goal, Space, explain, plan
from paceline.planning.compare.layout_view import LayoutView, layout_view
from paceline.prediction import Predictor
from paceline.reporting.figures import layout_figures
from paceline.reporting.pages import answer_page
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=1024, heads=16, vocabulary=51200), 512, name="gpt-8x1024")
CLUSTER = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


@pytest.fixture(scope="module")
def view() -> LayoutView:
    strategy = Strategy.of(
        world_size=16, global_batch_size=64, precision="bf16", tensor=2, pipeline=4, grad_accum_steps=8, sharding="zero1"
    )
    seen = layout_view(GPT, CLUSTER, strategy, Predictor())
    assert seen is not None
    return seen


def texts(svg: str) -> str:
    return " ".join(
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    )


def test_a_pipeline_shows_all_stages_and_micro_batches(view: LayoutView) -> None:
    svg = layout_figures.pipeline_chart(view, "pipeline")
    shown = texts(svg)
    assert all(f" {number} " in f" {shown} " for number in range(1, 9)) and "forward" in shown and "idle" in shown
    assert f"they are idle {view.idle:.1%} of it" in svg
    assert "4 stages, 8 micro batches" in layout_figures.sentence(view)


def test_of_a_long_step_the_beginning_and_the_end_are_drawn(view: LayoutView) -> None:
    end = max(own[-1].end_s for own in view.passes)
    assert layout_figures.windows(view) == [(0.0, end)]
    first, last = layout_figures.windows(view, most=16)
    assert first[0] == 0 and last[1] == end and first[1] == pytest.approx(end / 8) and last[0] == pytest.approx(7 * end / 8)


def test_memory_is_that_of_the_stages(view: LayoutView) -> None:
    for sizes in view.stage_memory:
        assert sum(layout_figures.grouped(sizes).values()) == pytest.approx(sum(sizes.values()))
        assert layout_figures.grouped(sizes)["activations"] > 0
    svg = layout_figures.memory_of_stages(view, "stages")
    assert "a device has" in texts(svg) and "optimizer state" in texts(svg) and "needs most" in svg


def test_the_mesh_shows_the_nodes_of_a_replica(view: LayoutView) -> None:
    assert layout_figures.nodes_of_replica(view) == [0, 1]
    assert layout_figures.nodes_of_replica(view, most=1) == [0]
    shown = texts(layout_figures.mesh_on_nodes(view, "mesh"))
    assert "node 1" in shown and "s0 c0 t1" in shown and "s3 c0 t0" in shown and "replica 1" in shown


@pytest.mark.long
def test_pages_show_the_layout_where_the_network_is_divided(view: LayoutView) -> None:
    space = Space(clusters=(CLUSTER,), batches=(64,), precisions=("bf16",), compressions=("dense",), pipelines=(4,))
    page = answer_page.plan_page(plan(GPT, space, Goal("fastest")))
    titles = [section.title for section in page.sections]
    assert {"Pipeline", "Memory of each stage", "The mesh on the nodes"} <= set(titles)
    assert "<svg" in answer_page.render(page)
    whole = answer_page.plan_page(plan(GPT, replace(space, pipelines=()), Goal("fastest")))
    assert "Pipeline" not in [section.title for section in whole.sections]
    divided = Strategy.of(world_size=16, global_batch_size=64, precision="bf16", tensor=2)
    explained = answer_page.explained_page(explain(GPT, CLUSTER, divided, scale=False))
    assert "Pipeline" in [section.title for section in explained.sections]
