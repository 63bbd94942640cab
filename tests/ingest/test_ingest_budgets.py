"""What a commit of an ingest costs in requests, however many transactions of the source it has and however long the ingest runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.env import default_env
from objcat.ingest.change_batch import ChangeBatch
from objcat.ingest.config import parse_config
from objcat.ingest.handover import MARKS_MAX, MARKS_STORED_MAX
from objcat.ingest.model import ChangeKind, RowChange, SnapshotChunk, SourceColumn, SourceTable, SourceTransaction
from objcat.ingest.postgres.decoder import DecodedTransaction
from objcat.ingest.postgres.pgoutput import BeginMessage
from objcat.ingest.runner import Ingest
from objcat.ingest.spooled_changes import SpooledChanges
from objcat.ingest.stream_reader import StreamReader
from objcat.table.transaction import Transaction
from tests.ingest.test_handover import ITEMS, ListedSource

CATALOG_GETS = 2
"""Whether names changed, asked when a transaction begins and for the requests of others."""
DOCUMENT_BYTES = 200_000
WIDE = SourceTable(name="items", columns=(*ITEMS.columns, SourceColumn(name="v", type=pa.string())), key=("id",))


class StreamedSource(ListedSource):
    """Says how far its stream has come while nothing happens, as databases do. Counts how often it is asked about marks."""

    asked = 0

    def transactions(self, position: Mapping[str, Any]) -> Iterator[SourceTransaction]:
        yield from self.stream(position)
        yield SourceTransaction(position={"at": len(self.log)})

    def unsettled(self, marks: Any) -> list[Any]:
        self.asked += 1
        return super().unsettled(marks)


def follow(folder: Path, source: ListedSource, *, run: Mapping[str, Any] | None = None, **profile: Any) -> objcat.Lake:
    """Follow a source to its end. Returns the lake."""
    config = parse_config(
        {
            "lake": {"url": str(folder / "lake")},
            "source": {"name": "s", "kind": "listed"},
            "route": [{"tables": "items", "to": "shop.items", "profile": "p"}],
            "profile": {"p": {"index": "bucket(4)", **profile}},
            "run": run or {},
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


class WideSource(StreamedSource):
    """Its rows have documents."""

    def describe_tables(self) -> Sequence[SourceTable]:
        return [WIDE]

    def read_chunk(self, *given: Any, **more: Any) -> SnapshotChunk:
        chunk = super().read_chunk(*given, **more)
        return dataclasses.replace(chunk, rows=chunk.rows.append_column("v", pa.nulls(chunk.rows.num_rows, pa.string())))

    def transaction(self, number: int) -> SourceTransaction:
        made = super().transaction(number)
        document = "d" * DOCUMENT_BYTES
        changes = [
            msgspec.structs.replace(one, table=WIDE, row={**(one.row or {}), "v": document})
            for one in made.changes
            if isinstance(one, RowChange)
        ]
        return dataclasses.replace(made, changes=changes)


@pytest.mark.parametrize("in_one", [True, False])
def test_wide_rows_do_not_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one: bool) -> None:
    source = WideSource()
    follow(tmp_path, source)
    writes: list[tuple[int, int | None]] = [(key, key) for key in range(60)]
    if in_one:
        source.write(*writes)
    else:
        for one in writes:
            source.write(one)
    drained: list[int] = []
    drain = ChangeBatch.drain

    def counted(batch: ChangeBatch) -> Any:
        drained.append(batch.count)
        return drain(batch)

    monkeypatch.setattr(ChangeBatch, "drain", counted)
    lake = follow(tmp_path, source, run={"transaction_bytes": 10 * DOCUMENT_BYTES, "queue_bytes": 1 << 30}, batch_s=60)
    assert sum(drained) == 60 and max(drained) <= 10
    rows = lake.table("shop.items").scan().to_arrow().to_pylist()
    assert {row["id"]: (row["n"], len(row["v"])) for row in rows} == {key: (key, DOCUMENT_BYTES) for key in range(60)}


def test_transactions_on_disk_count_in_the_queue() -> None:
    """Otherwise a reader that is ahead fills the local disk with them."""
    read: list[int] = []

    class Large(StreamedSource):
        def transactions(self, position: Mapping[str, Any]) -> Iterator[SourceTransaction]:
            for number in range(position["at"], 20):
                changes = SpooledChanges(bytes_max=100)
                for key in range(50):
                    changes.add(RowChange(ITEMS, ChangeKind.INSERT, (key,), {"id": key, "n": number}), 50)
                read.append(number)
                yield DecodedTransaction(BeginMessage(0, 0, number), number, changes).transaction({"at": number + 1})

    reader = StreamReader(Large(), {"at": 0}, bytes_max=2000, env=default_env())
    try:
        for number in range(5):
            taken = reader.take(10)
            assert taken is not None and taken.position == {"at": number + 1} and len(list(taken.changes)) == 50
            # One waits, and one has been read.
            assert len(read) <= number + 3
        default_env().sleep(0.2)
        assert len(read) <= 7
    finally:
        reader.stop()
        assert reader.join(10)
