"""Rows of files in place: from their precomputed columns where these are enough, else from the files themselves.

`pieces_in_place` stands where readers call `objcat.datafile.parquet.base_pieces`. It gives rows under physical names, without masked rows.
Precomputed columns have the rows of the file in its order, so a position means the same row in both.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.adopted_files import same_values
from objcat.datafile.casting import cast_rows, logical
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.in_place import ChosenRows, SourcePiece, changed_error, held_columns, source_pieces
from objcat.datafile.open_files import open_parquet
from objcat.datafile.statistics import row_groups_that_may_match
from objcat.datafile.verification import check_count, decoding
from objcat.metadata.column_parts import FieldPath, fields_within, is_within
from objcat.metadata.files import BaseFile
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import Column, TableSchema, arrow_type
from objcat.metadata.table_spec import TableSpec
from objcat.sourcefiles.layout import Span

POSITION = "_objcat_position"
"""A column that a reader may ask for: the position of the row in its file, from 0."""
SPAN_COLUMNS = ("_objcat_begin", "_objcat_end", "_objcat_first")
"""Hidden columns of files with precomputed columns of lines: the bytes that a row is in, without compression, and the position of the first
row of these. They are the same in many rows, so they take next to nothing."""


class RowFilter(Protocol):
    """A filter over rows with logical names."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""

    def to_arrow(self) -> pc.Expression:
        """The filter."""


KnownPart = Callable[[Collection[FieldPath]], RowFilter | None]
"""From paths of columns and fields to the strongest filter over these that every wanted row passes. None: nothing is known."""


class SourceAnswer(enum.StrEnum):
    """What the rows of a file in place are read from."""

    PRECOMPUTED = "precomputed"
    """Its precomputed columns alone. The file is not opened."""
    POSITIONS = "positions"
    """The precomputed columns say which rows are wanted, and only what holds these is read of the file."""
    WHOLE = "whole"
    """The file."""


@dataclass(frozen=True, slots=True)
class _AnswerPlan:
    answer: SourceAnswer
    passing: RowFilter | None = None


def answer_of(base: BaseFile, columns: Sequence[Column], spec: TableSpec, known_part: KnownPart | None = None) -> SourceAnswer:
    """What some columns of a file in place, or parts of them, are read from. known_part: as of `pieces_in_place`."""
    return _way(base, columns, spec, known_part).answer


def _columns(columns: Iterable[Column], physical: Collection[str]) -> list[Column]:
    return [column for column in columns if column.physical in physical]


def _way(base: BaseFile, columns: Sequence[Column], spec: TableSpec, known_part: KnownPart | None) -> _AnswerPlan:
    assert base.adopted is not None and base.source is not None, "only files in place are read here"
    if base.source.precomputed is None:
        return _AnswerPlan(SourceAnswer.WHOLE)
    there = base.source.precomputed.ids
    if all(is_within(column, there) for column in held_columns(columns, base.adopted).values()):
        return _AnswerPlan(SourceAnswer.PRECOMPUTED)
    every = {column.id for column in held_columns(spec.table_schema.columns, base.adopted).values()}
    # Of a column that the file lacks, every row has one value.
    paths = [(column.name,) for column in spec.table_schema.columns if is_within(column, there) or column.id not in every]
    fields = [path for path in fields_within(spec.table_schema.columns) if is_within(path[-1], there)]
    passing = None if known_part is None else known_part([*paths, *(tuple(step.name for step in path) for path in fields)])
    return _AnswerPlan(SourceAnswer.WHOLE) if passing is None else _AnswerPlan(SourceAnswer.POSITIONS, passing)


