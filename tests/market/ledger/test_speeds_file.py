"""Throughputs from a file."""

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.market.ledger.speeds_file import read_speeds

HEAD = "job,model,lender,achieved_per_s,predicted_per_s"


def test_rows_become_records(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text(f"{HEAD}\na,net,x,9,10\n")
    (one,) = read_speeds(file, 0.2)
    assert (one.job, one.model, one.lender, one.achieved_per_s, one.predicted_per_s, one.sigma) == ("a", "net", "x", 9, 10, 0.2)
    file.write_text(f"{HEAD},sigma\na,net,x,9,10,0.05\nb,net,x,9,10,\n")
    assert [each.sigma for each in read_speeds(file)] == [0.05, 0.13]


@pytest.mark.parametrize(
    "row",
    [
        "a,net,x,0,10",
        "a,net,x,1e300,1",
        "a,net,x,9,10\na,net,x,9,10",
        'a,net,"x\ny",9,10',
        "a,net,x,,10",
        "a,net,x,nan,10",
        "a,net,,9,10",
    ],
)
def test_damaged_rows(tmp_path: Path, row: str) -> None:
    file = tmp_path / "s.csv"
    file.write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(UserError, match=r"s\.csv"):
        read_speeds(file)


def test_a_sigma_of_nothing_is_no_sigma(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text(f"{HEAD},sigma\na,net,x,9,10,0\n")
    with pytest.raises(UserError, match=r"row 1 \(line 2\), column sigma: '0' is not a number above 0"):
        read_speeds(file)
