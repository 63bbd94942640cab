"""Checkpoints of a Delta log: all live files at one version, as one Parquet file, sorted by path.

A reader of the log begins at the newest one. So does the mirror, but it reads only the row groups that hold the files it asks for.
Files that were removed are not in it: only a VACUUM would need them, and none may run here.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fileio.contract import (
    Create,
    GetResult,
    ObjectMeta,
    OutcomeUnknown,
    Overwrite,
    PreconditionFailed,
    PutOutcome,
    Update,
    require_written,
)
from fileio.errors import NotFound, Unavailable
from objcat.datafile.prefetch import PrefetchedFile, chunk_spans
from objcat.mirror.delta.actions import APP, RESTART, DeltaAdd, DeltaMetadata, DeltaProtocol, DeltaVector, checkpoint_key, hint_key
from objcat.mirror.delta.features import DeltaSettings
from objcat.mirror.model import CorruptMirror, MirrorFolder

ROW_GROUP_ROWS = 4096
"""Files in one row group: about half a MiB. A lookup of one file reads one row group."""

AT_ONCE = 16
"""Row groups that are read at once."""
GAP_BYTES = 64 * 1024

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", _TEXTS),
        ("deletionVector", _VECTOR),
    ]
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("deletionVector", _VECTOR),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.field("element", pa.string()))),
        ("configuration", _TEXTS),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.field("element", pa.string()))),
        ("writerFeatures", pa.list_(pa.field("element", pa.string()))),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_SCHEMA = pa.schema([("txn", _TXN), ("add", _ADD), ("remove", _REMOVE), ("metaData", _METADATA), ("protocol", _PROTOCOL)])
_PATH = "add.path"
_PLAIN = ("path", "size", "modificationTime", "stats")
_MARKS = ("protocol.minReaderVersion", "metaData.id")


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The hint: the newest checkpoint when it was put.

    Args:
        version: Its version.
        size: Its actions.
        size_in_bytes: Its bytes.
        num_of_add_files: Its files.
    """

    version: int
    size: int
    size_in_bytes: int = 0
    num_of_add_files: int = 0


_HINTS = msgspec.json.Decoder(LastCheckpoint)


class DeltaCheckpoint:
    """One checkpoint in the store. Nothing is read before it is needed.

    Args:
        folder: The mirror.
        version: Its version.
        meta: Its object.
    """

    def __init__(self, folder: MirrorFolder, version: int, meta: ObjectMeta) -> None:
        self.version = version
        self.bytes = meta.size
        self._folder = folder
        self._meta = meta
        self._footer: pq.FileMetaData | None = None
        self._groups: list[tuple[str, str, int]] = []

    @property
    def rows(self) -> int:
        """Its actions."""
        with self._errors():
            return int(self._read_footer().num_rows)

    def settings(self) -> DeltaSettings:
        """Metadata and protocol. Raises CorruptMirror."""
        with self._errors():
            footer = self._read_footer()
            found: dict[str, Any] = {}
            for column, mark in (("protocol", _MARKS[0]), ("metaData", _MARKS[1])):
                numbers = [number for number in range(footer.num_row_groups) if not _is_null(footer.row_group(number), mark)]
                rows = chain.from_iterable(adds.to_pylist() for adds in self._read(numbers, column))
                found[column] = next(row for row in rows if row is not None)
            metadata = found["metaData"]
            metadata["format"] = {**metadata["format"], "options": dict(metadata["format"]["options"] or ())}
            metadata["configuration"] = dict(metadata["configuration"] or ())
            return DeltaSettings(_converted(metadata, DeltaMetadata), _converted(found["protocol"], DeltaProtocol))

    def find(self, paths: Collection[str]) -> dict[str, DeltaAdd]:
        """Those of some files that it has. Raises CorruptMirror."""
        with self._errors():
            wanted = sorted(paths)
            numbers = [
                number
                for least, greatest, number in self._ranges()
                if bisect.bisect_left(wanted, least) < bisect.bisect_right(wanted, greatest)
            ]
            found: dict[str, DeltaAdd] = {}
            for adds in self._read(numbers, "add"):
                mask = pc.is_in(adds.field("path"), value_set=pa.array(wanted, pa.string()))
                found |= {add.path: add for add in adds_of(adds.filter(mask))}
            return found

    def pieces(self) -> Iterator[pa.Array]:
        """All its files, a row group at a time. Raises CorruptMirror."""
        with self._errors():
            for adds in self._read([number for _, _, number in self._ranges()], "add"):
                yield adds.filter(adds.is_valid())

    def vectors(self) -> Iterator[set[DeltaVector]]:
        """The vectors of all its files, a row group at a time. Raises CorruptMirror."""
        with self._errors():
            for adds in self._read([number for _, _, number in self._ranges()], "add.deletionVector"):
                found = adds.field("deletionVector").to_pylist()
                yield {_converted(vector, DeltaVector) for vector in found if vector is not None and vector["storageType"] is not None}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            raise CorruptMirror(f"{self._meta.key} of the Delta mirror of {self._folder.name} is gone. {RESTART}") from error
        except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError, StopIteration, OSError) as error:
            why = f"{self._meta.key} of the Delta mirror of {self._folder.name} cannot be read ({error})."
            raise CorruptMirror(f"{why} {RESTART}") from error

    def _read_footer(self) -> pq.FileMetaData:
        if self._footer is None:
            with self._folder.fileio.open_read(self._meta.key, meta=self._meta) as stream:
                self._footer = pq.read_metadata(stream)
        return self._footer

    def _ranges(self) -> list[tuple[str, str, int]]:
        """Of each row group with files: the least and the greatest path, and its number."""
        if not self._groups:
            footer = self._read_footer()
            for number in range(footer.num_row_groups):
                group = footer.row_group(number)
                if _is_null(group, _PATH):
                    continue
                statistics = _statistics(group, _PATH)
                known = statistics is not None and statistics.has_min_max
                self._groups.append((statistics.min, statistics.max, number) if known else ("", "\U0010ffff", number))
        return self._groups

    def _read(self, numbers: Sequence[int], column: str) -> Iterator[pa.Array]:
        """A column of some row groups, or `column.field`: a column with that field alone. Several are read at once."""
        footer, size = self._read_footer(), self._meta.size
        names = [footer.schema.column(number).path for number in range(footer.num_columns)]
        leaves = [name for name in names if name.startswith(f"{column}.")]
        for begin in range(0, len(numbers), AT_ONCE):
            part = numbers[begin : begin + AT_ONCE]
            spans = chunk_spans(footer, part, leaves)
            found = self._folder.fileio.get_ranges(self._meta.key, spans, gap_bytes=GAP_BYTES)
            with pq.ParquetFile(PrefetchedFile(size, spans, found), metadata=footer, pre_buffer=False) as file:
                for number in part:
                    rows = file.read_row_group(number, columns=[column], use_threads=False)
                    yield pa.concat_arrays(rows.column(column.partition(".")[0]).chunks)


