"""Content of a file: its first lines say whether it is a table, objects or neither."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.content import JobFile


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (b"a,b\n1,2\n", ("a", "b")),
        (b"\xef\xbb\xbfa|b|\n1|2|\n", ("a", "b")),
        ("a,b\r\n1,2\r\n".encode("utf-16"), ("a", "b")),
        (gzip.compress(b"a;b\n1;2\n", mtime=0), ("a", "b")),
        (b"  a   b\n  1   2\n", ("a", "b")),
        (b"a,b\n\n1,\xff\n", ("a", "b")),
    ],
)
def test_every_encoding_and_sign_is_told(data: bytes, header: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    source = JobFile.read(path)
    assert source.table is not None and source.table.header == header and source.objects is None
    (row,), skipped = source.table.rows()
    assert row.text("a") == "1" and skipped == []


def test_rows_of_another_length_are_skipped_with_their_place() -> None:
    table = JobFile.of('a,b\n1,2\n3\n"x\ny",4\n"open,5\n6,7\n', "f").table
    assert table is not None
    rows, skipped = table.rows()
    assert [row.text("a") for row in rows] == ["1", "x\ny", "6"]
    assert [row.place for row in skipped] == ["f, row 2 (line 3)", "f, row 4 (line 6)"]


def test_a_list_of_resources_may_have_commas() -> None:
    table = JobFile.of("JobID,AllocTRES,State\n7,cpu=8,gres/gpu:a100=4,mem=1G,COMPLETED\n8,x,y,z\n", "f").table
    assert table is not None
    (row,), skipped = table.rows()
    assert row.text("AllocTRES") == "cpu=8,gres/gpu:a100=4,mem=1G" and row.text("State") == "COMPLETED" and len(skipped) == 1


def test_objects_are_told_and_damage_is_named() -> None:
    assert JobFile.of('{"a": 1}\n{"a": 2}', "f").objects == [{"a": 1}, {"a": 2}]
    assert JobFile.of("apiVersion: v1\nitems: [1]\n---\nkind: x\n", "f").objects == [
        {"apiVersion": "v1", "items": [1]},
        {"kind": "x"},
    ]
    with pytest.raises(UserError, match="f is damaged JSON, line 2"):
        JobFile.of('{"a":\n,}', "f").objects  # noqa: B018
    with pytest.raises(UserError, match="f is damaged YAML, line 2"):
        JobFile.of("kind: [\n}", "f").objects  # noqa: B018


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for name, text in (("nowhere", "cannot read"), ("x\0y", "cannot read")):
        with pytest.raises(UserError, match=text):
            JobFile.read(tmp_path / name)
    with pytest.raises(UserError, match="f is empty"):
        JobFile.of(" \n", "f")


def _fixed(rows: list[list[str]], width: int, sign: str = "<") -> str:
    blank = "" if sign == "<" else " "
    return "\n".join(blank.join(f"{cell[:width]:{sign}{width}}" for cell in row) for row in rows)


@pytest.mark.parametrize("sign", ["<", ">"])
def test_columns_of_squeue_are_told_by_their_place(sign: str) -> None:
    """``squeue -O`` cuts values off at 20 letters and prints no blank after them (squeue(1), -O); ``%.14b`` cuts them too."""
    rows = [
        ["JOBID", "NAME", "TRES_ALLOC", "TRES_PER_NODE", "REASON"],
        ["1", "a run of 20 letters.", "cpu=32,mem=256G,node=1,gres/gpu=8", "gres/gpu:a100_80gb:4", "None"],
        ["2", "", "N/A", "gres/gpu:a100_80gb_pcie:4", "Priority"],
    ]
    table = JobFile.of(_fixed(rows, 20, sign), "q").table
    assert table is not None
    found, skipped = table.rows()
    assert [[row.text(column) for column in rows[0]] for row in found] == [
        ["1", "a run of 20 letters.", "cpu=32,mem=256G,node+", "gres/gpu:a100_80gb:4", "None"],
        ["2", "", "N/A", "gres/gpu:a100_80gb_p+", "Priority"],
    ]
    assert skipped == []


def test_one_cluster_of_several_is_read() -> None:
    """``squeue -M`` names each cluster before its table."""
    table = JobFile.of("CLUSTER: a\nJOBID|ST\n1|R\n", "q").table
    assert table is not None and table.header == ("JOBID", "ST") and len(table.rows()[0]) == 1
    with pytest.raises(UserError, match=r"q lists 2 clusters \(a, b\)"):
        JobFile.of("CLUSTER: a\nJOBID|ST\n1|R\nCLUSTER: b\nJOBID|ST\n", "q")
