"""The ledger keeps every unit, refuses changes, and finds those that went around it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.ledger.ledger import LARGEST, REASONS, UNITS, Difference, Head, Ledger, LedgerEntry, LedgerReader, Origin

ORIGIN = Origin("a" * 64, "credits", 7, "0.1.0")
WRITER = """
import sys, time
from paceline.market.ledger.ledger import LedgerEntry, Ledger, Origin
path, name, times, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def entries(of):
    for i in range(10):
        if of == stop and i == 6:
            print("inside", flush=True)
            time.sleep(600)
        yield LedgerEntry(i, i + 1, f"{name} {of} {i}", name, "lender", amount=1)
with Ledger(path, Origin("a" * 64, "credits", 7, "0.1.0")) as ledger:
    for of in range(times):
        ledger.append(entries(of))
        print(of, flush=True)
"""
SITES = st.sampled_from(["A", "B", "C"])


def entry(number: int = 0, **changes: object) -> LedgerEntry:
    base = LedgerEntry(number * 10, number * 10 + 25, f"job {number}", "A", "B", "V100", 100, 40, 5, 1, "ran", 3)
    return replace(base, **changes)  # type: ignore[arg-type]


@st.composite
def entries(draw: st.DrawFn) -> LedgerEntry:
    start, owner, lender = draw(st.integers(0, 500)), draw(SITES), draw(SITES)
    amount = 0 if owner == lender else draw(st.integers(-LARGEST, LARGEST))
    return LedgerEntry(
        start,
        start + draw(st.integers(0, 300)),
        draw(st.text("añ'\"; 8", max_size=5)),
        owner,
        lender,
        "V100",
        draw(st.integers(0, 10**12)),
        draw(st.integers(0, LARGEST)),
        reason=draw(st.sampled_from(REASONS)),
        amount=amount,
        unit=draw(st.sampled_from(UNITS)),
    )


def filled(path: Path, count: int = 5) -> Head:
    with Ledger(path, ORIGIN) as ledger:
        return ledger.append(entry(number) for number in range(count))


def tamper(path: Path, *statements: str, unguarded: bool = True) -> None:
    """SQL as someone runs it who goes around the module; without the triggers, which stand again afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall() if unguarded else []
        for statement in (*(f"DROP TRIGGER {name}" for name, _ in triggers), *statements, *(sql for _, sql in triggers)):
            db.execute(statement)


@given(st.lists(st.lists(entries(), max_size=6), max_size=4))
def test_what_is_appended_stands_and_no_unit_is_lost(batches: list[list[LedgerEntry]]) -> None:
    with pytest.MonkeyPatch.context() as patch, closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        patch.setattr(sqlite3, "connect", lambda *_, **__: db)
        ledger = Ledger("memory", ORIGIN)
        heads = [ledger.append(batch) for batch in batches]
        every = [one for batch in batches for one in batch]
        assert [posted.entry for posted in ledger.entries()] == every
        assert ledger.verify() == len(ledger) == len(every) and all(ledger.verify(head) for head in heads if head.number)
        assert ledger.reproduces(every) is None
        for unit in UNITS:
            balances = ledger.balances(unit)
            assert sum(balances.values()) == 0
            for site, balance in balances.items():
                got = sum(one.amount for one in every if one.lender == site and one.unit == unit)
                assert balance == got - sum(one.amount for one in every if one.owner == site and one.unit == unit)


