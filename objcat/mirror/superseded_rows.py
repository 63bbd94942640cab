"""Finds the rows that a reader of a mirror must not see: positions of superseded rows in the data files of a file group.

Both formats mask these positions: `iceberg/positions.py` as position deletes, `iceberg/` and `delta/vectors.py` as vectors.

Only rows that can have the keys of the new rows are read, and of these only key and ordering value. The merge of `objcat.datafile.merge`
decides, as for a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.datafile.in_place_rows import POSITION
from objcat.datafile.lateness import drop_late_rows
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, OP_UPSERT, may_meet, winners
from objcat.datafile.open_files import WHOLE_BYTES_MAX
from objcat.datafile.parquet import picked_row_groups, read_log
from objcat.datafile.statistics import row_groups_that_may_match
from objcat.metadata.files import BaseFile, FileGroup, LogObject, LogSlice
from objcat.metadata.table_spec import TableSpec
from objcat.mirror.model import Positions
from objcat.tasks.key_lookup import KeySpan, ranges_of
from objcat.tasks.scan import bare, numbered, own_rows

CACHED_BYTES_MAX = 64 * 1024**2
"""Arrow bytes of keys of files that are cached. The next upserts of the same file groups look into them again."""
CACHED_BASE_BYTES_MAX = CACHED_BYTES_MAX // 32
"""Keys of a base file take at most that much in the cache."""


_Choice: TypeAlias = Callable[[pa.parquet.FileMetaData, pa.Schema], Sequence[int]]
"""Selects row groups by footer and schema."""
LogRange: TypeAlias = tuple[str, int, int]
"""The path of a log file, and a range of its rows."""


def range_of(part: LogSlice) -> LogRange:
    """The rows that a slice names."""
    return part.object.path, part.start, part.end


class SupersededRowReader:
    """Reads keys and their positions in data files. Remembers those of small files. Safe for many threads."""

    def __init__(self, fileio: FileIO) -> None:
        self._fileio = fileio
        self._cached: BoundedCache[pa.Table] = BoundedCache(bytes_max=CACHED_BYTES_MAX)

    def superseded(self, spec: TableSpec, group: FileGroup, fresh: Collection[LogSlice]) -> dict[str, Positions]:
        """By path, the rows of a file group that stop counting because of some of its log rows, and those of them that do not count.

        Rows that stopped counting before are left out. The table has a key. Raises CorruptTable and storage errors.

        Args:
            group: with all its log rows.
            fresh: those that were added.
        """
        found: dict[str, list[Positions]] = {}
        new = [self._of_slice(spec, group, part) for part in fresh]
        for part, rows in zip(fresh, new, strict=True):
            counting = drop_late_rows(rows, spec, part.committed_at_ms)
            if counting.num_rows < rows.num_rows:
                found.setdefault(part.object.path, []).append(np.setdiff1d(_positions(rows), _positions(counting)))
        keys = pa.concat_tables(new) if new else None
        if keys is None or not keys.num_rows:
            return _united(found)
        parts = list(self._with_keys(spec, group, {range_of(part) for part in fresh}, keys))
        rows = pa.concat_tables([rows for _, rows, _ in parts])
        is_fresh = np.concatenate([np.full(rows.num_rows, is_new) for _, rows, is_new in parts])
        lives = _live(rows, spec, np.arange(rows.num_rows))
        lived = _live(rows, spec, np.flatnonzero(~is_fresh))
        ended = (is_fresh | lived) & ~lives
        begin = 0
        for path, of_file, _ in parts:
            mask = ended[begin : begin + of_file.num_rows]
            begin += of_file.num_rows
            if mask.any():
                found.setdefault(path, []).append(_positions(of_file)[mask])
        return _united(found)

    def own_positions(self, spec: TableSpec, group: FileGroup, file: BaseFile | LogSlice) -> Positions:
        """The positions of the rows of a file that belong to a file group. All of the range, unless a split divided it."""
        if isinstance(file, LogSlice):
            return _positions(self._of_slice(spec, group, file)) if group.is_shared(file.group_id) else np.arange(file.start, file.end)
        if not group.is_shared(file.group_id):
            return np.arange(file.rows)
        names = [column.physical for column in spec.bucket_columns]
        pieces = [_positions(own_rows(rows, spec, group, file.group_id)) for rows in self._of_base(spec, file, names)]
        return np.concatenate([*pieces, np.zeros(0, np.int64)])

    def _with_keys(
        self, spec: TableSpec, group: FileGroup, fresh: Collection[LogRange], keys: pa.Table
    ) -> Iterator[tuple[str, pa.Table, bool]]:
        """The counting rows of each file that may have one of some keys, in the order in which they count: path, rows, whether fresh."""
        names = [column.physical for column in spec.key_columns]
        if group.base is not None:
            span = KeySpan(keys.num_rows, frozenset(), ranges_of(spec.key_columns, keys))
            pruning = span.pruning

            def wanted(footer: pa.parquet.FileMetaData, schema: pa.Schema) -> Sequence[int]:
                every = range(footer.num_row_groups)
                return every if pruning is None else row_groups_that_may_match(footer, schema, pruning, spec)

            for rows in self._keys_of_base(spec, group.base, wanted):
                own = own_rows(rows, spec, group, group.base.group_id)
                meeting = own.filter(may_meet(own, keys, names))
                op = pa.array(np.full(meeting.num_rows, OP_UPSERT, np.int8))
                at = meeting.column_names.index(POSITION)
                yield group.base.path, meeting.add_column(at, pa.field(OP_COLUMN, pa.int8()), op), False
        for part in group.logs:
            rows = drop_late_rows(self._of_slice(spec, group, part), spec, part.committed_at_ms)
            is_new = range_of(part) in fresh
            yield part.object.path, rows if is_new else rows.filter(may_meet(rows, keys, names)), is_new

    def _keys_of_base(self, spec: TableSpec, base: BaseFile, wanted: _Choice) -> Iterator[pa.Table]:
        """Key and ordering value of the chosen row groups, or of all rows if they are cached. A file that was read whole is cached."""
        columns = _columns(spec)
        name = f"{base.path} {_age_columns(spec)}"
        known = self._cached.get(name)
        if known is not None:
            yield known
            return
        held: list[pa.Table] | None = []
        held_bytes = held_rows = 0
        for rows in self._of_base(spec, base, columns, wanted):
            if held is not None:
                held_bytes, held_rows = held_bytes + rows.nbytes, held_rows + rows.num_rows
                held = [*held, rows] if held_bytes <= CACHED_BASE_BYTES_MAX else None
            yield rows
        if held and held_rows == base.rows:
            # Slices hold on to the whole of what was read, so they are copied.
            whole = pa.concat_tables(held).combine_chunks()
            self._cached.put(name, whole, whole.nbytes)

    def _of_base(
        self,
        spec: TableSpec,
        base: BaseFile,
        columns: Sequence[str],
        wanted: _Choice | None = None,
    ) -> Iterator[pa.Table]:
        """Columns of some row groups, all by default, with the positions of their rows."""
        chosen = wanted or (lambda footer, _: range(footer.num_row_groups))
        for first, rows in picked_row_groups(self._fileio, base, columns, spec.table_schema, chosen):
            yield numbered(bare(rows), first)

    def read_ahead(self, spec: TableSpec, logs: Collection[LogObject]) -> None:
        """Read small log files, each once, before several threads ask for their slices."""
        list(self._fileio.env.map(lambda log: self._whole_log(spec, log), [log for log in logs if log.bytes <= WHOLE_BYTES_MAX]))

    def _whole_log(self, spec: TableSpec, log: LogObject) -> pa.Table:
        name = f"{log.path} {_age_columns(spec)}"
        whole = self._cached.get(name)
        if whole is None:
            (whole,) = read_log(self._fileio, log, [(0, log.rows)], _columns(spec), spec.table_schema)
            self._cached.put(name, whole, whole.nbytes)
        return whole

    def _of_slice(self, spec: TableSpec, group: FileGroup, part: LogSlice) -> pa.Table:
        """Key, ordering value, operation and position of the rows of a slice that belong to a file group."""
        columns = _columns(spec)
        if part.object.bytes > WHOLE_BYTES_MAX:
            (rows,) = read_log(self._fileio, part.object, [(part.start, part.end)], columns, spec.table_schema)
        else:
            whole = self._whole_log(spec, part.object)
            rows = whole.slice(part.start, part.end - part.start)
        return own_rows(numbered(bare(rows), part.start), spec, group, part.group_id)


def _columns(spec: TableSpec) -> list[str]:
    """What the merge needs of a row."""
    return list(dict.fromkeys([*(column.physical for column in spec.key_columns), *spec.ordering_physical]))


def _age_columns(spec: TableSpec) -> str:
    """The ordering columns with their types. A type may become wider, while keys never change."""
    return str([(column.physical, column.type) for column in spec.ordering_columns]) if spec.ordering_ids else ""


def _positions(rows: pa.Table) -> Positions:
    return np.asarray(rows.column(POSITION).to_numpy(), dtype=np.int64)


def _live(rows: pa.Table, spec: TableSpec, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """By row, whether it exists after a merge of the chosen rows."""
    merged = rows.take(pa.array(chosen))
    won = winners(merged, key=[column.physical for column in spec.key_columns], ordering=spec.ordering_physical)
    op = np.asarray(merged.column(OP_COLUMN).to_numpy())
    lives = np.zeros(rows.num_rows, np.bool_)
    lives[chosen[won[op[won] != OP_DELETE]]] = True
    return lives


def _united(found: Mapping[str, Sequence[Positions]]) -> dict[str, Positions]:
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}