def _column_number(group: Any, path: str) -> int | None:
    return next((number for number in range(group.num_columns) if group.column(number).path_in_schema == path), None)


def _statistics(group: Any, path: str) -> Any:
    number = _column_number(group, path)
    return None if number is None else group.column(number).statistics


def _is_null(group: Any, path: str) -> bool:
    """Whether a column is certainly null in a whole row group."""
    statistics = _statistics(group, path)
    return statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows


def _converted(row: Mapping[str, Any], kind: Any) -> Any:
    return msgspec.convert({name: value for name, value in row.items() if value is not None}, kind)


def adds_of(adds: pa.Array) -> list[DeltaAdd]:
    """The files in a column of a checkpoint."""
    names = [field.name for field in adds.type]
    columns = [
        adds.field(name).to_pylist() if name in names else [None] * len(adds) for name in ("path", "size", "modificationTime", "stats")
    ]
    vectors = adds.field("deletionVector").to_pylist() if "deletionVector" in names else [None] * len(adds)
    return [
        DeltaAdd(
            path=path,
            partition_values={},
            size=size,
            modification_time=modified,
            data_change=False,
            stats=stats,
            deletion_vector=None if vector is None or vector["storageType"] is None else _converted(vector, DeltaVector),
        )
        for path, size, modified, stats, vector in zip(*columns, vectors, strict=True)
    ]


def array_of(adds: Iterable[DeltaAdd]) -> pa.Array:
    """Files as a column of a checkpoint."""
    rows: list[dict[str, Any]] = [
        {
            "path": add.path,
            "partitionValues": [],
            "size": add.size,
            "modificationTime": add.modification_time,
            "dataChange": False,
            "stats": add.stats,
            "deletionVector": None if add.deletion_vector is None else msgspec.to_builtins(add.deletion_vector),
        }
        for add in adds
    ]
    return pa.array(rows, _ADD)