def test_the_digest_is_that_of_the_documented_text(tmp_path: Path) -> None:
    filled(tmp_path / "ledger", 2)
    previous = ""
    with LedgerReader(tmp_path / "ledger") as ledger:
        for number, posted in enumerate(ledger.entries()):
            start = number * 10
            values = [start, start + 25, f"job {number}", "A", "B", "V100", 100, 40, 5, 1, "ran", 3, "micro-credits"]
            text = json.dumps([number + 1, previous, ["a" * 64, "credits", 7, "0.1.0"], *values], separators=(",", ":"))
            assert posted.previous == previous and posted.origin == ORIGIN and posted.number == number + 1
            assert posted.digest == hashlib.sha256(text.encode()).hexdigest()
            previous = posted.digest
        assert ledger.head == Head(2, previous)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET amount = 4",
        "UPDATE OR REPLACE entries SET number = 1 WHERE number = 2",
        "DELETE FROM entries WHERE number = 5",
        "INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE number = 3",
        "REPLACE INTO entries SELECT 7, origin, start_us, end_us, job, owner, lender, device, device_us, normalised_us,"
        " wan_bytes, restarts, reason, amount, unit, previous, digest FROM entries WHERE number = 3",
        "UPDATE origins SET seed = 8",
        "DELETE FROM origins",
        "INSERT OR REPLACE INTO origins SELECT number, trace, rule, 8, version FROM origins",
    ],
)
def test_sql_cannot_change_it(tmp_path: Path, statement: str) -> None:
    head = filled(tmp_path / "ledger")
    with pytest.raises(sqlite3.IntegrityError, match="the ledger only grows"):
        tamper(tmp_path / "ledger", statement, unguarded=False)
    with LedgerReader(tmp_path / "ledger") as ledger:
        assert ledger.verify(head) == 5


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE entries SET amount = 4 WHERE number = 3", "entry 3 was changed"),
        ("UPDATE entries SET owner = 'C' WHERE number = 5", "entry 5 was changed"),
        ("UPDATE entries SET device_us = x'00' WHERE number = 2", "entry 2 was changed"),
        ("UPDATE entries SET origin = 9 WHERE number = 2", "entry 2 was changed"),
        ("UPDATE origins SET seed = 8", "entry 1 was changed"),
        ("DELETE FROM entries WHERE number = 2", "entry 2 was changed"),
        ("DELETE FROM entries WHERE number = 5", "entry 5 is not the one that was noted"),
        ("DELETE FROM entries", "entry 5 is not the one that was noted"),
        ("DROP TRIGGER entries_update", "it lacks trigger entries_update"),
    ],
)
def test_a_change_around_sql_is_found(tmp_path: Path, statement: str, found: str) -> None:
    head = filled(tmp_path / "ledger")
    tamper(tmp_path / "ledger", statement, unguarded="DROP" not in statement)
    with LedgerReader(tmp_path / "ledger") as ledger, pytest.raises(UserError, match=found):
        ledger.verify(head)


def test_changed_bytes_are_found(tmp_path: Path) -> None:
    head = filled(tmp_path / "ledger")
    content = (tmp_path / "ledger").read_bytes()
    assert content.count(b"job 3AB") == 1  # job, owner and lender stand beside one another in a page
    (tmp_path / "ledger").write_bytes(content.replace(b"job 3AB", b"job 3CB"))
    with LedgerReader(tmp_path / "ledger") as ledger, pytest.raises(UserError, match="entry 4 was changed"):
        ledger.verify(head)


def test_a_chain_made_anew_is_found_by_the_noted_head(tmp_path: Path) -> None:
    head = filled(tmp_path / "ledger")
    with Ledger(tmp_path / "forged", ORIGIN) as forged:
        forged.append(entry(number, amount=number) for number in range(5))
        assert forged.verify() == 5
        with pytest.raises(UserError, match="entry 5 is not the one that was noted"):
            forged.verify(head)


def test_an_entry_forged_with_its_digest_breaks_the_link_of_the_next(tmp_path: Path) -> None:
    filled(tmp_path / "ledger")
    with Ledger(tmp_path / "forged", ORIGIN) as forged:
        forged.append(entry(number, amount=4 if number == 2 else 3) for number in range(5))
        digest = list(forged.entries())[2].digest
    tamper(tmp_path / "ledger", f"UPDATE entries SET amount = 4, digest = '{digest}' WHERE number = 3")
    with LedgerReader(tmp_path / "ledger") as ledger, pytest.raises(UserError, match="entry 4 was changed"):
        ledger.verify()


