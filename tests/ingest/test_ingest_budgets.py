"""What a commit of an ingest costs in requests, however many transactions of the source it has and however long the ingest runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import objcat
from objcat.ingest.config import parse_config
from objcat.ingest.handover import MARKS_MAX, MARKS_STORED_MAX
from objcat.ingest.model import SourceTransaction
from objcat.ingest.runner import Ingest
from objcat.table.transaction import Transaction
from tests.ingest.test_handover import ListedSource

CATALOG_GETS = 2
"""Whether names changed, asked when a transaction begins and for the requests of others."""


class StreamedSource(ListedSource):
    """Says how far its stream has come while nothing happens, as databases do. Counts how often it is asked about marks."""

    asked = 0

    def transactions(self, position: Mapping[str, Any]) -> Iterator[SourceTransaction]:
        yield from self.stream(position)
        yield SourceTransaction(position={"at": len(self.log)})

    def unsettled(self, marks: Any) -> list[Any]:
        self.asked += 1
        return super().unsettled(marks)


def follow(folder: Path, source: ListedSource, **profile: Any) -> objcat.Lake:
    """Follow a source to its end. Returns the lake."""
    config = parse_config(
        {
            "lake": {"url": str(folder / "lake")},
            "source": {"name": "s", "kind": "listed"},
            "route": [{"tables": "items", "to": "shop.items", "profile": "p"}],
            "profile": {"p": {"index": "bucket(4)", **profile}},
        },
        path="ingest.toml",
        environment={},
    )
    lake = objcat.connect(str(folder / "lake"))
    Ingest(config, lake, lambda *_: source).once()
    return lake


def test_a_commit_has_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = StreamedSource()
    source.write(*((key, 0) for key in range(100)))
    follow(tmp_path, source)
    for number in range(1, 41):
        source.write((number, number), (number + 50, None))
    sent: list[Mapping[str, int]] = []
    leave = Transaction.__exit__

    def left(self: Transaction, *error: Any) -> None:
        leave(self, *error)
        assert self.result is not None
        sent.append(self.result.requests)

    monkeypatch.setattr(Transaction, "__exit__", left)
    lake = follow(tmp_path, source, batch_rows=1)
    assert len(sent) == 40
    # The rows of both steps, the slot, and one look for a newer slot.
    assert all(one == {"get": 1, "put_create": 3} for one in sent[1:]), sent
    catalog = lake._context.catalog.fileio.metrics.snapshot().requests
    assert set(catalog) == {"get"} and catalog["get"] <= CATALOG_GETS * (len(sent) + 10), catalog


def test_the_state_does_not_grow_with_the_transactions_of_a_commit(tmp_path: Path) -> None:
    source = StreamedSource()
    source.write((1, 0))
    follow(tmp_path, source)
    for number in range(2, 1500):
        source.write((number, number))
    source.asked = 0
    before = objcat.connect(str(tmp_path / "lake")).source_position("s", shared_log="s")
    lake = follow(tmp_path, source, batch_rows=10_000, batch_s=60)
    stored = lake.source_position("s", shared_log="s")
    assert before is not None and stored is not None and stored.version - before.version <= 2
    assert stored.state["transactions"] == 1498 and len(stored.state.get("marks", [])) <= MARKS_STORED_MAX
    # Once for so many marks, and once for each commit.
    assert source.asked <= 1500 // MARKS_MAX + stored.version - before.version