def merged(pieces: Iterable[pa.Array], changed: Mapping[str, DeltaAdd | None]) -> Iterator[pa.Array]:
    """The files of an older checkpoint after some changes, sorted by path, a row group at a time.

    Args:
        pieces: Of the older checkpoint.
        changed: By path, files that are live now, or None for those that are not.
    """
    new = sorted(path for path, add in changed.items() if add is not None)
    gone = pa.array(sorted(changed), pa.string())
    taken = 0
    waiting: list[pa.Array] = []
    rows = 0
    for piece in pieces:
        old = piece if piece.type == _ADD else array_of(adds_of(piece))
        old = old.filter(pc.invert(pc.is_in(old.field("path"), value_set=gone)))
        last = pc.max(old.field("path")).as_py()
        until = taken if last is None else bisect.bisect_right(new, last, lo=taken)
        both = pa.concat_arrays([old, _added(changed, new[taken:until])])
        taken = until
        waiting.append(both.take(pc.sort_indices(both.field("path"))))
        rows += len(both)
        while rows >= ROW_GROUP_ROWS:
            whole = pa.concat_arrays(waiting)
            yield whole[:ROW_GROUP_ROWS]
            waiting, rows = [whole[ROW_GROUP_ROWS:]], rows - ROW_GROUP_ROWS
    if rows:
        waiting = [pa.concat_arrays(waiting)]
    for begin in range(taken, len(new), ROW_GROUP_ROWS):
        waiting.append(_added(changed, new[begin : begin + ROW_GROUP_ROWS]))
    rest = pa.concat_arrays(waiting) if waiting else array_of(())
    for begin in range(0, len(rest), ROW_GROUP_ROWS):
        yield rest[begin : begin + ROW_GROUP_ROWS]


def _added(changed: Mapping[str, DeltaAdd | None], paths: Iterable[str]) -> pa.Array:
    return array_of(add for add in map(changed.get, paths) if add is not None)


def write_checkpoint(
    folder: MirrorFolder, version: int, settings: DeltaSettings, pieces: Iterable[pa.Array], *, time_ms: int
) -> tuple[DeltaCheckpoint, int]:
    """Put the checkpoint of a version, unless there is one already: it says the same.

    Args:
        folder: The mirror.
        version: Its version.
        settings: Metadata and protocol.
        pieces: All live files, sorted by path, a row group at a time.
        time_ms: The commit time of the version.

    Returns:
        The checkpoint, and its number of files.
    """
    fileio = folder.fileio
    key = checkpoint_key(folder, version)
    mode = Create() if fileio.capabilities.conditional_complete else Overwrite()
    files = 0
    with fileio.open_write(key, mode) as stream:
        with pq.ParquetWriter(stream, _SCHEMA, write_statistics=[_PATH, *_MARKS, "txn.appId"], use_dictionary=False) as writer:
            writer.write_table(_settings_rows(version, settings, time_ms))
            for piece in pieces:
                empty = {field.name: pa.nulls(len(piece), field.type) for field in _SCHEMA if field.name != "add"}
                writer.write_table(pa.table({**empty, "add": piece}).select(_SCHEMA.names), row_group_size=ROW_GROUP_ROWS)
                files += len(piece)
        outcome: PutOutcome = stream.finish()
    if isinstance(outcome, OutcomeUnknown):
        require_written(outcome, f"{key!r}")
    return DeltaCheckpoint(folder, version, fileio.head(key)), files


def _settings_rows(version: int, settings: DeltaSettings, time_ms: int) -> pa.Table:
    """The actions that are no files: they are the first row group."""
    metadata = msgspec.to_builtins(settings.metadata)
    metadata["configuration"] = list(settings.metadata.configuration.items())
    metadata["format"] = {"provider": settings.metadata.format.provider, "options": []}
    rows: list[dict[str, Any]] = [
        {"protocol": msgspec.to_builtins(settings.protocol)},
        {"metaData": metadata},
        {"txn": {"appId": APP, "version": version, "lastUpdated": time_ms}},
    ]
    return pa.table({field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in _SCHEMA})


def read_hint(folder: MirrorFolder) -> tuple[LastCheckpoint | None, Callable[[bytes], PutOutcome]]:
    """The hint, None if there is none or it makes no sense. And a function that replaces just this one."""
    fileio, key = folder.fileio, hint_key(folder)
    try:
        result = fileio.get(key)
    except NotFound:
        return None, lambda data: fileio.put(key, data, Create())
    assert isinstance(result, GetResult)
    version = result.meta.version
    try:
        hint = _HINTS.decode(result.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        hint = None
    return hint, lambda data: fileio.put(key, data, Update(version))


def advance_hint(folder: MirrorFolder, checkpoint: DeltaCheckpoint, *, files: int) -> None:
    """Let the hint name a checkpoint, unless it names a newer one.

    Raises:
        Unavailable: Others changed it each time.
        NotWritten: It is not known whether it was put.
    """
    said = LastCheckpoint(version=checkpoint.version, size=files + 3, size_in_bytes=checkpoint.bytes, num_of_add_files=files)
    for _ in range(5):
        hint, replace = read_hint(folder)
        if hint is not None and hint.version >= checkpoint.version:
            return
        outcome = replace(msgspec.json.encode(said))
        if not isinstance(outcome, PreconditionFailed):
            require_written(outcome, f"{hint_key(folder)!r}")
            return
    raise Unavailable(f"{hint_key(folder)} could not be put: other processes changed it each time.")
