"""Refreshes of a derived table, with the code of `objcat.derived` as it ships, but for what DuckDB computes: that is a bag of values.

The one row of the derived table has the values of all rows of its source, sorted and joined: a change that counts twice is there twice, and
one that is left out is missing. It follows from the changes that `SourceRows` read and from the row that the refresh found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa

import objcat.derived.refresh
from objcat.catalog.table_lifecycle import create
from objcat.derived.refresh import refresh
from objcat.derived.results import COMES, GOES, DerivedRows
from objcat.derived.source_rows import SIGN, SourceRows
from objcat.engine.local import LocalEngine
from objcat.errors import ObjcatError
from objcat.metadata.derived import Derived, definition_of
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import snapshot_of
from objcat.table.context import TableContext
from objcat.table.table import Table
from objcat.timeline.entry import new_txn
from objcat.timeline.log_view import Timeline
from tests.explorer.actors import Acknowledged, Failed, Participant, Shown
from tests.explorer.facts import BAG_KEY, bag_of
from tests.explorer.roles import KEYS, TABLE_NAME, WatchedCommitter, mark_of, means, warm_view

QUERY = "SELECT k % 1 AS k, max(v) AS v FROM t GROUP BY k % 1"
"""What is stored: an aggregate that is followed group by group. The bag stands for its greatest value."""


@dataclass(frozen=True, slots=True)
class CreateDerived:
    """Creates a table that is derived from the first one, in its log, and does not compute it yet."""

    def __call__(self, me: Participant) -> None:
        me.fileio = me.fileio.child(TABLE_NAME)
        view = warm_view(me)
        first = snapshot_of(view, where="explorer").spec
        derived = Derived(query=QUERY, sources=(TABLE_NAME,))
        spec = msgspec.structs.replace(first, table=me.fileio.env.new_id(), derived=derived)
        create(Timeline(me.fileio, TablesReducer()), view, spec, new_txn(me.fileio.env))


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """Upserts a row of the source through a handle, or deletes it."""

    key: int = KEYS[0]
    deletes: bool = False

    def __call__(self, me: Participant) -> None:
        source, _ = _handles(me)
        mark = mark_of(me)
        verb, write = ("end", source.delete) if self.deletes else ("put", source.upsert)
        row = {"k": self.key} if self.deletes else {"k": self.key, "v": mark}
        done = write([row], metadata=means(verb, self.key, mark=mark))
        me.note(Acknowledged(done.txn, done.slot))


@dataclass(frozen=True, slots=True)
class Refresh:
    """Refreshes the derived table so many times, as somebody who has it open since the beginning."""

    rounds: int = 1

    def __call__(self, me: Participant) -> None:
        source, derived = _handles(me)
        committer = derived._context.committer = WatchedCommitter(me)
        for _ in range(self.rounds):
            try:
                done = refresh(derived, ToyLake(source), full=False)  # type: ignore[arg-type]
            except ObjcatError:
                if committer.beaten is not None:
                    me.note(Failed(committer.beaten))
                raise
            me.note(Shown(derived.id, source.id, done.sources[TABLE_NAME]))


def _handles(me: Participant) -> tuple[Table, Table]:
    """The source and the derived table, as of the beginning."""
    me.fileio = me.fileio.child(TABLE_NAME)
    view = warm_view(me)
    timeline = Timeline(me.fileio, TablesReducer())
    tables = sorted(view.log.tables, key=lambda table: definition_of(snapshot_of(view, table, where="explorer").spec) is not None)
    source, derived = (Table(TableContext(TABLE_NAME, timeline, table, view)) for table in tables)
    return source, derived


class ToyLake:
    """A lake with one name. What names mean is explored by other cells."""

    def __init__(self, source: Table) -> None:
        self._source = source
        bound = SimpleNamespace(binding=SimpleNamespace(table=source.id, prefix=TABLE_NAME))
        names = SimpleNamespace(table={TABLE_NAME: bound}.get)
        self._context = SimpleNamespace(catalog=SimpleNamespace(refresh=lambda: names), binding_of={TABLE_NAME: bound}.__getitem__)

    def table(self, name: str) -> Table:
        """As `Lake.table`: at the newest slot."""
        assert name == TABLE_NAME
        self._source.refresh()
        return self._source


class ToySession:
    """As `LocalQuerySession`, of rows that are computed already."""

    def __init__(self) -> None:
        self.found: dict[str, pa.Table] = {}

    def rows(self, text: str) -> pa.Table:
        """How many rows there are."""
        return pa.table({"n": [self._named(text).num_rows]})

    def batch(self, name: str, table: Table) -> tuple[LocalEngine, pa.Table]:
        """The engine that writes rows, and these rows."""
        return LocalEngine(table._context.fileio), self.found[name]

    def _named(self, text: str) -> pa.Table:
        return self.found[text.rpartition(" ")[2]]

    def close(self) -> None:
        """Nothing is open."""


def compute_groups(session: ToySession, _query: Any, _shape: Any, derived: DerivedRows, sources: Sequence[SourceRows]) -> bool:
    """As `objcat.derived.results.compute_groups`: what went is taken out of the row that is there, what came is put in."""
    changes = sources[0].changes().to_pylist()
    if not changes:
        return False
    held = _held(derived)
    for row in sorted(changes, key=lambda row: row[SIGN], reverse=True):
        if row[SIGN] > 0:
            held.append(row["v"])
        elif row["v"] in held:
            held.remove(row["v"])
        else:
            held.append(f"-{row['v']}")
    _declare(session, derived, held)
    return True


def compute_whole(session: ToySession, _query: Any, derived: DerivedRows, sources: Sequence[SourceRows], *, is_empty: bool) -> None:
    """As `objcat.derived.results.compute_whole`."""
    assert not is_empty or not _held(derived)
    _declare(session, derived, sources[0].all(sources[0].after).column("v").to_pylist())


def _held(derived: DerivedRows) -> list[str]:
    rows = derived.scans.scan(derived.slot).to_arrow().to_pylist()
    return [f"{value}." for row in rows for value in row["v"].split(".")[:-1]]


def _declare(session: ToySession, derived: DerivedRows, held: Sequence[str]) -> None:
    is_there = bool(_held(derived))
    comes = [{"k": BAG_KEY, "v": bag_of(held)}] if held else []
    session.found[COMES] = pa.Table.from_pylist(comes, derived.schema)
    session.found[GOES] = pa.Table.from_pylist([{"k": BAG_KEY}] if is_there and not held else [], pa.schema([derived.schema.field("k")]))


@contextmanager
def toy_queries() -> Iterator[None]:
    """Until the end of the block, refreshes compute bags."""
    toys = {"LocalQuerySession": ToySession, "compute_groups": compute_groups, "compute_whole": compute_whole}
    with ExitStack() as stack:
        for name, toy in toys.items():
            stack.enter_context(mock.patch.object(objcat.derived.refresh, name, toy))
        yield
