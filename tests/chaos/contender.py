"""One of many processes that all want the next slot: commits single rows under keys of its own, and tells every result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from objcat.errors import CommitConflict
from tests.chaos.operations import open_table

Told = dict[str, Any]


def commit_disjoint(url: str, options: Mapping[str, Any], name: str, writer: int, commits: int, ready: Any, told: Any) -> None:
    """Upsert one row `commits` times under keys that nobody else writes. ready: a barrier of all writers. told: the queue of results."""
    table, _ = open_table(url, options, name)
    ready.wait()
    results: list[Told] = []
    for number in range(commits):
        key = writer * 1_000_000 + number
        result = table.upsert([{"id": key, "value": f"{writer}/{number}"}])
        results.append({"key": key, "slot": result.slot, "txn": result.txn, "attempts": result.attempts, "slots_lost": result.slots_lost})
    told.put(results)


def increment(url: str, options: Mapping[str, Any], name: str, writer: int, commits: int, ready: Any, told: Any) -> None:
    """Read a counter that only this writer changes, add one and write it back, `commits` times. told: the queue of acknowledged results.

    All counters share a file group, so every commit replaces the file that holds those of the others.
    """
    table, _ = open_table(url, options, name)
    ready.wait()
    results: list[Told] = []
    for _ in range(commits):
        (row,) = table.scan(where=f"id = {writer}").to_arrow().to_pylist() or [{"id": writer, "value": "0"}]
        try:
            result = table.upsert([{"id": writer, "value": str(int(row["value"]) + 1)}])
        except CommitConflict:
            continue
        results.append(
            {"key": writer, "slot": result.slot, "txn": result.txn, "attempts": result.attempts, "slots_lost": result.slots_lost}
        )
    told.put(results)
