"""Which precomputed columns of files in place would answer the queries that are run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from sqlglot import expressions as sql

from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.adoption.precompute import ColumnsWriter, has_spans, wanted_columns
from objcat.common.validation import text
from objcat.datafile.in_place import settings_of, source_pieces
from objcat.errors import InvalidInput, InvalidPredicate, InvalidSql, TableNotFound
from objcat.inspection.explain import bytes_text
from objcat.metadata.column_parts import FieldPath, path_of, precomputed_names, said_path
from objcat.metadata.files import BaseFile
from objcat.metadata.in_place_changes import choose_precomputed
from objcat.metadata.table_spec import TableSpec
from objcat.predicate.parse import parse_predicate
from objcat.predicate.parts import known_part
from objcat.sql.pushdown import Need
from objcat.sql.runner import SqlLake, bind
from objcat.sql.statements import parse_statement
from objcat.timeline.entry import new_txn

if TYPE_CHECKING:
    from objcat.table.table import Table

STEPS_MAX = 10
"""Steps of an advice. Each answers more queries than the one before."""
SAMPLE_BYTES = 64 * 1024**2
"""Bytes of source files that an advice reads, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputeStep:
    """Columns that would answer some queries.

    Attributes:
        columns: all that are precomputed then, as `table.alter.set_precomputed` takes them.
        added: those that the step before lacks.
        alone: the share of the queries that open no source file then, from 0 to 1.
        narrowed: the share that opens only what holds matches: a filter on these columns says what that is.
        bytes: that the columns take, as measured on the sample.
        of_files: the same as a share of the bytes of the source files.
    """

    columns: tuple[str, ...]
    added: tuple[str, ...]
    alone: float
    narrowed: float
    bytes: int
    of_files: float

    def __str__(self) -> str:
        shares = f"{self.alone:>4.0%} alone, {self.narrowed:.0%} by positions"
        return f"{shares}, {bytes_text(self.bytes)} ({self.of_files:.1%} of the files): {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputeAdvice:
    """What precomputed columns would earn. `str()` formats it for people.

    Attributes:
        queries: those of the given ones that read the table.
        unread: texts that were not understood: other statements, and queries of tables that are not there.
        whole: queries that need every column, which none of the steps answers alone.
        present: what is precomputed now, and `alone` its share as of a step.
        unused: what is precomputed now and no query names.
        sampled: bytes of the source files that were measured.
        steps: the one with the most queries for its bytes first.
    """

    queries: int
    unread: int
    whole: int
    present: tuple[str, ...]
    alone: float
    unused: tuple[str, ...]
    sampled: int
    steps: tuple[PrecomputeStep, ...]

    def __str__(self) -> str:
        head = f"{self.queries:,} queries read the table, {self.alone:.0%} of them by precomputed columns alone now"
        lines = [head, *map(str, self.steps)]
        if self.whole:
            lines.append(f"{self.whole:,} queries need every column")
        if self.unused:
            lines.append(f"no query names {', '.join(self.unused)}")
        if self.unread:
            lines.append(f"{self.unread:,} texts are no query of tables of this lake")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a query needs of the table. paths: None for all columns."""

    paths: frozenset[FieldPath] | None
    where: str | None


def advise_precomputed(lake: SqlLake, table: Table, queries: Iterable[str], *, sample_bytes: int) -> PrecomputeAdvice:
    """See `Lake.advise_precomputed`."""
    spec = table.refresh().spec
    if not spec.is_in_place:
        raise InvalidInput("The files of this table are its own, so columns are read from them. Leave out the call.")
    given = (queries,) if isinstance(queries, str) else tuple(queries)
    found = Counter[_Read]()
    unread = 0
    for query in given:
        reads = _reads(lake, table, spec, text(query, what="queries"))
        unread += reads is None
        found.update(reads or ())
    total = sum(found.values())
    paths = sorted({path for read in found for path in read.paths or ()})
    bases = [group.base for group in table.snapshot.file_groups(table._context.manifests) if group.base is not None]
    in_place = [base for base in bases if base.source is not None]
    sampled, sizes = _measured(table, spec, in_place, paths, sample_bytes=sample_bytes)
    all_bytes = sum(base.bytes for base in in_place)
    steps: list[PrecomputeStep] = []
    chosen: frozenset[FieldPath] = frozenset()
    while len(steps) < STEPS_MAX and (added := _best(chosen, found, sizes)):
        chosen |= added
        share = sum(sizes[path] for path in chosen) / max(1, sampled)
        steps.append(
            PrecomputeStep(
                columns=_said(chosen, spec),
                added=_said(added, spec),
                alone=_alone(chosen, found) / total,
                narrowed=_narrowed(chosen, found, spec) / total,
                bytes=round(share * all_bytes),
                of_files=share,
            )
        )
    present = frozenset(path_of(name, spec.table_schema) for name in precomputed_names(spec))
    unused = {path for path in present if not any(other[: len(path)] == path for other in paths)}
    return PrecomputeAdvice(
        queries=total,
        unread=unread,
        whole=sum(count for read, count in found.items() if read.paths is None),
        present=_said(present, spec),
        alone=_alone(present, found) / total if total else 0.0,
        unused=_said(unused, spec),
        sampled=sampled,
        steps=tuple(steps),
    )


def _said(paths: Collection[FieldPath], spec: TableSpec) -> tuple[str, ...]:
    return tuple(said_path(path, spec.table_schema) for path in sorted(paths))


def _reads(lake: SqlLake, table: Table, spec: TableSpec, query: str) -> list[_Read] | None:
    """What a query needs of the table, at most one. None: the text is not understood."""
    try:
        tree = parse_statement(query.strip().rstrip(";"))
        if not isinstance(tree, sql.Query):
            return None
        _, sources = bind(tree, lake)
    except (InvalidSql, TableNotFound):
        return None
    needs = [source.need or Need(None, None) for source in sources if source.table.id == table.id]
    if not needs:
        return []
    in_path = {spec.table_schema.by_id(column_id).name for column_id in settings_of(spec).path_columns}
    others = {(name,) for name in spec.table_schema.names if name not in in_path}
    paths: set[FieldPath] = set()
    for need in needs:
        if need.columns is None:
            return [_Read(None, need.where)]
        paths |= {path for name in need.columns if (path := path_of(name, spec.table_schema))[0] not in in_path}
    where = needs[0].where if len(needs) == 1 else None
    return [_Read(None if others <= paths else frozenset(_outermost(paths)), where)]


def _outermost(paths: Collection[FieldPath]) -> set[FieldPath]:
    return {path for path in paths if not any(path[:depth] in paths for depth in range(1, len(path)))}


def _is_answered(paths: frozenset[FieldPath] | None, chosen: Collection[FieldPath]) -> bool:
    """Whether columns are enough. A query that only counts needs any."""
    if paths is None or not chosen:
        return False
    return all(any(path[:depth] in chosen for depth in range(1, len(path) + 1)) for path in paths)


def _alone(chosen: Collection[FieldPath], found: Mapping[_Read, int]) -> int:
    return sum(count for read, count in found.items() if _is_answered(read.paths, chosen))


def _narrowed(chosen: Collection[FieldPath], found: Mapping[_Read, int], spec: TableSpec) -> int:
    return sum(count for read, count in found.items() if not _is_answered(read.paths, chosen) and _is_narrowed(read.where, chosen, spec))


def _is_narrowed(where: str | None, chosen: Collection[FieldPath], spec: TableSpec) -> bool:
    if where is None:
        return False
    try:
        return known_part(parse_predicate(where, spec.table_schema), chosen) is not None
    except InvalidPredicate:
        return False


def _best(chosen: frozenset[FieldPath], found: Mapping[_Read, int], sizes: Mapping[FieldPath, float]) -> frozenset[FieldPath]:
    """The paths to add that answer the most further queries for their bytes. Empty: no more can be answered."""
    now = _alone(chosen, found)
    best: tuple[float, frozenset[FieldPath]] = (0.0, frozenset())
    for read in sorted((read for read in found if read.paths), key=lambda read: sorted(read.paths or ())):
        added = frozenset(path for path in read.paths or () if not _is_answered(frozenset({path}), chosen))
        if not added:
            continue
        # A whole column is in place of its fields.
        gain = _alone(chosen | added, found) - now
        worth = gain / max(1.0, sum(sizes[path] for path in added))
        if worth > best[0]:
            best = worth, added
    return best[1]


def _measured(
    table: Table, spec: TableSpec, bases: Sequence[BaseFile], paths: Sequence[FieldPath], *, sample_bytes: int
) -> tuple[int, dict[FieldPath, float]]:
    """Bytes of some source files, and what each column and field takes of them as a file of precomputed columns. Nothing is stored."""
    fileio = table._context.fileio
    sizes = dict.fromkeys(paths, 0.0)
    sampled = 0
    named = {path: choose_precomputed(spec, settings_of(spec), [said_path(path, spec.table_schema)]) for path in paths}
    # Names of files hold dates, so files from all of the order are looked at.
    ordered = sorted(bases, key=lambda base: base.path)
    count = max(1, len(ordered) * sample_bytes // max(1, sum(base.bytes for base in ordered)))
    for base in ordered[:: max(1, len(ordered) // count)] if paths else []:
        if sampled and sampled + base.bytes > sample_bytes:
            break
        sampled += base.bytes
        assert base.adopted is not None
        store = FileIO(MemoryBackend())
        with ExitStack() as stack:
            writers = {}
            for path, settings in named.items():
                only = msgspec.structs.replace(spec, in_place=settings)
                columns = wanted_columns(only, base.adopted)
                if columns:
                    writers[path] = stack.enter_context(ColumnsWriter(store, only, columns, new_txn(fileio.env), spans=has_spans(spec)))
            whole = [column for column in spec.table_schema.columns if column.name in {path[0] for path in writers}]
            with closing(source_pieces(fileio, base, whole, spec)) as pieces:
                for piece in pieces:
                    for writer in writers.values():
                        writer.add(piece.rows, piece.span)
            for path, writer in writers.items():
                sizes[path] += writer.finish().bytes
    return sampled, sizes
