"""`FileRecord`: which files were taken, as a table of the lake that is written with the rows of the files.

A position that names a last file, or a time, loses a file that comes late under an earlier name, or with an earlier time. So every file has
a row here, in the commit of its rows. The position stays small, and the table is read once at a start. In memory, a file is 25 bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from fileio.contract import ObjectMeta
from objcat.errors import TableNotFound
from objcat.ingest.model import Change, ChangeKind, RowBatch, RowChange, SourceColumn, SourceTable, TableTruncated
from objcat.lake.lake import Lake

_COLUMNS: Mapping[str, pa.DataType] = {
    "file": pa.string(),
    "source_table": pa.string(),
    "version": pa.string(),
    "state": pa.string(),
    "bytes": pa.int64(),
    "modified": pa.timestamp("us", tz="UTC"),
    "rows": pa.int64(),
    "bad": pa.int64(),
    "error": pa.string(),
}
_DIGEST_BYTES = 16
RECENT_MAX = 50_000
"""So many files that came since the start are held one by one."""


class FileState(enum.StrEnum):
    """What became of a file.

    TAKEN: its rows are in the lake. BROKEN: this version could not be read, so none of its rows are; another one is taken.
    REFUSED: its rows are in the lake, and another version of it was refused. LEFT_OUT: its rows are not in the lake, since its table was
    set aside, or on request; another version is taken.
    """

    TAKEN = "taken"
    BROKEN = "broken"
    REFUSED = "refused"
    LEFT_OUT = "left_out"


_WITHOUT_ROWS = frozenset({FileState.BROKEN, FileState.LEFT_OUT})


RECORD_TABLE = SourceTable(
    name=".ingest_files",
    columns=tuple(SourceColumn(name=name, type=data_type, nullable=name != "file") for name, data_type in _COLUMNS.items()),
    key=("file",),
    version=1,
    is_record=True,
    left_out={"state": str(FileState.LEFT_OUT), "rows": None},
)
"""The record as a table of the source. No file can have a table of that name."""


class Novelty(enum.Enum):
    """What a listed file is to the record."""

    KNOWN = enum.auto()
    NEW = enum.auto()
    OVERWRITTEN = enum.auto()
    """The rows of an earlier version are in the lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """A row of the record. meta: the file. table: of the source."""

    meta: ObjectMeta
    table: str
    state: FileState
    rows: int | None = None
    bad: int = 0
    error: str | None = None

    def change(self) -> RowChange:
        """The row, to be written with those of the file."""
        row = {
            "file": self.meta.key,
            "source_table": self.table,
            "version": str(self.meta.version),
            "state": str(self.state),
            "bytes": self.meta.size,
            "modified": datetime.fromtimestamp(self.meta.modified_ms / 1000, UTC),
            "rows": self.rows,
            "bad": self.bad,
            "error": self.error,
        }
        return RowChange(RECORD_TABLE, ChangeKind.INSERT, (self.meta.key,), row)