def test_a_simulation_that_makes_something_else_is_named(tmp_path: Path) -> None:
    filled(tmp_path / "ledger", 3)
    made = [entry(number) for number in range(3)]
    with LedgerReader(tmp_path / "ledger") as ledger:
        assert ledger.reproduces(made) is None
        assert ledger.reproduces([made[0], entry(1, amount=4), entry(2, owner="C")]) == Difference(2, "amount", 3, 4)
        assert ledger.reproduces(made[:2]) == Difference(3, "entry", made[2], None)
        more = ledger.reproduces([*made, entry(3)])
        assert more == Difference(4, "entry", None, entry(3))
        assert str(ledger.reproduces([entry(0, lender="C")])) == "entry 1: lender is 'B', the simulation makes 'C'"


def test_another_trace_rule_or_seed_is_refused_and_another_version_is_noted(tmp_path: Path) -> None:
    filled(tmp_path / "ledger", 1)
    for name, value in (("trace", "b" * 64), ("rule", "prices"), ("seed", 8)):
        with pytest.raises(UserError, match=rf"ledger has {name} .+, {value} was given; give the path of a new file"):
            Ledger(tmp_path / "ledger", replace(ORIGIN, **{name: value}))  # type: ignore[arg-type]
    newer = replace(ORIGIN, version="0.2.0")
    with Ledger(tmp_path / "ledger", newer) as ledger:
        ledger.append([entry(1)])
        assert ledger.origins == (ORIGIN, newer)
        assert [posted.origin for posted in ledger.entries()] == [ORIGIN, newer] and ledger.verify() == 2


