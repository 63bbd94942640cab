"""The auditor finds what it is there for: each kind of wrong is planted in the journals of a sound little run, or in its store."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import objcat
from fileio.store import FileIO
from tests.chaos.auditor import audit
from tests.chaos.journal import Attempt, Journal, read_journals
from tests.chaos.operations import OPERATIONS, local_session, open_table
from tests.chaos.supervisor import SCHEMA

Run = tuple[Any, FileIO, list[Attempt]]


@pytest.fixture
def sound(tmp_path: Path) -> Run:
    """Two handles that took turns, with every operation."""
    objcat.connect(str(tmp_path / "lake")).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    (tmp_path / "run").mkdir()
    sessions = {}
    for number, handle in enumerate("ab"):
        table, store = open_table(str(tmp_path / "lake"), {}, "t")
        sessions[handle] = local_session(table, store, random.Random(number), 1000 * number + 1000)
    for number, (handle, operation) in enumerate(
        (handle, operation)
        for operation in ("upsert", "insert", "delete", "scan", "upsert", "scan", "roll back", "compact", "clean")
        for handle in "ab"
    ):
        journal = Journal(tmp_path / "run" / f"{handle}.journal")
        step = OPERATIONS[operation][1](sessions[handle], f"{handle}.{number}")
        journal.begin(f"{handle}.{number}", handle, operation, step.writes)
        journal.end(f"{handle}.{number}", *step.run())
    table, store = open_table(str(tmp_path / "lake"), {}, "t")
    attempts = sorted(read_journals(tmp_path / "run"), key=lambda attempt: attempt.began_ns)
    assert audit(table, store, attempts).problems == []
    return table, store, attempts


def of(attempts: list[Attempt], operation: str, number: int = 0) -> Attempt:
    return [attempt for attempt in attempts if attempt.operation == operation][number]


def doubled(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    attempts.remove(of(attempts, "insert"))


def acknowledged_elsewhere(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    first = of(attempts, "upsert")
    first.said = {**first.said, "slot": first.said["slot"] + 1}


def acknowledged_and_lost(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    model = of(attempts, "upsert")
    attempts.append(Attempt("c.1", "c", "upsert", {1: "c.1:1"}, 0, model.ended_ns, "acknowledged", model.said))


def failed_and_there(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    first = of(attempts, "insert")
    first.outcome, first.said = "failed", {"error": "WriterFenced"}


def other_rows(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    first = of(attempts, "insert")
    first.writes = {**first.writes, 77: f"{first.name}:77"}


def one_attempt_twice(table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    first = of(attempts, "upsert", -1)
    table.upsert([{"id": key, "value": value} for key, value in first.writes.items()], metadata={"attempt": first.name})


def a_stale_read(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    of(attempts, "scan", -1).said = of(attempts, "scan", 0).said


def a_torn_read(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    scan = of(attempts, "scan", -1)
    last, first = of(attempts, "upsert", -1), of(attempts, "upsert", 0)
    key = next(iter(last.writes))
    scan.said = {**scan.said, "rows": {**scan.said["rows"], str(key): f"{first.name}:{key}"}}


def a_key_twice(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    scan = of(attempts, "scan")
    scan.said = {**scan.said, "count": scan.said["count"] + 1}


def a_slot_that_came_too_early(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    of(attempts, "upsert").began_ns = of(attempts, "upsert", -1).ended_ns or 0


def something_broke(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    attempts.append(Attempt("c.1", "c", "scan", {}, 0, 1, "broke", {"error": "KeyError"}))


def a_false_resolution(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    first = of(attempts, "upsert")
    told = {"txn": first.said["txn"], "committed": False, "slot": first.said["slot"]}
    attempts.append(Attempt("c.1", "c", "roll back", {}, 0, 1, "settled", {"resolved": [told]}))


def a_service_that_did_nothing(_table: Any, _store: FileIO, attempts: list[Attempt]) -> None:
    compaction = of(attempts, "compact")
    assert compaction.said, "there were log rows to merge"
    compaction.said = {**compaction.said, "slot": 1}


def a_file_that_is_gone(table: Any, store: FileIO, attempts: list[Attempt]) -> None:
    for key in list(store.list_keys("data/")):
        store.delete([key])


def a_gap(_table: Any, store: FileIO, attempts: list[Attempt]) -> None:
    store.put("log/00000000000000000099.json", b"{}")


WRONG: dict[str, tuple[Callable[[Any, FileIO, list[Attempt]], None], str]] = {
    "a commit that nobody announced": (doubled, "which no journal announced"),
    "acknowledged at another slot": (acknowledged_elsewhere, "P3"),
    "acknowledged and not there": (acknowledged_and_lost, "P3"),
    "failed and there": (failed_and_there, "P4"),
    "a row that is missing": (other_rows, "P9"),
    "one attempt in two slots": (one_attempt_twice, "P2"),
    "a read older than what was acknowledged": (a_stale_read, "P10"),
    "a read of no state": (a_torn_read, "P10"),
    "a read of mixed states, by the checker": (a_torn_read, "the checker says G-single"),
    "a key twice": (a_key_twice, "P9"),
    "a slot before what was acknowledged earlier": (a_slot_that_came_too_early, "P10"),
    "an error outside of the contract": (something_broke, "P0"),
    "a resolution that the log contradicts": (a_false_resolution, "P3"),
    "a service that is not where it was said to be": (a_service_that_did_nothing, "P3"),
    "files that are gone": (a_file_that_is_gone, "P7"),
    "an object of the log too many": (a_gap, "P1"),
}


@pytest.mark.parametrize(("plant", "problem"), WRONG.values(), ids=WRONG)
def test_the_auditor_finds(sound: Run, plant: Callable[[Any, FileIO, list[Attempt]], None], problem: str) -> None:
    plant(*sound)
    problems = audit(*sound).problems
    assert any(problem in found for found in problems), problems


def test_what_a_dead_writer_left_is_rolled_back_before_the_audit(sound: Run) -> None:
    table, store, attempts = sound
    txn = "20261121T093000123Z-0123456789abcdef"
    store.put(f"data/{txn}/orphan.log.parquet", b"rows")
    attempts.append(Attempt("c.1", "c", "upsert", {1: "c.1:1"}, 0))
    verdict = audit(table, store, attempts)
    assert verdict.problems == []
    assert verdict.counts["rollbacks"] == 1
    assert list(store.list_keys(f"data/{txn}/")) == []
