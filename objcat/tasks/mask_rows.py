"""Deletes rows of files in place: they are masked by their positions, since nobody but the program of a file may write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.casting import logical, named
from objcat.datafile.in_place import shown_source
from objcat.datafile.in_place_rows import POSITION, pieces_in_place
from objcat.datafile.parquet import as_of_schema
from objcat.datafile.statistics import RunningBounds
from objcat.errors import InvalidInput
from objcat.metadata.column_parts import bounded_fields
from objcat.metadata.files import BaseFile, FileGroup
from objcat.metadata.in_place import MASKED_RANGES_MAX
from objcat.metadata.table_spec import TableSpec
from objcat.tasks.model import GroupRewrite, WriteResult
from objcat.tasks.parallel import run_all

Ranges = Sequence[tuple[int, int]]


def mask_rows(fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], passing: Callable[[pa.Table], pa.Array]) -> WriteResult:
    """The base files of a table in place, without some rows. No file is written. Files without such rows stay as they are.

    Args:
        passing: the places of the rows to delete in some rows, which have the columns of the table.

    Returns:
        The base files that change.

    Raises:
        SourceFileChanged: a file is another one by now.
        InvalidInput: a file would have too many masked ranges.
    """

    def mask(group: FileGroup) -> BaseFile | None:
        """The base file of one group."""
        assert group.base is not None, "each group of a table in place is a file"
        return _masked(fileio, spec, group.base, passing)

    found = run_all(fileio.env, mask, groups, at_once=fileio.env.parallelism)
    changed = [(base, group.base.rows - base.rows) for group, base in zip(groups, found, strict=True) if base and group.base]
    rewritten = tuple(GroupRewrite(base.group_id, gone, 0, 0, gone, changed=True) for base, gone in changed)
    return WriteResult(tuple(base for base, _ in changed), rows=sum(gone for _, gone in changed), rewritten=rewritten)


def _masked(fileio: FileIO, spec: TableSpec, base: BaseFile, passing: Callable[[pa.Table], pa.Array]) -> BaseFile | None:
    assert base.adopted is not None and base.source is not None
    physical = [column.physical for column in spec.table_schema.columns]
    fields = bounded_fields(spec) if base.source.precomputed is not None else []
    running = RunningBounds(spec.table_schema.columns, always=spec.bounded, fields=fields)
    gone: list[np.ndarray] = []
    rows = 0
    for piece in pieces_in_place(fileio, base, [*physical, POSITION], spec):
        positions = piece.column(POSITION)
        own = as_of_schema(piece.drop_columns([POSITION]), physical, spec.table_schema)
        places = passing(named(logical(own, spec.table_schema), spec.table_schema.to_arrow()))
        kept = np.ones(own.num_rows, np.bool_)
        kept[np.asarray(places)] = False
        gone.append(np.asarray(positions.filter(pa.array(~kept))))
        left = own.filter(pa.array(kept))
        running.add(left.select([name for name in physical if name in piece.column_names]))
        rows += left.num_rows
    positions_gone = np.concatenate(gone) if gone else np.zeros(0, np.int64)
    if not len(positions_gone):
        return None
    masked = merged_ranges(base.source.masked, positions_gone)
    if len(masked) > MASKED_RANGES_MAX:
        raise InvalidInput(
            f"{shown_source(spec, base.path)} would have {len(masked):,} ranges of deleted rows, and {MASKED_RANGES_MAX:,} are possible. "
            "Nothing was deleted. Write that file again without the rows, and call refresh_files(on_change='replace')."
        )
    source = msgspec.structs.replace(base.source, masked=masked)
    bounds = {column_id: bound for column_id, bound in running.found().items() if column_id not in spec.statistics.never}
    return msgspec.structs.replace(base, rows=rows, bounds=bounds, adopted=msgspec.structs.replace(base.adopted, source=source))


def merged_ranges(ranges: Ranges, positions: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Ranges and positions that are in none of them, as ranges that are apart. positions: ascending, each once."""
    cuts = np.flatnonzero(np.diff(positions) > 1) + 1
    starts = positions[np.concatenate(([0], cuts))]
    ends = positions[np.concatenate((cuts - 1, [len(positions) - 1]))] + 1
    known = np.asarray(ranges, np.int64).reshape(-1, 2)
    every = np.concatenate((known, np.stack((starts, ends), axis=1)))
    every = every[np.argsort(every[:, 0], kind="stable")]
    first = np.concatenate(([True], every[1:, 0] > every[:-1, 1]))
    begins = np.flatnonzero(first)
    last = np.concatenate((begins[1:] - 1, [len(every) - 1]))
    return tuple((int(start), int(end)) for start, end in zip(every[begins, 0], every[last, 1], strict=True))


def places_where(rows: pa.Table, where: pc.Expression | None) -> pa.Array:
    """The places of the rows for which a filter is true."""
    numbers = pa.array(np.arange(rows.num_rows))
    if where is None:
        return numbers
    return rows.append_column(POSITION, numbers).filter(where).column(POSITION).combine_chunks()
