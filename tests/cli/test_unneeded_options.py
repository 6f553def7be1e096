"""Options of training scripts that no prediction needs."""

from __future__ import annotations

import pytest

from paceline.cli.arguments.unneeded_options import amount, ignored_in_files, together, unneeded
from paceline.cli.command_line import build_parser


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--learning_rate", "the learning"),
        ("--optimizer.lr", "the learning"),
        ("--wandb-project=x", "files, logs"),
        ("--num-layers", "WORKLOAD names the network"),
        ("--dataloader_num_workers", "--loader"),
        ("--overlap-grad-reduce", "--framework"),
        ("--sample_packing", "padding=packed"),
    ],
)
def test_advice(option: str, words: str) -> None:
    assert words in unneeded(option) and together([option, "--nothing"], unneeded(option)) == [option.partition("=")[0]]


@pytest.mark.parametrize("verb", ["predict", "plan", "ask", "whatif"])
def test_no_own_option_is_among_them(verb: str) -> None:
    parser = build_parser(verb).commands()[verb]
    assert not [option for option in parser.options() if unneeded(option) and option in ("--precision", "--tensor")]
    assert unneeded("--precison") == unneeded("--devise") == ""


def test_what_files_may_have_too() -> None:
    assert "no prediction needs it" in ignored_in_files("--remove_unused_columns") and not ignored_in_files("--precision")


def test_amounts() -> None:
    assert amount("--num_train_epochs") and amount("--train-iters") and not amount("--tp")
