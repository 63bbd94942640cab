"""Tables of the lake that others drop or alter, and tables that no longer fit, while rows of them wait to be committed."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat.errors import InvalidInput, TableNotFound
from objcat.ingest.config import parse_config
from objcat.ingest.handover import IngestState
from objcat.ingest.model import (
    Change,
    ChangeKind,
    KeyOrder,
    KeyValues,
    RowChange,
    SchemaChanged,
    SnapshotChunk,
    SourceColumn,
    SourceTable,
    SourceTransaction,
)
from objcat.ingest.requests import add_request
from objcat.ingest.runner import Ingest
from tests.effort import seeds
from tests.ingest.test_handover import ListedSource

COLUMNS = (SourceColumn(name="id", type=pa.int64()), SourceColumn(name="n", type=pa.int64()))
ITEMS, OTHERS = (SourceTable(name=name, columns=COLUMNS, key=("id",)) for name in ("items", "others"))
TEXTS = SourceTable(name="items", columns=(COLUMNS[0], SourceColumn(name="n", type=pa.string())), key=("id",))
Step = Callable[[], object]


def put(table: SourceTable, key: int, value: object) -> RowChange:
    return RowChange(table, ChangeKind.UPDATE, (key,), {"id": key, "n": value})


class ScriptedSource(ListedSource):
    """Transactions in order, and what happens in between. Its snapshots have what its transactions put."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[tuple[Step, list[Change]]] = []
        self.done = 0
        self.held: int | None = None
        self.is_closed = threading.Event()

    def add(self, *changes: Change, first: Step = lambda: None) -> None:
        self.script.append((first, list(changes)))

    def describe_tables(self) -> Sequence[SourceTable]:
        return [ITEMS, OTHERS]

    def begin(self, tables: Sequence[str]) -> Mapping[str, Any]:
        return {"at": len(self.script)}

    def head(self) -> Mapping[str, Any]:
        return {"at": len(self.script)}

    def transactions(self, position: Mapping[str, Any]) -> Iterator[SourceTransaction]:
        for number in range(position["at"], len(self.script)):
            changes = self.script[number][1]
            while number == self.held and not self.is_closed.wait(0.01):
                pass
            yield SourceTransaction(position={"at": number + 1}, mark=number, changes=self.read(number), count=len(changes))
        while not self.is_closed.wait(0.01):
            yield SourceTransaction(position={"at": len(self.script)})

    def read(self, number: int) -> Iterator[Change]:
        """The changes of a transaction, read as they are applied. What comes first is done then, the first time."""
        first, changes = self.script[number]
        if number >= self.done:
            self.done = number + 1
            first()
        yield from changes

    def close(self) -> None:
        self.is_closed.set()

    def values(self, table: str) -> dict[int, Any]:
        rows = [change for _, changes in self.script for change in changes if isinstance(change, RowChange) and change.table.name == table]
        return {change.key[0]: (change.row or {})["n"] for change in rows}

    def read_chunk(self, table: SourceTable, after: KeyValues | None, *, rows_max: int, order: KeyOrder) -> SnapshotChunk:
        self.held = None
        found = self.values(table.name)
        rows = pa.table({"id": pa.array(list(found), pa.int64()), "n": pa.array(list(found.values()), pa.int64())})
        return SnapshotChunk(
            table=table, rows=rows, after=after, last=None, order=order, covers=list(range(len(self.script))), until=self.head()
        )


class Followed:
    """A scripted source that is followed, with its lake."""

    def __init__(self, folder: Path) -> None:
        self.source = ScriptedSource()
        self.config = parse_config(
            {
                "lake": {"url": str(folder / "lake")},
                "source": {"name": "s", "kind": "scripted"},
                "route": [{"tables": "(.*)", "to": "shop.\\1", "profile": "p"}],
                "profile": {"p": {"index": "bucket(1)", "batch_rows": 1000, "batch_s": 60}},
                "run": {"discover_s": 0.01},
            },
            path="ingest.toml",
            environment={},
        )
        self.was_careful = False
        self.opened = 0
        self.lake = objcat.connect(str(folder / "lake"))
        assert self.once().is_consistent

    def open(self, config: Any, *_: object) -> Any:
        self.opened += 1
        self.was_careful |= config.is_careful
        self.source.is_closed.clear()
        return self.source

    def once(self) -> IngestState:
        return Ingest(self.config, self.lake, self.open).once()

    def rows(self, table: str) -> dict[int, Any]:
        return {row["id"]: row["n"] for row in self.lake.table(f"shop.{table}").scan().to_arrow().to_pylist()}


