from dataclasses import replace

from paceline import Workload
from paceline.calibration.constants import TYPICAL
from paceline.prediction.passes.computed_layers import as_computed
from paceline.prediction.passes.looped_experts import with_looped_experts
from paceline.strategy.frameworks import FRAMEWORKS


def test_a_network_is_computed_as_its_framework_does() -> None:
    net = Workload.named("mixtral-8x7b")
    assert as_computed(net, TYPICAL) is net
    for framework in FRAMEWORKS.values():
        own = as_computed(net, replace(TYPICAL, framework=framework))
        assert own is (with_looped_experts(net) if framework.experts == "looped" else net)
