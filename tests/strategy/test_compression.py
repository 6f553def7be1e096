"""Bytes on the wire and the rules of what stays dense."""

from __future__ import annotations

import pytest

from paceline.codecs.registry import BY_NAME
from paceline.strategy import COMPRESSIONS, EXCHANGES, FP32, DenseRule
from paceline.workload import Parameter, Workload
from strategy_toys import exchanges_of


def tensor(name: str, *shape: int) -> Parameter:
    return Parameter(name=name, shape=shape, layer=0, ready=0)


def test_dense_rule_names_its_reasons():
    tensors = [
        tensor("conv.weight", 64, 32),
        tensor("conv.bias", 64),
        tensor("embedding.weight", 5000, 10),
        tensor("norm.weight", 2048),
        tensor("fc.weight", 10, 2048),
        tensor("fc.bias", 10),
    ]
    assert DenseRule(names=("embedding.*",)).dense(tensors) == {
        "conv.bias": "fewer than 1024 elements",
        "embedding.weight": "named by the user",
        "fc.weight": "last layer",
        "fc.bias": "last layer",
    }
    assert DenseRule(min_elements=0, last_layer=False).dense(tensors) == {}


@pytest.mark.parametrize(("net", "last"), [("alexnet", "fc8"), ("vgg-a", "classifier.6"), ("resnet-50", "fc")])
def test_the_last_layer_of_a_network_stays_dense(net, last):
    parameters = Workload.named(net).parameters
    dense = COMPRESSIONS["terngrad"].dense(parameters)
    final = parameters[-1].name.rpartition(".")[0]
    assert [name for name, why in dense.items() if why == "last layer"] == [
        p.name for p in parameters if p.name.startswith(f"{final}.")
    ]


def test_only_a_coarse_codec_that_forgets_its_error_spares_the_last_layer():
    spared = {name for name, c in COMPRESSIONS.items() if "fc8.weight" in c.dense(Workload.named("alexnet").parameters)}
    assert spared == {"terngrad", "int4", "inceptionn"}


DEFAULTS = {
    "inceptionn": {"bound": 2.0**-10},  # Li et al. 2018: the bound of figures 12 and 13
    "inceptionn-scaled": {"bound": 2.0**-6},  # docs/compression.md
    "int8": {"block": 1024},
    "int4": {"block": 1024},
    "fp8": {"block": 1024},
    "sign": {"block": 1024},
    # Lin et al. 2018 send 0.1 to 1 %
    "topk": {"density": 0.01, "value_bits": 32, "chunk": 0, "momentum": 0, "warmup_steps": 0},
    "powersgd": {"rank": 2, "start_iter": 2, "min_rate": 2},  # Vogels et al. 2019: ranks 1, 2 and 4
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_defaults_of_the_options_are_those_of_the_documents_and_of_the_codecs(name):
    options = {option.name: option.default for option in COMPRESSIONS[name].options if option.name != "ratio"}
    assert options == DEFAULTS.get(name, {})
    if name in BY_NAME:
        codec = BY_NAME[name]()
        assert all(getattr(codec, key) == value for key, value in options.items() if hasattr(codec, key))


def test_a_rule_reads_as_a_sentence():
    assert str(DenseRule(names=("*.emb",))) == "dense: the last layer, tensors of fewer than 1024 elements, tensors named *.emb"


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_descriptions_are_complete(compression):
    assert exchanges_of(compression)
    assert set(exchanges_of(compression)) <= set(EXCHANGES)
    assert compression.cpu_rate.encode.value > 0 and compression.cpu_rate.decode.source
    assert compression.title and compression.format.element_bits > 0
    assert (compression.format == FP32) == (compression.name == "dense")
    assert bool(compression.citation) == (compression.name != "dense")
    assert not compression.shares_scale or "allreduce" not in exchanges_of(compression)
