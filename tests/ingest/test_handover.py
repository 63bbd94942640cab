"""The handover from chunks to the stream, against a source that is a list: every order of chunks, changes and restarts ends equal."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from objcat.ingest.handover import PIECE_BYTES, Handover, IngestState
from objcat.ingest.model import (
    ChangeKind,
    KeyOrder,
    KeyValues,
    RowChange,
    SchemaChanged,
    SnapshotChunk,
    SourceColumn,
    SourceReport,
    SourceTable,
    SourceTransaction,
)
from objcat.ingest.postgres.visibility import VisibleTransactions
from tests.effort import seeds

ITEMS = SourceTable(name="items", columns=(SourceColumn(name="id", type=pa.int64()), SourceColumn(name="n", type=pa.int64())), key=("id",))


class ListedSource:
    """A source in memory. Its log may be ahead of what its snapshots see, as a database's is for a moment."""

    has_snapshots = True

    def __init__(self) -> None:
        self.log: list[list[tuple[int, int | None]]] = []
        self.hidden: set[int] = set()

    def write(self, *changes: tuple[int, int | None], hidden: bool = False) -> None:
        """A transaction: rows by key, None for a delete. hidden: snapshots do not see it yet.

        Its rows are locked as long as that: a transaction that needs one of them does not happen.
        """
        locked = {key for number in self.hidden for key, _ in self.log[number]}
        if locked & {key for key, _ in changes}:
            return
        if hidden:
            self.hidden.add(len(self.log))
        self.log.append(list(changes))

    def rows(self, seen: set[int] | None = None) -> dict[int, int]:
        """What the transactions come to, in order; those of a snapshot alone, or all."""
        found: dict[int, int] = {}
        for number, changes in enumerate(self.log):
            if seen is None or number in seen:
                for key, value in changes:
                    if value is None:
                        found.pop(key, None)
                    else:
                        found[key] = value
        return found

    def stream(self, position: Mapping[str, Any]) -> Iterator[SourceTransaction]:
        for number in range(position["at"], len(self.log)):
            yield self.transaction(number)

    def transaction(self, number: int) -> SourceTransaction:
        changes = [
            RowChange(
                ITEMS, ChangeKind.DELETE if value is None else ChangeKind.UPDATE, (key,), None if value is None else {"id": key, "n": value}
            )
            for key, value in self.log[number]
        ]
        return SourceTransaction(position={"at": number + 1}, mark=number, changes=changes, count=len(changes))

    def read_chunk(self, table: SourceTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk:
        seen = set(range(len(self.log))) - self.hidden
        rows = sorted((key, value) for key, value in self.rows(seen).items() if after is None or key > after[0])[:rows_max]
        last = (rows[-1][0],) if len(rows) == rows_max else None
        made = pa.table({"id": [key for key, _ in rows], "n": [value for _, value in rows]})
        return SnapshotChunk(table=table, rows=made, after=after, last=last, order=order, covers=sorted(seen), until={"at": len(self.log)})

    def place_keys(self, table: SourceTable, keys: Sequence[KeyValues], bounds: Sequence[KeyValues], *, order: KeyOrder) -> list[int]:
        return [bisect.bisect_left(list(bounds), key) for key in keys]

    def is_covered(self, covers: Any, mark: Any) -> bool:
        return mark in covers

    def unsettled(self, marks: Sequence[Any]) -> list[Any]:
        return [mark for mark in marks if mark in self.hidden]

    def is_reached(self, position: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
        return bool(position["at"] >= target["at"])

    # The rest of the Protocol is not used by a handover.
    def check_settings(self) -> None: ...
    def describe_tables(self) -> Sequence[SourceTable]:
        return [ITEMS]

    def compare_schemas(self, version: Any, table: SourceTable) -> SchemaChanged | None:
        return None

    def begin(self, tables: Sequence[str]) -> Mapping[str, Any]:
        return {"at": len(self.log)}

    def follow_tables(self, tables: Sequence[str]) -> Sequence[str]:
        return []

    def transactions(self, position: Mapping[str, Any]) -> Iterator[SourceTransaction]:
        return self.stream(position)

    def fetch_rows(self, table: SourceTable, keys: Sequence[KeyValues], columns: Sequence[str]) -> Mapping[KeyValues, Mapping[str, Any]]:
        return {}

    def head(self) -> Mapping[str, Any]:
        return {"at": len(self.log)}

    def has_to_store(self, stored: Mapping[str, Any], position: Mapping[str, Any]) -> bool:
        return dict(stored) != dict(position)

    def confirm(self, position: Mapping[str, Any]) -> None: ...
    def beat(self) -> None: ...
    def report(self) -> SourceReport:
        return SourceReport(head=self.head())

    def position_text(self, position: Mapping[str, Any]) -> str:
        return str(position["at"])

    def close(self) -> None: ...


class Replica:
    """A lake that is a dict, and the state that was committed with it."""

    def __init__(self, source: ListedSource) -> None:
        self.source = source
        self.rows: dict[int, int] = {}
        self.state = IngestState(position=dict(source.begin(["items"])))
        self.restart()
        self.handover.begin_snapshot("items", replaces=False)

    def restart(self) -> None:
        """Forget everything but what was committed."""
        self.state = msgspec.convert(msgspec.json.decode(msgspec.json.encode(self.state)), IngestState)
        self.handover = Handover(self.source, self.state)

    def read_chunk(self, rows_max: int) -> bool:
        """Read and commit a chunk. Returns whether it was usable."""
        unread = self.state.tables["items"].unread
        assert unread is not None
        after = None if unread.after is None else tuple(unread.after)
        chunk = self.source.read_chunk(ITEMS, after, rows_max=rows_max, order=unread.order)
        if not self.handover.is_usable(chunk):
            return False
        if unread.replaces:
            for key in [key for key in self.rows if (after is None or key > after[0]) and (chunk.last is None or key <= chunk.last[0])]:
                del self.rows[key]
        self.handover.note_chunk(chunk)
        self.rows |= {row["id"]: row["n"] for row in chunk.rows.to_pylist()}
        return True

    def apply_one(self) -> bool:
        """Apply the next transaction of the stream. Returns whether there was one."""
        transaction = next(iter(self.source.stream(self.state.position)), None)
        if transaction is None:
            # A stream without news says how far it is.
            self.handover.note_transaction(self.state.position, None)
            return False
        for change, _, puts in self.handover.wanted(iter(transaction.changes), transaction.mark):
            assert isinstance(change, RowChange)
            if puts and change.row is None:
                self.rows.pop(change.key[0], None)
            elif puts and change.row is not None:
                self.rows[change.key[0]] = change.row["n"]
        self.handover.note_transaction(transaction.position, transaction.mark)
        return True


@pytest.mark.parametrize("seed", seeds(60, with_all=2000))
def test_any_order_ends_equal(seed: int) -> None:
    drawn = random.Random(seed)
    source = ListedSource()
    for key in range(drawn.randrange(12)):
        source.write((key * 2, 0))
    replica = Replica(source)
    for step in range(drawn.randrange(5, 120)):
        match drawn.choice("wwwwhvccaaaars"):
            case "w":
                source.write(*((drawn.randrange(24), drawn.choice([None, step, step])) for _ in range(drawn.randrange(1, 4))))
            case "h":
                source.write((drawn.randrange(24), step), hidden=True)
            case "v" if source.hidden:
                source.hidden.remove(drawn.choice(sorted(source.hidden)))
            case "c" if replica.state.tables["items"].unread is not None:
                replica.read_chunk(drawn.randrange(1, 6))
            case "a":
                replica.apply_one()
            case "r":
                replica.restart()
            case "s" if drawn.random() < 0.2:
                replica.handover.begin_snapshot("items", replaces=True)
        if replica.state.is_consistent:
            # A consistent replica is exactly what the source was at its position.
            assert replica.rows == rows_at(source, replica.state.position["at"]), f"seed {seed}, step {step}"
    source.hidden.clear()
    while not (replica.state.is_consistent and not replica.apply_one()):
        if replica.state.tables["items"].unread is not None:
            assert replica.read_chunk(3)
        replica.apply_one()
    assert replica.rows == source.rows(), f"seed {seed}"


def rows_at(source: ListedSource, at: int) -> dict[int, int]:
    """What the source was at a position."""
    return source.rows(set(range(at)))


def test_a_chunk_that_has_not_seen_what_was_applied_is_read_again() -> None:
    source = ListedSource()
    source.write((1, 0), (2, 0))
    replica = Replica(source)
    source.write((1, 5), hidden=True)
    assert replica.apply_one() and replica.rows == {}
    assert not replica.read_chunk(1)
    source.hidden.clear()
    assert replica.read_chunk(1) and replica.rows == {1: 5}


def test_a_change_beyond_the_chunks_is_left_to_them() -> None:
    source = ListedSource()
    source.write((1, 0), (5, 0))
    replica = Replica(source)
    assert replica.read_chunk(1)
    source.write((5, 9), (1, 9))
    assert replica.apply_one() and replica.rows == {1: 9}
    assert replica.read_chunk(5) and replica.rows == {1: 9, 5: 9}


def test_a_transaction_that_becomes_visible_after_a_chunk_is_not_in_the_chunk() -> None:
    """It was applied before, where no chunk was; and by the time the chunk is judged, snapshots see it."""
    source = ListedSource()
    source.write((1, 0))
    replica = Replica(source)
    source.write((1, 1), hidden=True)
    assert replica.apply_one()
    chunk = source.read_chunk(ITEMS, None, rows_max=5, order=KeyOrder.SOURCE)
    source.hidden.clear()
    assert not replica.handover.is_usable(chunk)
    assert replica.read_chunk(5) and replica.rows == source.rows() == {1: 1}


def test_few_changes_of_wide_rows_are_looked_at_together() -> None:
    replica = Replica(ListedSource())
    assert replica.read_chunk(1)
    taken: list[int] = []

    def wide() -> Iterator[RowChange]:
        for key in range(50):
            taken.append(key)
            yield RowChange(ITEMS, ChangeKind.UPDATE, (key,), {"id": key, "n": "n" * (PIECE_BYTES // 4)})

    for seen, (change, _, _) in enumerate(replica.handover.wanted(wide(), None)):
        assert isinstance(change, RowChange) and change.key == (seen,) and len(taken) <= seen + 5
    assert len(taken) == 50


def test_marks_do_not_outlive_a_quiet_commit() -> None:
    """The numbers of PostgreSQL's transactions come around: after 2,147,483,648 others, one counts as not seen by any snapshot."""
    replica = Replica(ListedSource())
    replica.source.write((1, 0))
    assert replica.apply_one() and replica.state.marks == [0]
    replica.handover.settle()
    assert replica.state.marks == [0]
    replica.handover.settle(is_quiet=True)
    assert replica.state.marks == []
    later = (1 << 33) + (1 << 31) + 1
    assert not VisibleTransactions(later, later, frozenset()).has_seen(0)
    replica.source.write((2, 0), hidden=True)
    assert replica.apply_one()
    replica.handover.settle(is_quiet=True)
    assert replica.state.marks == [1]


def test_a_source_says_when_its_tables_are_not_those_of_one_moment() -> None:
    source = ListedSource()
    replica = Replica(source)
    assert replica.read_chunk(5)
    replica.handover.note_transaction({"at": 0}, None)
    assert replica.state.is_consistent
    for said, wanted in ((False, False), (None, False), (True, True), (None, True)):
        replica.handover.note_transaction({"at": 0}, None, is_consistent=said)
        replica.restart()
        assert replica.state.is_consistent is wanted
