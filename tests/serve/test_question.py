"""What a selection means: the values that predict takes; and no name opens a file or runs code."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.hardware.prices import price
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question
from paceline.serve.selection import ControlError

SMALL = {"workload": "lenet5", "device": "A100", "devices-per-node": "4"}


def asked(**changes: str) -> Question:
    return question({**SMALL, **{name.replace("_", "-"): text for name, text in changes.items()}}, Configurations())


def test_a_selection_is_a_workload_a_cluster_and_a_strategy() -> None:
    own = asked(workload="GPT2 XL", device="H100", nodes="2", network="100Gb/s", sharding="zero2", global_batch="32")
    assert (own.workload.name, own.cluster.world_size, own.cluster.num_nodes) == ("gpt2-xl", 8, 2)
    assert (own.strategy.parallelism.sharding.name, own.strategy.global_batch_size) == ("zero2", 32)


def test_without_a_batch_it_is_the_most_that_fits() -> None:
    assert asked().strategy.global_batch_size == 4096


def test_samples_of_a_micro_batch_are_a_global_batch() -> None:
    own = asked(micro_batch_size="8", grad_accum="2")
    assert (own.strategy.global_batch_size, own.strategy.parallelism.micro_batches) == (64, 2)
    assert asked(micro_batch_size="8", global_batch="96").strategy.parallelism.micro_batches == 3


def test_amount_limits_price_and_adapters() -> None:
    own = asked(workload="gpt2", tokens="1.024B", by="2d", budget="$500", price="2.5", lora="r=8")
    assert (own.target.total, own.by_s, own.budget_usd) == (1_000_000, 172_800, 500)
    assert own.price and own.price.usd_per_device_hour == 2.5 and own.workload.frozen > 0
    assert asked().price == price("A100 SXM 80GB", None, (4,)) and asked().target.total == 1_000_000
    assert asked(workload="gpt2", tokens_per_sample="mean=100,max=256").workload.tokens == 256


@pytest.mark.parametrize(
    ("changes", "option", "said"),
    [
        ({"micro_batch_size": "3", "global_batch": "32"}, "micro-batch-size", "no multiple of 3 samples x 4 replicas"),
        ({"samples": "5", "tokens": "5"}, "tokens", "both say how much"),
        ({"tokens": "5"}, "tokens", "give samples instead"),
        ({"by": "yesterday"}, "by", "no time to be done by"),
        ({"lora": "r=x"}, "lora", "no rank"),
        ({"workload": "lenet6"}, "workload", "unknown model"),
        ({"device": "A1000"}, "device", "unknown device"),
        ({"nodes": "2", "network": "nonsense"}, "network", "network"),
        ({"nodes": "2", "network": "400Gb/s", "devices_per_node": "600"}, "devices-per-node", "600 devices in a node"),
        ({"nodes": "2"}, "network", "2 nodes have no network"),
        ({"price": "cheap"}, "price", "write it as 2.50"),
    ],
)
def test_a_mistake_names_its_control(changes: dict[str, str], option: str, said: str) -> None:
    with pytest.raises(ControlError, match=said) as caught:
        asked(**changes)
    assert caught.value.option == option


def test_no_name_opens_a_file_or_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (
        "trap:main",
        "trap.py:Net",
        "trap.py",
        str(tmp_path),
        ".",
        "config.json",
        f"{tmp_path}/config.json",
        "~",
        "config:../x",
    ):
        with pytest.raises(UserError):
            question({"workload": name, "device": "A100"}, Configurations())
