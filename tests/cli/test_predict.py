"""``paceline predict``: every number of a compression, an exchange and its options, as JSON and as text."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

import samples
from command import answer, run
from paceline.prediction import Prediction
from paceline.strategy import COMPRESSIONS, EXCHANGES

ON_FOUR = "predict lenet5 --device A100 --nodes 4 --network 10Gb/s --global-batch 64"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_predict_json_has_every_number(compression: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"{ON_FOUR} --compression {compression}")
    names = "step_time_s samples_per_s compute_s comm_s exposed_comm_s wire_bytes_per_device memory_bytes low_s high_s"
    for name in names.split():
        assert isinstance(data[name], int | float) and data[name] > 0, name
    assert data["low_s"] <= data["step_time_s"] <= data["high_s"]
    assert data["step_time_s"] == pytest.approx(data["compute_s"] + data["exposed_comm_s"])
    assert data["samples_per_s"] == pytest.approx(64 / data["step_time_s"])
    assert isinstance(data["bottleneck"], str) and data["bottleneck"]
    assert isinstance(data["assumptions"], list) and all(isinstance(a, str) and a for a in data["assumptions"])
    assert data["strategy"]["compression"] == compression and data["strategy"]["world_size"] == 4


def test_predict_takes_options_and_every_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    for exchange in EXCHANGES:
        adds = " --aggregation SwitchML" * (exchange == "switch")
        assert answer(capsys, f"{ON_FOUR} --exchange {exchange}{adds}")["strategy"]["exchange"] == exchange
    scaled = f"{ON_FOUR} --compression inceptionn-scaled --exchange ring --option bound=2^-8 --option ratio=4"
    assert answer(capsys, scaled)["strategy"]["options"] == {"bound": 2**-8, "ratio": 4}
    text = " ".join(run(capsys, scaled)[1].split())
    assert "exchange ring, bound 0.00390625, ratio 4" in text and "depends on the gradients" in text


def test_predict_text_says_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, ON_FOUR)
    text = run(capsys, f"{ON_FOUR} --why")[1]
    assert (
        data["bottleneck"] in text and "step time" in text and "first bucket 1.05 MB, bucket 26.2 MB" in " ".join(text.split())
    )
    assert max(map(len, text.splitlines())) <= 80


def test_numbers_that_json_lacks_become_null(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = replace(samples.metrics("dense"), samples_per_s=float("nan"), high_s=float("inf"))
    prediction = Prediction(**{field.name: getattr(metrics, field.name) for field in fields(metrics)})
    monkeypatch.setattr("paceline.prediction.predictor.Predictor.step", lambda *given: prediction)
    data = answer(capsys, ON_FOUR)
    assert (data["samples_per_s"], data["high_s"]) == (None, None)


IN_CARD = "predict alexnet --device A100 --nodes 4 --network 10Gb/s --global-batch 256 --compression inceptionn --codec-at nic"


def test_a_codec_in_the_card_and_the_card_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    default, prototype = answer(capsys, IN_CARD), answer(capsys, f"{IN_CARD} --nic vc709")
    assert default["strategy"]["codec_at"] == "nic" and "nic" not in default["cluster"]
    assert prototype["cluster"]["nic"] == "INCEPTIONN VC709"
    # 2 (p-1)/p of the dense gradient through 2.1 Gb/s, however small the packets on the line are.
    elsewhere = answer(capsys, IN_CARD.replace(" --compression inceptionn --codec-at nic", " --exchange ring"))
    assert prototype["comm_s"] == pytest.approx(elsewhere["wire_bytes_per_device"] * 8 / 2.1e9, rel=0.02)
    assert default["comm_s"] < elsewhere["comm_s"] < prototype["comm_s"]
    assert default["by_transport"] == {}  # a card follows TCP
    assert any("The codec is in the network card of each node, Paceline engine" in text for text in default["assumptions"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--exchange sharded", "legal with codec_at nic: ring, parameter_server"),
        ("--nic vc710", "unknown network card 'vc710'"),
        ("--codec-at card", "unknown place of the codec 'card'"),
        ("--exchange parameter_server", "--no-compress-pull"),
        ("--network 'InfiniBand HDR'", "follows TCP on an Ethernet"),
    ],
)
def test_a_card_that_cannot_be_is_a_mistake_of_one_line(more: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"{IN_CARD} {more}")
    assert (code, out) == (2, "") and words in " ".join(err.split()) and "Traceback" not in err


def test_sums_in_the_switch_need_one_that_adds(capsys: pytest.CaptureFixture[str]) -> None:
    on_four = "predict alexnet --device A100 --nodes 4 --network 10Gb/s --global-batch 256"
    ring, switch = (
        answer(capsys, f"{on_four} {more}") for more in ("--exchange ring", "--exchange switch --aggregation paceline")
    )
    assert ring["comm_s"] / switch["comm_s"] == pytest.approx(2 * 3 / 4, rel=0.02)
    assert switch["cluster"]["aggregation"] == "Paceline switch"
    code, _, err = run(capsys, f"{on_four} --exchange switch")
    assert code == 2 and "--aggregation SwitchML" in " ".join(err.split())


@pytest.mark.parametrize("command", ["predict", "explain", "plan", "whatif"])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--nic vc709", "--nic vc709, and the codec is not in a network card; give --codec-at nic, or leave --nic out"),
        ("--nic vc709 --compression inceptionn --codec-at host", "give --codec-at nic, or leave --nic out"),
        (
            "--aggregation ATP",
            "--aggregation ATP, and no exchange takes its sums in a switch; give --exchange switch",
        ),
        ("--aggregation ATP --exchange ring", "give --exchange switch, or leave --aggregation out"),
    ],
)
def test_a_card_or_a_switch_that_nothing_uses_is_refused(
    command: str, more: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more += " --change nodes+1" if command == "whatif" else ""
    code, out, err = run(capsys, f"{command} alexnet --cluster '4x1 A100' --network 10Gb/s --global-batch 256 {more}")
    assert (code, out) == (2, "") and words in " ".join(err.split())


def test_a_change_may_be_what_uses_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    job = "whatif alexnet --cluster '4x1 A100' --network 10Gb/s --global-batch 256"
    (in_card,) = answer(capsys, f"{job} --compression inceptionn --nic vc709 --change codec-at=nic")["changes"]
    (in_switch,) = answer(capsys, f"{job} --aggregation ATP --change exchange=switch")["changes"]
    assert in_card["title"] == "codec-at=nic" and in_switch["title"] == "exchange=switch"
    assert any("INCEPTIONN VC709" in text for text in in_card["assumptions"])
    assert any("ATP" in text for text in in_switch["assumptions"])