def test_a_table_is_gone_when_its_next_schema_comes(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    source = followed.source
    source.add(SchemaChanged(table=ITEMS), put(ITEMS, 1, 1), put(OTHERS, 1, 1), first=lambda: followed.lake.drop_table("shop.items"))
    state = followed.once()
    assert "dropped or renamed" in (state.tables["items"].aside or "") and followed.rows("others") == {1: 1}
    assert not followed.was_careful


def test_a_table_is_gone_while_rows_of_it_wait(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    source = followed.source
    source.add(put(ITEMS, 1, 1), put(OTHERS, 1, 1))
    source.add(SchemaChanged(table=ITEMS), put(ITEMS, 2, 2), put(OTHERS, 2, 2), first=lambda: followed.lake.drop_table("shop.items"))
    state = followed.once()
    assert "dropped or renamed" in (state.tables["items"].aside or "") and followed.rows("others") == {1: 1, 2: 2}
    assert not followed.was_careful


def test_a_column_is_gone_while_rows_of_it_wait(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    source = followed.source
    source.add(SchemaChanged(table=ITEMS), put(ITEMS, 1, 1), put(OTHERS, 1, 1))
    drop = lambda: followed.lake.table("shop.items").alter.drop_column("n")  # noqa: E731
    source.add(SchemaChanged(table=ITEMS), put(ITEMS, 2, 2), put(OTHERS, 2, 2), first=drop)
    state = followed.once()
    assert state.is_consistent and followed.rows("items") == followed.rows("others") == {1: 1, 2: 2}
    assert not followed.was_careful


def test_a_table_whose_rows_no_longer_fit_is_set_aside_before_them(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    source = followed.source
    source.add(put(ITEMS, 1, 1), SchemaChanged(table=TEXTS), put(TEXTS, 2, "two"), put(OTHERS, 2, 2))
    source.add(put(TEXTS, 3, "three"), put(OTHERS, 3, 3))
    state = followed.once()
    assert "does not become that" in (state.tables["items"].aside or "") and followed.rows("others") == {2: 2, 3: 3}
    assert not followed.was_careful


def test_a_table_that_was_dropped_is_made_by_the_run_that_noticed(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    source = followed.source

    source.add(SchemaChanged(table=ITEMS))

    def drop() -> None:
        followed.lake.drop_table("shop.items")
        add_request(followed.lake, followed.config, "resnapshot", "items")

    source.add(SchemaChanged(table=ITEMS), first=drop)
    source.add(put(ITEMS, 1, 1), put(OTHERS, 1, 1))
    # The last transaction comes when the table is read again.
    source.held = 2
    state = followed.once()
    assert state.is_consistent and followed.rows("items") == followed.rows("others") == {1: 1} and followed.opened == 2


@pytest.mark.parametrize("seed", seeds(3, with_all=100))
def test_whatever_others_do_ends_equal(tmp_path: Path, seed: int) -> None:
    """Others drop, alter and make a table again between any two changes. What was set aside is read again on request."""
    drawn = random.Random(seed)
    followed = Followed(tmp_path)
    lake, source = followed.lake, followed.source

    def take_away(what: str) -> None:
        with contextlib.suppress(TableNotFound, InvalidInput):
            found = lake.table("shop.items")
            if what == "column":
                found.alter.drop_column("n")
            else:
                lake.drop_table("shop.items")
            if what == "again":
                lake.create_table("shop.items", found.schema, key=["id"], shared_log="s")

    actions: list[Step] = [functools.partial(take_away, what) for what in ("column", "table", "again")]
    actions += [functools.partial(add_request, lake, followed.config, "resnapshot", "items"), *[lambda: None] * 4]
    for number in range(10):
        changes: list[Change] = []
        for _ in range(drawn.randrange(1, 5)):
            key = drawn.randrange(6)
            choices: list[Change] = [put(ITEMS, key, number), put(OTHERS, key, number), SchemaChanged(table=ITEMS)]
            changes.append(drawn.choice(choices))
        source.add(*changes, first=drawn.choice(actions))
    for _ in range(2):
        for name, progress in followed.once().tables.items():
            if progress.aside is not None:
                add_request(lake, followed.config, "resnapshot", name)
    assert followed.once().is_consistent and not followed.was_careful
    assert {name: followed.rows(name) for name in ("items", "others")} == {name: source.values(name) for name in ("items", "others")}
