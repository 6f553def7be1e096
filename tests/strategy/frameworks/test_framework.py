import pickle
from dataclasses import fields

import pytest

from paceline.calibration.attention import KERNELS
from paceline.calibration.constants import efficiency
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.strategy.frameworks import FRAMEWORKS, ORDINARY, TUNED, framework_of
from paceline.strategy.strategy import CHOICES
from paceline.workload import Workload


def test_a_framework_is_found_by_its_names() -> None:
    assert framework_of("HF Trainer") is FRAMEWORKS["hf-trainer"] is framework_of("huggingface")
    assert framework_of("torchtitan") is FRAMEWORKS["fsdp2"] is framework_of(FRAMEWORKS["fsdp2"])
    assert pickle.loads(pickle.dumps(TUNED)) is TUNED
    for wrong in ("megatrom", 7, None):
        with pytest.raises(UserError, match="megatron"):
            framework_of(wrong)


def test_each_states_legal_values_and_a_source() -> None:
    for framework in FRAMEWORKS.values():
        assert framework.attention in ("", *KERNELS) and framework.sources, framework
        for name, value in {**framework.defaults, **framework.examples}.items():
            assert CHOICES[name].values.check(value, name) == value, framework


def test_a_choice_that_is_named_comes_before_the_framework() -> None:
    assert ORDINARY.settles("loss", "") == "plain" and ORDINARY.settles("loss", "cut") == "cut"
    assert TUNED.settles("loss", "") == "in_place" and ORDINARY.settles("optimizer", "") == ""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_constants_under_a_framework_are_adapted_once(name: str) -> None:
    predictor = Predictor(framework=name)
    e, own = predictor.typical, FRAMEWORKS[name]
    assert e.framework is own.under_compiler(own.compiles) and predictor.changed(loader=3.0).typical == e
    assert own.compiles or e.under(own) == e
    plain = efficiency(own.level)
    assert own.plain == (e == plain) and e.host_s == plain.host_s
    assert (e.launch_s == plain.launch_s) == (own.graphs or own.level == "ordinary")
    assert all(getattr(e, f.name) == getattr(plain, f.name) for f in fields(e) if f.name.startswith(("matrix", "link")))


def test_a_compiler_queues_the_kernels_of_fsdp2() -> None:
    compiled, plain = (Predictor(framework="fsdp2", compile=on).typical for on in (True, False))
    assert compiled.launch_s == efficiency("tuned").launch_s != plain.launch_s


def test_open_choices_take_the_defaults_of_the_framework() -> None:
    open_, named = (
        Strategy.of(world_size=1, global_batch_size=1, precision="bf16", **more) for more in ({}, {"update": "looped"})
    )
    assert open_.under(FRAMEWORKS["hf-trainer"]).weight_update.update == "fused"
    assert named.under(FRAMEWORKS["hf-trainer"]) is named and open_.under(ORDINARY) is open_
    lamb = open_.changed(optimizer="lamb")
    assert lamb.under(FRAMEWORKS["hf-trainer"]) is lamb  # has no such update
    net, on = Workload.named("gpt2-xl", 64), Cluster.named("A100")
    predictor = Predictor(framework="hf-trainer-4")
    one, many = predictor.step(net, on, open_), predictor.many(net, [(on, open_)])
    assert many.step_s[0] == pytest.approx(one.step_time_s) and many.memory_bytes[0] == pytest.approx(one.memory_bytes)
    assert one.memory_bytes > Predictor(framework="hf-trainer").step(net, on, open_).memory_bytes
