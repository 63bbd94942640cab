"""The doctor's checks of data files: they exist, are as committed, and hold the right rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.contract import ObjectMeta
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.common.memory_errors import is_full
from objcat.datafile.bucket_hash import bucket_of, key_digests
from objcat.datafile.in_place import located, shown_source
from objcat.datafile.parquet import base_pieces, constant, read_base, read_log
from objcat.datafile.verification import DataFile
from objcat.errors import ObjcatError
from objcat.inspection.findings import Examination
from objcat.inspection.verify_files import verify_all
from objcat.metadata.file_digest import is_verifiable
from objcat.metadata.files import BaseFile, FileGroup, LogObject, SourceObject, decode_delta
from objcat.metadata.partition_values import partitions_of
from objcat.metadata.partitioning import shape_of
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.tasks.key_index import all_entries
from objcat.tasks.key_lookup import LocateTask
from objcat.tasks.partition_moves import living_keys
from objcat.tasks.row_order import lies_otherwise
from objcat.timeline.entry import FileGroupId
from objcat.timeline.log_view import LogView

F = TypeVar("F", BaseFile, LogObject)


def check_files(own: Examination, view: LogView[Tables]) -> dict[str, DataFile]:
    """P7: every file of a readable snapshot exists, with the size in its entry. Returns these files."""
    files: dict[str, DataFile] = {}
    for table in view.state:
        marks = view.log.marks(table)
        needed: dict[str, DataFile] = {}
        spec = view.state[table].spec
        newest = Snapshot(view.log, view.state[table]).paths(own.manifests) if spec.is_in_place else frozenset()
        starts = {slot for slot in (*marks.saved, min(marks.bound, view.slot)) if slot >= 0}
        for slot in sorted(starts):
            then = own.timeline.at(slot)
            state = then.state.get(table)
            # At a slot where the table is dropped no row is readable, so no file is needed.
            if state is not None and then.log.marks(table).closed_at is None:
                needed |= named_files(Snapshot(view.log, state).all_groups(own.manifests))
        for entry in own.entries:
            if entry.slot > marks.bound and table in entry.changes:
                delta = decode_delta(entry.changes[table])
                needed |= {
                    file.path: file for added in delta.files for file in (added.data_files if isinstance(added, BaseFile) else [added])
                }
        for path, file in needed.items():
            size = file.bytes
            if isinstance(file, BaseFile) and file.source is not None:
                _check_source(own, spec, file, file.source, is_live=path in newest)
                continue
            found = own.listed.get(path) or head_of_file(own.fileio, path)
            if found is None:
                own.report.broken(
                    "P7", path, f"is missing although a readable snapshot of table {table} needs it. Its rows cannot be read."
                )
            elif found.size != size:
                own.report.broken("P7", path, f"has {found.size:,} bytes, and {size:,} were committed. It is not the file of that commit.")
        own.report.counts["files"] += len(needed)
        files |= needed
    return files


def _check_source(own: Examination, spec: TableSpec, file: BaseFile, source: SourceObject, *, is_live: bool) -> None:
    """A file in place that a readable snapshot needs is the one that was taken. Of older slots it may be gone: it is not ours."""
    store, key = located(own.fileio, spec, file.path)
    found = head_of_file(store, key)
    if found is None or (found.size, str(found.version)) != (file.bytes, source.version):
        says = "is missing" if found is None else "is another file than the one that was taken"
        shown = shown_source(spec, file.path)
        if is_live:
            remedy = "Call table.refresh_files(on_change='replace', on_missing='drop'), or put the file back."
            own.report.broken("P7", shown, f"{says}, and the newest snapshot needs it. Scans that need it fail.", remedy)
        else:
            own.report.leftover(shown, f"{says}, and older readable slots need it. Only reads of these fail.", "Clean these slots.")


def check_digests(own: Examination, files: Mapping[str, DataFile], tell: Callable[[str], None]) -> None:
    """P7 with `deep`: the bytes of every file have the digest in its entry."""
    known = [(path, file.bytes, file.digest) for path, file in sorted(files.items()) if is_verifiable(file.digest)]
    total = sum(size for _, size, _ in known)
    counts = own.report.counts
    counts["digests verified"], counts["files without a digest"] = 0, len(files) - len(known)

    def on_file(size: int) -> None:
        """Report progress."""
        counts["digests verified"] += 1
        counts["bytes"] += size
        tell(f"the bytes of the files: {counts['digests verified']:,} of {len(known):,} files, {counts['bytes']:,} of {total:,} bytes")

    for path, wrong in verify_all(own.fileio, known, on_file=on_file):
        own.report.broken("P7", path, f"is not the file that was committed: {wrong}")


def named_files(groups: Sequence[FileGroup]) -> dict[str, DataFile]:
    """The data files of some file groups by path."""
    files: dict[str, DataFile] = {file.path: file for group in groups if group.base is not None for file in group.base.data_files}
    return files | {rows.object.path: rows.object for group in groups for rows in group.logs}


def head_of_file(fileio: FileIO, key: str) -> ObjectMeta | None:
    """Metadata of an object, or None without it."""
    try:
        return fileio.head(key)
    except NotFound:
        return None


def check_row_places(own: Examination, snapshot: Snapshot) -> None:
    """P9 with `deep`: rows are in their partition and bucket, each key once in a base file, as many as the log says."""
    spec = snapshot.spec
    key = [column.physical for column in spec.key_columns]
    located = [*key, *(column.physical for column in spec.partition_columns if column.id not in spec.key)]
    columns = located or [spec.table_schema.columns[0].physical]
    for group in snapshot.file_groups(own.manifests):
        try:
            parts = [*_base_parts(own.fileio, group, columns, spec), *_log_parts(own.fileio, group, columns, spec)]
        except (ObjcatError, OSError, pa.ArrowException) as error:
            _check_memory(error)
            own.report.broken("P9", str(group.group_id), f"cannot be read: {error}")
            continue
        bases = {group.base.path} if group.base is not None else set[str]()
        for path, rows, expected, group_id in parts:
            own.report.counts["rows"] += rows.num_rows
            if rows.num_rows != expected:
                own.report.broken("P9", path, f"holds {rows.num_rows:,} rows of {group.group_id}, and {expected:,} were committed")
            if key and rows.num_rows and rows.group_by([pc.field(name) for name in key]).aggregate([]).num_rows != rows.num_rows:
                own.report.broken("P9", path, "holds a key twice", "Compact the table. The merge retains one row of each key.")
            if path in bases and key and not lies_otherwise(group) and not _is_sorted(rows, key):
                says = "is not sorted by key, and does not say so. A merge with log rows may take an old row for the newest."
                own.report.broken("P9", path, says, "Copy the rows to a new table. Report this as a bug.")
            # If keys move, a log row may be the delete of a key that moved away, or may have lost against a stored row.
            if (path in bases or not spec.is_global) and _strays(rows, spec, group_id):
                own.report.broken("P9", path, f"holds rows that do not belong to {group.group_id}. Lookups by key miss them.")


def _check_memory(error: Exception) -> None:
    """Raise the error again if memory ran out. A file that does not fit into memory is not damaged."""
    if is_full(error):
        raise error


def check_located(own: Examination, snapshot: Snapshot) -> None:
    """P9 with `deep`, without hash buckets: each key is in one file group of its partition or table.

    A record index must name that file group. Holds 8 bytes per key, and 16 more for an index.
    """
    spec = snapshot.spec
    groups = list(snapshot.file_groups(own.manifests))
    found, placed = [], []
    for group in groups:
        try:
            tables = list(living_keys(own.fileio, LocateTask(spec, (group,))))
        except (ObjcatError, OSError, pa.ArrowException) as error:
            _check_memory(error)
            return  # reported where its rows were checked
        for rows in tables:
            within = [] if spec.is_global else [constant(group.group_id.partition, rows.num_rows)]
            keys = [rows.column(column.physical) for column in spec.key_columns]
            found.append(key_digests([*within, *keys]))
            if snapshot.index is not None:
                partition, bucket = (
                    constant(group.group_id.partition, rows.num_rows),
                    np.full(rows.num_rows, group.group_id.bucket, np.int32),
                )
                placed.append(key_digests([*keys, partition, pa.array(bucket)]))
    digests = np.concatenate(found) if found else np.zeros(0, np.uint64)
    twice = len(digests) - len(np.unique(digests))
    if twice:
        own.report.broken("P9", f"table {spec.table}", f"holds {twice:,} keys in two file groups each, by digests of 64 bits")
    if snapshot.index is not None:
        _check_index(own, snapshot.index, np.concatenate(placed) if placed else np.zeros(0, np.uint64))


def _check_index(own: Examination, index: Snapshot, placed: npt.NDArray[np.uint64]) -> None:
    """A record index names the file group of every stored key. An extra entry is allowed. A missing one lets writers add the key twice.

    placed: digests of stored keys with their file groups.
    """
    known = [np.zeros(0, np.uint64)]
    for group in index.file_groups(own.manifests):
        try:
            rows = all_entries(own.fileio, index.spec, group)
        except (ObjcatError, OSError, pa.ArrowException) as error:
            _check_memory(error)
            own.report.broken("P9", str(group.group_id), f"of the record index cannot be read: {error}")
            return
        known.append(key_digests(rows.columns))
    missing = int((~np.isin(placed, np.concatenate(known))).sum())
    own.report.counts["keys in the index"] += sum(map(len, known))
    if missing:
        says = f"does not say, or says wrongly, where {missing:,} keys live. The next write of them would add them a second time."
        remedy = "Restore the newest slot before that, or copy the rows to a new table. Report this as a bug."
        own.report.broken("P9", f"the record index of table {index.spec.table}", says, remedy)


def _base_parts(
    fileio: FileIO, group: FileGroup, columns: Sequence[str], spec: TableSpec
) -> Iterator[tuple[str, pa.Table, int, FileGroupId]]:
    base: BaseFile | None = group.base
    if base is not None:
        if base.source is not None:
            parts = list(base_pieces(fileio, base, columns, spec=spec))
            rows = pa.concat_tables(parts) if parts else spec.table_schema.to_arrow_physical(nullable=True, only=columns).empty_table()
        else:
            rows = read_base(fileio, base, columns, spec.table_schema)
        yield base.path, rows, base.rows, base.group_id


def _log_parts(
    fileio: FileIO, group: FileGroup, columns: Sequence[str], spec: TableSpec
) -> Iterator[tuple[str, pa.Table, int, FileGroupId]]:
    for rows in group.logs:
        (table,) = read_log(fileio, rows.object, [(rows.start, rows.end)], columns, spec.table_schema)
        yield rows.object.path, table, rows.end - rows.start, rows.group_id


def _is_sorted(rows: pa.Table, key: Sequence[str]) -> bool:
    order = pc.sort_indices(rows.select(list(key)), sort_keys=[(pc.field(name), "ascending") for name in key])
    return bool(np.array_equal(np.asarray(order), np.arange(rows.num_rows)))


def _strays(rows: pa.Table, spec: TableSpec, group_id: FileGroupId) -> bool:
    """Whether a row is of another partition or bucket than the file group it was written for.

    That file group may have been split since. Its rows then belong to several current ones.
    """
    if rows.num_rows == 0:
        return False
    shape = shape_of(group_id.partition)
    of_shape = [partitioning for partitioning in (spec.partitioning, *spec.former) if partitioning.shape == shape]
    found = {text for partitioning in of_shape for text in partitions_of(partitioning, (), (), spec.table_schema, rows).texts}
    if found != {group_id.partition}:
        return True
    if not spec.has_key or spec.is_located:
        return False
    return bool(
        np.any(bucket_of([rows.column(column.physical) for column in spec.bucket_columns], group_id.bucket_count) != group_id.bucket)
    )
