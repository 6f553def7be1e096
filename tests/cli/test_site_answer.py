"""``paceline whatif --sites``: a table of one place, a map of many, and options that do not go together."""

from __future__ import annotations

import pytest

from command import answer, run

ON = "whatif gpt2 --cluster '1 A100' --global-batch 8 --seq-len 128"


def test_one_place_is_a_table_and_many_are_a_map(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{ON} --sites 2 --bandwidth 1Gb/s --mtbf 500h")
    assert code == 0 and "sparseloco" in out and "goodput" in out and "Further tokens" in out
    data = answer(capsys, f"{ON} --sites 2,8 --bandwidth 1..10Gb/s --sync-every 20")
    assert data["sync_every"] == 20
    assert [set(by_law) for by_law in data["further_tokens"].values()] == [{"diloco"}, {"diloco"}]


def test_a_stated_exchange_is_that_of_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    """A site that is the hub of the others sends every sum to all of them over its own line. Two such sites halve that."""
    where = f"{ON} --sites 8 --bandwidth 1Gb/s"
    usual, hub, hubs = (
        {m["method"]: m for m in answer(capsys, f"{where} {words}")["methods"]}
        for words in ("", "--exchange parameter_server", "--exchange parameter_server --servers 2")
    )
    assert usual.keys() == hub.keys() == hubs.keys()
    for name, method in hub.items():
        assert method["prediction"]["strategy"]["exchange"] == "parameter_server", name
    for name in ("dense", "int8", "diloco"):
        assert 1.5 < (hub[name]["step_time_s"] / hubs[name]["step_time_s"]) < 2.1
        assert hub[name]["step_time_s"] > 2.5 * usual[name]["step_time_s"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bandwidth 1Gb/s", "--bandwidth without --sites"),
        ("", "no --change is given"),
        ("--sites 2 --change nodes+1", "two questions"),
        ("--sites 2 --sync-every 1", "--sync-every 1"),
        ("--sites 2..8 --mtbf 500h", "--mtbf with a map"),
        ("--sites 2 --bandwidth 1Gb/s --picture x.png", "a picture of one place"),
        ("--sites 2 --compression int8", "the map tries them"),
        ("--sites 2 --network 1Gb/s", "--network with --sites"),
        ("--sites 2 --scaling weak", "keeps its batch"),
        ("--sites 2 --worker-times 2", "--worker-times with --sites"),
        ("--sites 2 --exchange rinf", "ring"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(capsys, f"{ON} {words}")
    assert code == 2 and said in error