def test_the_origin_of_files(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_bytes(b"a")
    (tmp_path / "trace.csv").write_bytes(b"bc")
    origin = Origin.of_files([tmp_path / "sites.toml", tmp_path / "trace.csv"], "credits", 1, "0.1.0")
    assert origin.trace == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    with pytest.raises(UserError, match=r"none.csv cannot be read: No such file"):
        Origin.of_files([tmp_path / "none.csv"], "credits", 1, "0.1.0")


def test_all_or_none(tmp_path: Path) -> None:
    def broken() -> Iterator[LedgerEntry]:
        yield entry(1)
        raise FileNotFoundError("the caller's")

    with Ledger(tmp_path / "ledger", ORIGIN) as ledger:
        head = ledger.append([entry(0)])
        with pytest.raises(FileNotFoundError, match="the caller's"):
            ledger.append(broken())
        assert ledger.head == head and ledger.verify() == 1
        assert ledger.append([entry(1)]).number == 2


def start(path: Path, name: str, times: int, stop: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(times), str(stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_loses_nothing_committed(tmp_path: Path) -> None:
    with start(tmp_path / "ledger", "killed", 5, stop=3) as writer:
        assert writer.stdout
        assert [writer.stdout.readline().strip() for _ in range(4)] == ["0", "1", "2", "inside"]
        with LedgerReader(tmp_path / "ledger") as reader:
            assert reader.verify() == 30  # readers do not wait for it
        os.kill(writer.pid, signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    with Ledger(tmp_path / "ledger", ORIGIN) as ledger:
        assert ledger.verify() == 30
        assert ledger.append([entry()]).number == 31 and ledger.verify() == 31


@pytest.mark.long
def test_several_processes_make_and_fill_one_ledger(tmp_path: Path) -> None:
    writers = [start(tmp_path / "ledger", name, 8) for name in ("A", "B", "C")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for writer in writers:
        assert writer.stdout
        writer.stdout.close()
    with LedgerReader(tmp_path / "ledger") as ledger:
        assert ledger.verify() == 240 and ledger.balances() == {"A": -80, "B": -80, "C": -80, "lender": 240}
        jobs = [posted.entry.job.split() for posted in ledger.entries()]
        assert all(len({(name, of) for name, of, _ in jobs[i : i + 10]}) == 1 for i in range(0, 240, 10))
        assert len(ledger.origins) == 1


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    filled(tmp_path / "ledger")
    with LedgerReader(tmp_path / "ledger") as ledger, pytest.raises(sqlite3.OperationalError, match="readonly"):
        ledger._db.execute("INSERT INTO origins VALUES (2, 'b', 'c', 1, 'd')")


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: overwrite(path, b"a,b\n1,2\n" * 200), "file is not a database"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE other (a)"), "is not a ledger"),
        (lambda path: (filled(path), tamper(path, "PRAGMA user_version = 9", unguarded=False)), "has schema 9"),
        (lambda path: path.mkdir(), "unable to open|there is no ledger"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "file"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    for opened in (lambda: LedgerReader(path), lambda: Ledger(path, ORIGIN)):
        with pytest.raises(UserError, match=message) as caught:
            opened()
        assert str(path) in caught.value.message and caught.value.fix
    assert not path.is_file() or path.read_bytes() == before


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    filled(tmp_path / "ledger", 500)
    content = (tmp_path / "ledger").read_bytes()
    pages = [bytes(4096) if 3 < page < 9 else content[page * 4096 :][:4096] for page in range(len(content) // 4096)]
    overwrite(tmp_path / "ledger", b"".join(pages))
    with LedgerReader(tmp_path / "ledger") as ledger:
        for read in (ledger.verify, lambda: list(ledger.entries()), ledger.balances):
            with pytest.raises(UserError, match=rf"{tmp_path}/ledger (is damaged|cannot be used)"):
                read()
    overwrite(tmp_path / "ledger", content[: len(content) // 2])
    with (
        pytest.raises(UserError, match=rf"{tmp_path}/ledger (is damaged|cannot be used)"),
        LedgerReader(tmp_path / "ledger") as cut,
    ):
        cut.verify()


def test_places_without_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no ledger .*none; settle a federation first"):
        LedgerReader(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    overwrite(tmp_path / "empty", b"")
    with pytest.raises(UserError, match="is not a ledger"):
        LedgerReader(tmp_path / "empty")
    with pytest.raises(UserError, match=r"empty/ledger cannot be made: (Not a directory|File exists)"):
        Ledger(tmp_path / "empty" / "ledger", ORIGIN)
    assert filled(tmp_path / "new" / "folder" / "ledger").number == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start_us": -1}, "start_us -1 of an entry; give a whole number from 0"),
        ({"device_us": 1.5}, "device_us 1.5"),
        ({"device_us": np.int64(3)}, "device_us"),
        ({"amount": True}, "amount True"),
        ({"amount": LARGEST + 1}, "amount 9223372036854775808"),
        ({"end_us": 0, "start_us": 5}, "a period from 5 to 0 us"),
        ({"reason": "rent"}, "unknown reason of an entry 'rent'.*reclaimed"),
        ({"unit": "dollars"}, "unknown unit of an amount 'dollars'.*micro-currency"),
        ({"owner": ""}, "owner '' of an entry"),
        ({"job": "a\nb"}, "job 'a.*printable"),
        ({"job": "\ud800"}, "printable"),
        ({"lender": "A"}, "site 'A' pays itself 3"),
    ],
)
def test_mistakes_in_an_entry(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        entry(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace": "A" * 64}, "is not the SHA-256"),
        ({"rule": ""}, "rule ''"),
        ({"seed": 1.0}, "seed 1.0"),
        ({"version": 1}, "version 1"),
    ],
)
def test_mistakes_in_an_origin(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(ORIGIN, **changes)  # type: ignore[arg-type]


def test_mistakes_in_questions(tmp_path: Path) -> None:
    filled(tmp_path / "ledger")
    with LedgerReader(tmp_path / "ledger") as ledger, pytest.raises(UserError, match="unknown unit of an amount 'credits'"):
        ledger.balances("credits")  # type: ignore[arg-type]
