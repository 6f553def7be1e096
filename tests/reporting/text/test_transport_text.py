"""What is said where only the speed of a network is given."""

from __future__ import annotations

from paceline import Cluster, Predictor, Strategy, Workload
from paceline.planning import parse_change, whatif
from paceline.prediction.transports import steps_by_transport
from paceline.reporting import prediction_screen
from paceline.reporting.text.transport_text import gains_text, steps_text, with_steps
from paceline.reporting.values import number, seconds

ASKED = Workload.named("resnet-50"), Cluster.named("2x8 V100", "25Gb/s"), Strategy.of(world_size=16, global_batch_size=512)
NAMED = ASKED[1].changed(network=Cluster.named("2x8 V100", "25Gb/s RoCE").network)


def test_both_steps_and_which_is_taken() -> None:
    steps = steps_by_transport(Predictor(), *ASKED)
    text = steps_text(steps)
    assert text.startswith("Only the speed of the network is given: TCP is taken.")
    assert f"over RDMA (RoCE, InfiniBand): {seconds(steps['RDMA'].step_time_s)}" in text
    assert f"over TCP: {seconds(steps['TCP'].step_time_s)}" in text
    screen = with_steps(prediction_screen(steps["TCP"]), steps)
    head = " ".join(screen.text(80).split())[:400]
    assert text in head, "in the first lines"
    assert f"over RDMA {seconds(steps['RDMA'].step_time_s)}" in screen.brief


def test_both_gains() -> None:
    answer = whatif(*ASKED, [parse_change("network=100Gb/s")])
    for other in answer.by_transport.values():
        assert f"network=100Gb/s {number(other.changes[0].speedup)}x" in gains_text(answer)


def test_nothing_is_said_where_the_transport_is() -> None:
    assert steps_text(steps_by_transport(Predictor(), ASKED[0], NAMED, ASKED[2])) == ""
    assert gains_text(whatif(ASKED[0], NAMED, ASKED[2], [parse_change("network=100Gb/s")])) == ""