class FileRecord:
    """The files of the record, by digests. For one thread.

    Args:
        lake: the lake.
        name: of the record in it.
    """

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self._name = name
        self._files = np.empty(0, f"S{_DIGEST_BYTES}")
        self._versions = np.empty(0, np.uint64)
        self._has_rows = np.empty(0, np.bool_)
        self._recent: dict[bytes, tuple[int, bool]] = {}

    def load(self, *, but: Sequence[str] = (), but_left_out: Sequence[str] = ()) -> None:
        """Read the record as it is in the lake.

        Args:
            but: tables whose files are to be forgotten, by changes that are not committed yet.
            but_left_out: tables of which the files are to be forgotten that were left out.
        """
        self._recent = {}
        files, versions, has_rows = [], [], []
        for batch in self._batches(["file", "version", "state", "source_table"]):
            batch = batch.filter(pc.invert(_is_of(batch, but, but_left_out)))  # noqa: PLW2901 - the rest of it
            names, found, states = (batch.column(name).to_pylist() for name in ("file", "version", "state"))
            files.append(np.array([_digest(name) for name in names], self._files.dtype))
            versions.append(np.array([_number(version) for version in found], np.uint64))
            has_rows.append(np.array([state not in _WITHOUT_ROWS for state in states], np.bool_))
        if not files:
            self._files, self._versions, self._has_rows = self._files[:0], self._versions[:0], self._has_rows[:0]
            return
        every = np.concatenate(files)
        order = np.argsort(every, kind="stable")
        self._files = every[order]
        self._versions, self._has_rows = np.concatenate(versions)[order], np.concatenate(has_rows)[order]

    def note(self, file: RecordedFile) -> None:
        """A file is about to be committed with this row."""
        self._recent[_digest(file.meta.key)] = (_number(file.meta.version), file.state not in _WITHOUT_ROWS)
        if len(self._recent) >= RECENT_MAX:
            self._pack()

    def _pack(self) -> None:
        """Put the files that came since the start into the arrays, over what these have of them."""
        files = np.concatenate([self._files, np.array(list(self._recent), self._files.dtype)])
        versions = np.concatenate([self._versions, np.array([version for version, _ in self._recent.values()], np.uint64)])
        has_rows = np.concatenate([self._has_rows, np.array([found for _, found in self._recent.values()], np.bool_)])
        # Of equal ones the last counts, which is the first one backwards.
        self._files, places = np.unique(files[::-1], return_index=True)
        self._versions, self._has_rows = versions[::-1][places], has_rows[::-1][places]
        self._recent = {}

    def compare(self, found: Sequence[ObjectMeta]) -> list[Novelty]:
        """What each of these files is to the record."""
        if not found:
            return []
        digests = [_digest(meta.key) for meta in found]
        wanted = np.array(digests, self._files.dtype)
        places = np.searchsorted(self._files, wanted)
        inside = np.minimum(places, max(0, len(self._files) - 1))
        there = (self._files[inside] == wanted) if len(self._files) else np.zeros(len(found), np.bool_)
        versions = [_number(meta.version) for meta in found]
        if (
            there.all()
            and not any(digest in self._recent for digest in digests)
            and bool((self._versions[inside] == np.array(versions, np.uint64)).all())
        ):
            return [Novelty.KNOWN] * len(found)
        answers = []
        for digest, version, place, is_there in zip(digests, versions, inside, there, strict=True):
            known = self._recent.get(digest)
            if known is None and is_there:
                known = (int(self._versions[place]), bool(self._has_rows[place]))
            answers.append(_novelty(known, version))
        return answers

    def forget(self, tables: Sequence[str], left_out: Sequence[str] = ()) -> Iterable[Change]:
        """The changes after which no file of these tables is in the record, and of `left_out` none that was left out."""
        every = [_is_of(batch, tables, left_out) for batch in self._batches(["source_table", "state"])]
        if every and all(pc.all(one, min_count=0).as_py() for one in every):
            yield TableTruncated(RECORD_TABLE)
            return
        for batch in self._batches(["file", "source_table", "state"]):
            mine = batch.filter(_is_of(batch, tables, left_out))
            if mine.num_rows:
                yield RowBatch(RECORD_TABLE, ChangeKind.DELETE, pa.Table.from_batches([mine]).select(["file"]))

    def _batches(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
        try:
            table = self._lake.table(self._name)
        except TableNotFound:
            return
        yield from table.scan(columns=columns).to_batches()


def _is_of(batch: pa.RecordBatch, tables: Sequence[str], left_out: Sequence[str]) -> pa.BooleanArray:
    """Which files are of some tables, or were left out of others."""
    source, state = batch.column("source_table"), batch.column("state")
    every = pc.is_in(source, value_set=pa.array(list(tables), pa.string()))
    some = pc.is_in(source, value_set=pa.array(list(left_out), pa.string()))
    return pc.or_(every, pc.and_(some, pc.fill_null(pc.equal(state, str(FileState.LEFT_OUT)), False)))


def _novelty(known: tuple[int, bool] | None, version: int) -> Novelty:
    if known is None:
        return Novelty.NEW
    if known[0] == version:
        return Novelty.KNOWN
    return Novelty.OVERWRITTEN if known[1] else Novelty.NEW


def _digest(name: str) -> bytes:
    return xxhash.xxh3_128_digest(name.encode())


def _number(version: Any) -> int:
    return xxhash.xxh3_64_intdigest(str(version).encode())