def pieces_in_place(
    fileio: FileIO,
    base: BaseFile,
    columns: Sequence[str],
    spec: TableSpec,
    *,
    where: Pruning | None = None,
    known_part: KnownPart | None = None,
    parts: TableSchema | None = None,
) -> Iterator[pa.Table]:
    """Columns of a file in place, one block at a time in memory: a row group, a stripe, or about a MiB of text.

    Columns that the file lacks are missing.

    Args:
        columns: physical names, `_objcat_txn` and `POSITION`.
        where: skips row groups without a matching row.
        known_part: of a filter that the caller applies to the rows. Rows that do not pass may be left out.
        parts: the schema of the table, with some fields of structs left out that nobody wants. Rows may have them.

    Raises:
        SourceFileChanged: the file was opened, and is another one by now, or gone.
        CorruptTable: the file with its precomputed columns is not the one that was committed.
        FileIOError: the store failed.
    """
    assert base.adopted is not None and base.source is not None, "only files in place are read here"
    # A source is read with whole columns: what does not fit in one of its fields may make the value of a whole column null.
    names = _columns(spec.table_schema.columns, columns)
    way = _way(base, names if parts is None else _columns(parts.columns, columns), spec, known_part)
    masked = np.asarray(base.source.masked, np.int64).reshape(-1, 2)
    if way.answer is SourceAnswer.PRECOMPUTED:
        pieces = _precomputed(fileio, base, [column.physical for column in names], spec, where)
    elif way.passing is not None:
        only = _positions(fileio, base, spec, where, way.passing)
        if not len(only.positions):
            return
        pieces = _at(source_pieces(fileio, base, names, spec, only=only), base, spec, only)
    else:
        pieces = source_pieces(fileio, base, names, spec, where=where)
    constants = {column.physical: column for column in names if column.id in base.adopted.values}
    with closing(pieces):
        for piece in pieces:
            numbered = piece.rows
            if POSITION in columns and POSITION not in numbered.column_names:
                numbered = numbered.append_column(POSITION, pa.array(np.arange(piece.first, piece.first + numbered.num_rows)))
            # Rows that were chosen by position are none of the masked ones.
            kept = numbered if way.answer is SourceAnswer.POSITIONS else unmasked(numbered, piece.first, masked)
            made = {name: kept.column(name) for name in kept.column_names if name in columns and name}
            for name, column in constants.items():
                made[name] = same_values(base.adopted.values[column.id], arrow_type(column.type, physical=True), kept.num_rows)
            if TXN_COLUMN in columns:
                made[TXN_COLUMN] = same_values(base.adopted.txn, pa.string(), kept.num_rows)
            if kept.num_rows:
                yield pa.table({name: made[name] for name in columns if name in made}) if made else kept


def unmasked(rows: pa.Table, first: int, masked: np.ndarray) -> pa.Table:
    """Rows without those that are masked.

    Args:
        first: the position of the first one in its file.
        masked: ranges of positions, ascending, in an array with two columns.
    """
    end = first + rows.num_rows
    met = masked[np.searchsorted(masked[:, 1], first, "right") : np.searchsorted(masked[:, 0], end, "left")]
    if not len(met):
        return rows
    if not rows.num_columns:
        # Arrow forgets the number of rows of a filtered table without columns.
        rows = pa.table({"": pa.nulls(rows.num_rows)})
    kept = np.ones(rows.num_rows, np.bool_)
    for begin, after in met.tolist():
        kept[max(0, begin - first) : max(0, after - first)] = False
    return rows.filter(pa.array(kept))


@contextmanager
def _opened(
    fileio: FileIO, base: BaseFile, spec: TableSpec, where: Pruning | None
) -> Iterator[tuple[Sequence[str], Sequence[int], Sequence[int], Callable[[int, Sequence[str]], pa.Table]]]:
    """The file with precomputed columns: names of its columns, row groups that may hold a matching row, positions at which row groups
    begin, and what reads columns of a row group.
    """
    file = base.precomputed_file
    assert file is not None
    with open_parquet(fileio, file) as parquet:
        footer, schema = parquet.metadata, parquet.schema_arrow
        heights = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        numbers: Sequence[int] = range(footer.num_row_groups)
        if where is not None and len(heights) > 1:
            # A column without an id says that others may be missing for another reason than that they joined the table later.
            numbers = row_groups_that_may_match(footer, schema.append(pa.field("others", pa.null())), where, spec, has_own_fields=True)

        def read(number: int, columns: Sequence[str]) -> pa.Table:
            """Columns of a row group."""
            with decoding(fileio, file.path):
                rows = parquet.read_row_group(number, columns=list(columns))
            return check_count(fileio, file, rows, heights[number])

        yield schema.names, numbers, np.cumsum([0, *heights]).tolist(), read


