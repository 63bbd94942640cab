"""Checks of what the log says of a table: its settings, and what one entry changes.

They raise CorruptTable that names the field. Types and ranges of single numbers are checked when JSON is decoded. Here are the checks
across several fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from objcat.errors import CorruptTable, InvalidInput, InvalidSchema, UnsupportedFormat
from objcat.metadata.column_defaults import FEATURE, decode_default, has_defaults, is_said
from objcat.metadata.column_parts import fields_within
from objcat.metadata.derived import DERIVED_FEATURE, definition_of
from objcat.metadata.files import OUTER, Adoption, BaseFile, LogObject, SourceObject, TableDelta
from objcat.metadata.in_place import (
    FORMATS,
    IN_PLACE_FEATURE,
    PRECOMPUTED_FEATURE,
    PRECOMPUTED_FIELDS_FEATURE,
    PROMOTED_FEATURE,
    SOURCES,
    FilesInPlace,
)
from objcat.metadata.key_index_table import INDEX_PARTITION
from objcat.metadata.ordering import ORDERING_FEATURE, TIMES, WITHOUT_ORDER
from objcat.metadata.partitioning import TRANSFORMS, TRUNCATE, transforms_of
from objcat.metadata.properties import check_properties
from objcat.metadata.schema import Column, StructType, arrow_type, type_text, walk
from objcat.metadata.table_spec import KEY_SCOPES, TABLE_TYPES, BucketIndexSpec, NoIndex, TableSpec
from objcat.metadata.watermark import Watermark, watermark_value
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.entry import FORMAT_VERSION, Action, Entry, FileGroupId, Footprint, data_prefix, is_path, log_key
from objcat.timeline.json_objects import RESTORE


def check_delta(delta: TableDelta, entry: Entry, table: str) -> None:
    """Check what an entry changes in one table.

    Files must be of its own transaction, rows must be in their files, and file groups must be in its footprint.
    """
    where = f"{log_key(entry.slot)}: changes.{table}"
    if delta.as_of is not None and delta.as_of >= entry.slot:
        raise _wrong(f"{where}.as_of", delta.as_of, f"a slot below its own, {entry.slot}")
    _check_files(delta, entry, where, partition=None)
    for path in delta.removes:
        if not path.startswith(("data/", f"{OUTER}/")) or not is_path(path):
            raise _wrong(f"{where}.removes", path, f"files below data/, or adopted files below {OUTER}/")
    if delta.index is not None:
        if delta.index.spec is not None or delta.index.splits or delta.index.retires or delta.index.index is not None:
            raise _wrong(f"{where}.index", "a spec, splits, retirements or an index of its own", "`bases`, `as_of` and `logs`")
        _check_files(delta.index, entry, f"{where}.index", partition=INDEX_PARTITION)
    if delta.spec is not None:
        check_spec(delta.spec, table, where=f"{where}.spec")
        if has_defaults(delta.spec.table_schema) and not FEATURE.keys() <= entry.features.keys():
            expected = f"{min(FEATURE)!r} among them, since a column has a default"
            raise _wrong(f"{log_key(entry.slot)}: features", sorted(entry.features), expected)
        if delta.spec.ordering_more and not ORDERING_FEATURE.keys() <= entry.features.keys():
            expected = f"{min(ORDERING_FEATURE)!r} among them, since the table has several ordering columns"
            raise _wrong(f"{log_key(entry.slot)}: features", sorted(entry.features), expected)
        if isinstance(delta.spec.in_place, FilesInPlace) and not IN_PLACE_FEATURE.keys() <= entry.features.keys():
            expected = f"{min(IN_PLACE_FEATURE)!r} among them, since the files of the table are in place"
            raise _wrong(f"{log_key(entry.slot)}: features", sorted(entry.features), expected)
        # An entry that changes such a spec follows one that names the feature.
        if (
            definition_of(delta.spec) is not None
            and entry.action is Action.CREATE
            and not DERIVED_FEATURE.keys() <= entry.writer_features.keys()
        ):
            expected = f"{min(DERIVED_FEATURE)!r} among them, since the table is derived"
            raise _wrong(f"{log_key(entry.slot)}: writer_features", sorted(entry.writer_features), expected)
    _check_footprint(delta, _written(delta), entry.footprint.get(table), f"{log_key(entry.slot)}: footprint.{table}")


def check_own(delta: TableDelta, candidate: CommitAttempt, table: str) -> None:
    """Check what a writer is about to commit as every reader will check it, since a slot is never deleted.

    Raises TypeError before the slot is claimed, when readers would refuse it.
    """
    base = candidate.base.slot
    entry = Entry(
        format=FORMAT_VERSION,
        slot=base + 1,
        action=candidate.action,
        txn=candidate.txn,
        base=base,
        committed_at_ms=0,
        footprint=dict(candidate.footprint),
        features=dict(candidate.features),
    )
    try:
        check_delta(delta, entry, table)
    except CorruptTable as error:
        raise TypeError(
            f"{candidate.txn} would commit what no reader takes ({error}). Nothing was written. Report this as a bug in objcat."
        ) from error


def _check_files(delta: TableDelta, entry: Entry, where: str, *, partition: str | None) -> None:
    own = tuple(map(data_prefix, entry.txns))
    files: list[BaseFile | LogObject] = [*delta.bases, *delta.logs]
    for file in files:
        adopted = file.adopted if isinstance(file, BaseFile) else None
        if adopted is not None:
            _check_adopted(file.path, adopted, entry, where, partition)
        elif not file.path.startswith(own) or not is_path(file.path):
            raise _wrong(f"{where}: the path of a file", file.path, f"below {own[0]}, the files of its transaction")
    for base in delta.bases:
        if base.promoted is not None:
            _check_promoted(base, base.promoted, entry, where)
        _check_group(base.group_id, f"{where}.bases of {base.path}", partition)
        _check_nulls(base, where)
    if len(delta.bases) > 1 and len({base.group_id for base in delta.bases}) < len(delta.bases):
        twice = Counter(base.group_id for base in delta.bases).most_common(1)[0][0]
        raise _wrong(f"{where}.bases", f"two base files of {twice}", "one base file of each file group")
    for log in delta.logs:
        end, rows = 0, log.rows
        before: FileGroupId | None = None
        for part in log.slices:
            group_id = part.group_id
            if not end <= part.start < part.end <= rows:
                expected = f"one after another within the {rows:,} rows of the file"
                raise _wrong(f"{where}.logs: file groups of {log.path}", f"rows {part.start:,} to {part.end:,} after row {end:,}", expected)
            if (
                group_id == before
                or group_id.bucket >= group_id.bucket_count
                or (partition is not None and group_id.partition != partition)
            ):
                raise _wrong(f"{where}.logs: file groups of {log.path}", group_id, "file groups that there can be, each once")
            end, before = part.end, group_id
        _check_nulls(log, where)
    for group_id in delta.retires:
        _check_group(group_id, f"{where}.retires", partition)


def _check_adopted(path: str, adopted: Adoption, entry: Entry, where: str, partition: str | None) -> None:
    if adopted.source is not None:
        _check_in_place(path, adopted.source, entry, where)
        return
    if not path.startswith(f"{OUTER}/") or not is_path(path):
        raise _wrong(f"{where}: the path of an adopted file", path, f"below {OUTER}/, the files of the lake")
    if adopted.txn != entry.txn:
        raise _wrong(f"{where}: the transaction of {path}", adopted.txn, f"that of its entry, {entry.txn}")
    if partition is not None:
        raise _wrong(f"{where}: the path of a file", path, "no adopted file, since it is of a record index")


def _check_promoted(base: BaseFile, promoted: str, entry: Entry, where: str) -> None:
    if base.adopted is not None or not promoted.startswith(f"{SOURCES}/"):
        raise _wrong(f"{where}: what {base.path} was", promoted, f"a file in place, below {SOURCES}/, whose rows a file of the table has")
    if not PROMOTED_FEATURE.keys() <= entry.features.keys():
        expected = f"{min(PROMOTED_FEATURE)!r} among them, since {base.path} was a file in place"
        raise _wrong(f"{log_key(entry.slot)}: features", sorted(entry.features), expected)


def _check_in_place(path: str, source: SourceObject, entry: Entry, where: str) -> None:
    folder, number, key = (*path.split("/", 2), "", "")[:3]
    if folder != SOURCES or not number.isdecimal() or not key or not is_path(path):
        raise _wrong(f"{where}: the path of a file in place", path, f"below {SOURCES}/, a number and its key in that source")
    if not source.version:
        raise _wrong(f"{where}: the version of {path}", source.version, "that of the object")
    end = -1
    for start, after in source.masked:
        if not end < start < after:
            raise _wrong(f"{where}: masked rows of {path}", [start, after], f"a range above row {end}, apart from those before")
        end = after
    if source.precomputed is None:
        return
    if not PRECOMPUTED_FEATURE.keys() <= entry.features.keys():
        expected = f"{min(PRECOMPUTED_FEATURE)!r} among them, since columns of {path} are precomputed"
        raise _wrong(f"{log_key(entry.slot)}: features", sorted(entry.features), expected)
    if source.precomputed.fields and not PRECOMPUTED_FIELDS_FEATURE.keys() <= entry.features.keys():
        expected = f"{min(PRECOMPUTED_FIELDS_FEATURE)!r} among them, since fields of {path} are precomputed"
        raise _wrong(f"{log_key(entry.slot)}: features", sorted(entry.features), expected)
    if not source.precomputed.path.startswith("data/") or not is_path(source.precomputed.path):
        raise _wrong(f"{where}: the precomputed columns of {path}", source.precomputed.path, "a file below data/")


def _check_group(group_id: FileGroupId, where: str, partition: str | None) -> None:
    if group_id.bucket >= group_id.bucket_count:
        raise _wrong(where, group_id, "a file group whose bucket is below its bucket count")
    if partition is not None and group_id.partition != partition:
        raise _wrong(where, group_id, f"a file group of the partition {partition!r}")


def _check_nulls(file: BaseFile | LogObject, where: str) -> None:
    for column, bound in file.bounds.items():
        if bound[2] > file.rows:
            raise _wrong(f"{where}: bounds of column {column} of {file.path}", f"{bound[2]:,} nulls", f"at most its {file.rows:,} rows")


def _written(delta: TableDelta) -> set[FileGroupId]:
    """The file groups that an entry writes to, or ends."""
    written = {base.group_id for base in delta.bases}
    for log in delta.logs:
        written.update(part.group_id for part in log.slices)
    written.update(delta.retires)
    if delta.index is not None:
        # Log rows of the index are in no footprint; its base files are.
        written.update(base.group_id for base in delta.index.bases)
    return written


def _check_footprint(delta: TableDelta, written: set[FileGroupId], footprint: Footprint | None, where: str) -> None:
    """The file groups of the footprint must be those that the changes write to."""
    said: set[FileGroupId] = set()
    if footprint is not None:
        said.update(footprint.creates, footprint.appends, footprint.replaces, footprint.retires)
    if said != written:
        missing = next(iter(written - said), None)
        found = f"nothing of {missing}" if missing is not None else f"{next(iter(said - written))}"
        raise _wrong(where, found, "the file groups that `changes` write to, and no others")
    if footprint is not None and footprint.splits != delta.splits:
        raise _wrong(f"{where}.splits", footprint.splits, f"what `changes` say, {delta.splits}")


def check_spec(spec: TableSpec, table: str, *, where: str) -> None:
    """Check that the settings of a table agree with themselves. Raises UnsupportedFormat for a type of a newer objcat."""
    schema = spec.table_schema
    if spec.table != table:
        raise _wrong(f"{where}.table", spec.table, f"the id of its table, {table}")
    _check_columns(schema.columns, where, last_id=schema.last_id)
    known = {column.id: column for column in schema.columns}
    sources = [field.column for one in (spec.partitioning, *spec.former) for field in one.fields]
    ordering = spec.ordering_ids
    for field, ids in (("key", spec.key), ("ordering", ordering), ("index.columns", spec.index.columns), ("partitioning", sources)):
        for column_id in ids:
            if column_id not in known or not isinstance(known[column_id].type, str):
                raise _wrong(f"{where}.{field}", column_id, f"ids of plain columns of the table, which has {sorted(known)}")
    if len(set(spec.key)) < len(spec.key):
        raise _wrong(f"{where}.key", spec.key, "columns, each once")
    if isinstance(spec.index, BucketIndexSpec) and not 0 < len(spec.index.columns) == len({*spec.index.columns} & {*spec.key}):
        raise _wrong(f"{where}.index.columns", spec.index.columns, f"some of the columns of the key, {spec.key}")
    if isinstance(spec.index, NoIndex) == spec.has_key:
        raise _wrong(f"{where}.index", spec.index, "of type `none` in a table without a key, and only there")
    if spec.table_type not in TABLE_TYPES:
        raise _wrong(f"{where}.kind", spec.table_type, f"one of {', '.join(TABLE_TYPES)}")
    if spec.key_scope not in KEY_SCOPES:
        raise _wrong(f"{where}.key_scope", spec.key_scope, f"one of {', '.join(KEY_SCOPES)}")
    _check_ordering(spec, known, where)
    _check_watermark(spec, where)
    if spec.lateness_ms is not None and (not ordering or known[ordering[0]].type not in TIMES):
        raise _wrong(f"{where}.lateness_ms", spec.lateness_ms, f"null, unless the ordering column is one of {', '.join(TIMES)}")
    _check_partitionings(spec, known, where)
    if isinstance(spec.in_place, FilesInPlace):
        _check_settings_in_place(spec, spec.in_place, known, where)
    try:
        check_properties(spec.properties)
    except InvalidInput as error:
        raise CorruptTable(f"{where}.properties: {error} {RESTORE}") from error


def _check_settings_in_place(spec: TableSpec, in_place: FilesInPlace, known: dict[int, Column], where: str) -> None:
    if spec.has_key:
        raise _wrong(f"{where}.in_place", "the settings of files", "null in a table with a key")
    if in_place.format not in FORMATS:
        raise UnsupportedFormat(f"{where}.in_place: this objcat does not know files of the format {in_place.format!r}. Upgrade objcat.")
    if in_place.promoted:
        return
    if set(in_place.precompute) - {column.id for column in spec.table_schema.columns}:
        raise _wrong(f"{where}.in_place.precompute", list(in_place.precompute), f"ids of columns of the table, which has {sorted(known)}")
    fields = {path[-1].id for path in fields_within(spec.table_schema.columns)}
    if set(in_place.precompute_fields) - fields:
        raise _wrong(f"{where}.in_place.precompute_fields", list(in_place.precompute_fields), f"ids of fields of structs: {sorted(fields)}")
    for column_id in in_place.path_columns:
        if column_id not in known or not isinstance(known[column_id].type, str):
            raise _wrong(f"{where}.in_place.path_columns", column_id, f"ids of plain columns of the table, which has {sorted(known)}")


def _check_ordering(spec: TableSpec, known: dict[int, Column], where: str) -> None:
    if spec.ordering_more and spec.ordering is None:
        raise _wrong(f"{where}.ordering_more", spec.ordering_more, "absent, without an ordering column")
    if len(set(spec.ordering_ids)) < len(spec.ordering_ids):
        raise _wrong(f"{where}.ordering_more", spec.ordering_more, "columns, each once, and not the first ordering column")
    for column_id in spec.ordering_ids:
        if known[column_id].type in WITHOUT_ORDER:
            raise _wrong(f"{where}.ordering", known[column_id].type, "a column with an order")


def _check_watermark(spec: TableSpec, where: str) -> None:
    if not isinstance(spec.watermark, Watermark):
        return
    ordering = spec.ordering_column
    if ordering is None:
        raise _wrong(f"{where}.watermark", spec.watermark.value, "null, without an ordering column")
    try:
        watermark_value(spec.watermark, ordering)
    except ValueError as error:
        raise _wrong(f"{where}.watermark", spec.watermark.value, f"a {ordering.type}") from error


def _check_columns(columns: Sequence[Column], where: str, *, last_id: int) -> None:
    every = list(walk(tuple(columns)))
    if not columns:
        raise _wrong(f"{where}.table_schema.columns", [], "at least one column")
    ids = {column.id for column in every}
    if len(ids) < len(every) or max(ids) > last_id:
        column_id, count = next(pair for pair in Counter(column.id for column in every).items() if pair[1] > 1 or pair[0] > last_id)
        found = f"{count} columns with the id {column_id}"
        raise _wrong(f"{where}.table_schema", found, f"ids up to `last_id`, {last_id}, each once")
    for neighbours in (columns, *(column.type.fields for column in every if isinstance(column.type, StructType))):
        for kind, names in (("name", [column.name for column in neighbours]), ("physical", [column.physical for column in neighbours])):
            if not names or "" in names or len(set(names)) < len(names):
                expected = "texts, each once among its neighbours"
                raise _wrong(f"{where}.table_schema: the {kind} names of columns", [*Counter(names).elements()], expected)
    for column in columns:
        try:
            arrow_type(column.type)
        except InvalidSchema as error:
            raise UnsupportedFormat(f"{where}.table_schema: the column {column.name!r}: {error}") from error
        except ValueError as error:  # of a decimal
            raise _wrong(
                f"{where}.table_schema: the type of {column.name!r}", column.type, f"a type that there can be ({error})"
            ) from error
    for column in every:
        for kind, value in (("initial_default", column.initial_default), ("write_default", column.write_default)):
            if not is_said(value):
                continue
            if column not in columns:
                inside = f"{where}.table_schema: the {kind} of the field {column.name!r}"
                raise _wrong(inside, value, "null, since only columns have defaults")
            try:
                decode_default(value, column.type)
            except ValueError as error:
                raise _wrong(f"{where}.table_schema: the {kind} of {column.name!r}", value, f"a {type_text(column.type)}") from error


def _check_partitionings(spec: TableSpec, known: dict[int, Column], where: str) -> None:
    for partitioning in (spec.partitioning, *spec.former):
        for field in partitioning.fields:
            if field.transform not in TRANSFORMS:
                expected = f"one of {', '.join(TRANSFORMS)}"
                raise UnsupportedFormat(
                    f"{where}.partitioning: {field.name!r} has the transform {field.transform!r}. "
                    f"This objcat knows {expected}. Upgrade objcat."
                )
            if field.transform not in transforms_of(known[field.column]):
                raise _wrong(f"{where}.partitioning: {field.name}", field.transform, f"a transform of a {known[field.column].type}")
            if (field.transform == TRUNCATE) != (field.width > 0):
                raise _wrong(f"{where}.partitioning: {field.name}.width", field.width, "above 0 for `truncate`, and 0 for the others")
    shapes = Counter(partitioning.shape for partitioning in (spec.partitioning, *spec.former))
    if max(shapes.values()) > 1:
        raise _wrong(f"{where}.former", shapes.most_common(1)[0][0], "partitionings with other names than the others of the table")


def _wrong(field: str, found: object, expected: str) -> CorruptTable:
    shown = str(found) if isinstance(found, FileGroupId) else repr(found)
    return CorruptTable(f"{field} says {shown}. It must be {expected}. {RESTORE}")