def _precomputed(
    fileio: FileIO, base: BaseFile, columns: Sequence[str], spec: TableSpec, where: Pruning | None
) -> Generator[SourcePiece, None, None]:
    """Columns of the file with precomputed columns that it has, in row groups that may hold a matching row."""
    with _opened(fileio, base, spec, where) as (names, numbers, begins, read):
        # Without a column, a row group would have no rows.
        there = [name for name in columns if name in names] or names[:1]
        for number in numbers:
            yield SourcePiece(begins[number], read(number, there))


def _positions(fileio: FileIO, base: BaseFile, spec: TableSpec, where: Pruning | None, part: RowFilter) -> ChosenRows:
    """The rows of a file that pass a filter over its precomputed columns, without masked ones."""
    assert base.source is not None and base.adopted is not None
    columns = [column for column in spec.table_schema.columns if column.name in part.columns]
    schema = spec.table_schema.to_arrow_physical(nullable=True, only=[column.physical for column in columns])
    masked = np.asarray(base.source.masked, np.int64).reshape(-1, 2)
    found: list[np.ndarray] = []
    spans: dict[Span, int] = {}
    with _opened(fileio, base, spec, where) as (names, numbers, begins, read):
        there = [name for name in schema.names if name in names]
        for number in numbers:
            first = begins[number]
            rows = read(number, there or names[:1])
            for column in columns:
                if column.id in base.adopted.values:
                    value = same_values(base.adopted.values[column.id], arrow_type(column.type, physical=True), rows.num_rows)
                    rows = rows.append_column(column.physical, value)
            own = cast_rows(rows, schema).append_column(POSITION, pa.array(np.arange(first, first + rows.num_rows)))
            kept = logical(unmasked(own, first, masked), spec.table_schema).filter(part.to_arrow()).column(POSITION).to_numpy()
            found.append(kept)
            if len(kept) and SPAN_COLUMNS[0] in names:
                of_rows = read(number, SPAN_COLUMNS).take(pa.array(kept - first))
                of_rows = of_rows.group_by(list(SPAN_COLUMNS)).aggregate([])
                ends = (of_rows.column(name).to_pylist() for name in SPAN_COLUMNS)
                spans |= {(begin, end): at for begin, end, at in zip(*ends, strict=True)}
    positions = np.concatenate(found) if found else np.zeros(0, np.int64)
    return ChosenRows(positions, tuple(sorted(spans.items())) if spans else None)


def _at(
    pieces: Generator[SourcePiece, None, None], base: BaseFile, spec: TableSpec, only: ChosenRows
) -> Generator[SourcePiece, None, None]:
    """The chosen rows of pieces, with their positions. Raises SourceFileChanged if one is not there."""
    taken = 0
    with closing(pieces):
        for piece in pieces:
            begin, end = np.searchsorted(only.positions, [piece.first, piece.first + piece.rows.num_rows]).tolist()
            chosen = only.positions[begin:end]
            if not len(chosen):
                continue
            taken += len(chosen)
            rows = piece.rows if piece.rows.num_columns else pa.table({"": pa.nulls(piece.rows.num_rows)})
            rows = rows.take(pa.array(chosen - piece.first))
            yield SourcePiece(piece.first, rows.append_column(POSITION, pa.array(chosen)))
    if taken != len(only.positions):
        raise changed_error(spec, base, f"It gives {taken:,} of {len(only.positions):,} rows that are wanted.")
