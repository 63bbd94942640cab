"""Checks that a data file is what was committed: compares its entry with its bytes, footer and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from fileio.contract import ObjectMeta, Version
from fileio.env import map_io
from fileio.errors import NotFound, ObjectChanged
from fileio.read_stream import ReadStream
from fileio.store import FileIO
from objcat.common.bounded_cache import BoundedCache
from objcat.common.memory_errors import is_full
from objcat.datafile.ordering_bounds import ordering_bounds
from objcat.errors import CorruptTable, InvalidInput
from objcat.metadata.file_digest import FileHash, digest_of, footer_digest_of, is_verifiable
from objcat.metadata.files import OUTER, BaseFile, FileGroup, LogObject
from objcat.metadata.manifest import CheckedFooter
from objcat.metadata.schema import Column

DataFile = BaseFile | LogObject

FOOTERS_MAX = 64
"""Files whose footers are checked before another reader reads them. Base files beyond it are not checked."""
_KEPT_BYTES = 100
TAIL_BYTES = 64 * 1024
"""Bytes read first from the end of a file. Most footers are shorter."""
PIECE_BYTES = 8 * 1024**2
"""Bytes per request when a file is read for its digest only."""
_TRAILER_BYTES, _MAGIC = 8, b"PAR1"


@contextmanager
def reading(fileio: FileIO, file: DataFile) -> Iterator[None]:
    """Context that turns a missing or replaced file into CorruptTable."""
    try:
        yield
    except ObjectChanged as error:
        raise CorruptTable(not_as_committed(fileio, file, str(error))) from error
    except NotFound as error:
        if file.path.startswith(f"{OUTER}/") and fileio.outer_url is None:
            raise InvalidInput(
                f"The table at {fileio.url} names adopted files such as {file.path}, which are of its lake, and it was opened without "
                "that. Nothing was read. Open it by its name in the lake, objcat.connect(url).table(name), or by its URL there."
            ) from error
        raise CorruptTable(
            f"{file.path} is missing in {fileio.url} although a commit names it. If a clean passed the slot that is read, as it may "
            "during a long job, read a newer slot. Else the table or that object was deleted by hand, and you must restore it from a "
            "backup."
        ) from error


@contextmanager
def decoding(fileio: FileIO, path: str) -> Iterator[None]:
    """Context that turns decoding errors of Arrow's reader into CorruptTable."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if is_full(error):
            raise
        raise CorruptTable(damaged(fileio, path, f"cannot be read as Parquet ({error})")) from error


def whole_bytes(fileio: FileIO, file: DataFile) -> bytes:
    """All bytes of a file in one request, verified if its digest is known. Raises CorruptTable and storage errors.

    It asks again if they are not what was committed, since what spoiled an answer may not do it twice.
    """
    data = fileio.read(file.path)
    found = _unlike(file, data)
    if found is not None:
        data = fileio.read(file.path)
        found = _unlike(file, data)
    if found is not None:
        raise CorruptTable(not_as_committed(fileio, file, found))
    return data


def _unlike(file: DataFile, data: bytes) -> str | None:
    """How the bytes differ from their entry, in words."""
    if len(data) != file.bytes:
        return f"a read gives {len(data)} bytes"
    if data[-4:] != _MAGIC:
        return "it is not a Parquet file"
    return _differing(file.digest, digest_of(data)) if is_verifiable(file.digest) else None


def _differing(known: str | None, found: str) -> str | None:
    return None if known == found else f"the digest of its bytes is {found}, and that of what was committed {known}"


def read_footer(fileio: FileIO, file: DataFile, stream: ReadStream) -> pq.FileMetaData:
    """The footer of a file, verified if its digest is known. One request, two for a long one. Raises CorruptTable and storage errors."""
    begin = max(0, file.bytes - TAIL_BYTES)
    stream.seek(begin)
    tail = stream.read()
    length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if tail[-4:] != _MAGIC or length > file.bytes:
        raise CorruptTable(damaged(fileio, file.path, "is not a Parquet file"))
    if length > len(tail):
        stream.seek(file.bytes - length)
        tail = stream.read()
    data = tail[-length:]
    if is_verifiable(file.footer) and footer_digest_of(data) != file.footer:
        found = f"the digest of its footer is {footer_digest_of(data)}, and that of what was committed {file.footer}"
        raise CorruptTable(not_as_committed(fileio, file, found))
    with decoding(fileio, file.path):
        return pq.read_metadata(pa.BufferReader(_MAGIC + data))


def check_footers(
    fileio: FileIO, groups: Iterable[FileGroup], checked: BoundedCache[CheckedFooter], *, ordering: Sequence[Column] = ()
) -> None:
    """Verify the footers of some file groups before readers that are not ours read them.

    So those readers find no replaced file, and none with another row count than its entry. Log objects are checked first, then base files,
    `FOOTERS_MAX` in all, one request per file. Raises CorruptTable and storage errors.

    checked: files that were checked before, which are skipped; with the bounds of the ordering columns, which are read again once a column
    has another type.
    """
    types = tuple(column.type for column in ordering)
    found: dict[str, DataFile] = {}
    listed = list(groups)
    files: list[DataFile] = [part.object for group in listed for part in group.logs]
    files += [group.base for group in listed if group.base is not None]
    for file in files:
        known = checked.get(file.path)
        if file.path not in found and (known is None or (types and known.types != types)):
            found[file.path] = file
        if len(found) == FOOTERS_MAX:
            break

    def check(file: DataFile) -> None:
        """Check one file."""
        with reading(fileio, file), fileio.open_read(file.path, meta=ObjectMeta(file.path, file.bytes, Version(""), 0)) as stream:
            footer = read_footer(fileio, file, stream)
            check_rows(fileio, file, footer)
        is_own = isinstance(file, LogObject) or file.adopted is None
        bounds = ordering_bounds(footer, footer.schema.to_arrow_schema(), ordering) if ordering and is_own else None
        kept_bytes = _KEPT_BYTES + (0 if bounds is None else 2 * len(repr(bounds)))
        checked.put(file.path, CheckedFooter(bounds, types), len(file.path) + kept_bytes)

    map_io(fileio.env, check, list(found.values()))


def check_rows(fileio: FileIO, file: DataFile, footer: pq.FileMetaData) -> None:
    """Compare the row counts of footer and entry before any row is read. Raises CorruptTable."""
    if footer.num_rows != file.rows:
        raise CorruptTable(not_as_committed(fileio, file, f"its footer counts {footer.num_rows:,} rows, and {file.rows:,} were committed"))
    if isinstance(file, LogObject):
        heights = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        if any(height != file.row_group_rows for height in heights[:-1]) or any(height > file.row_group_rows for height in heights):
            raise CorruptTable(not_as_committed(fileio, file, f"not every row group of it has {file.row_group_rows:,} rows"))


def check_count(fileio: FileIO, file: DataFile, rows: pa.Table, expected: int) -> pa.Table:
    """The rows of a read. Raises CorruptTable if their number is wrong."""
    if rows.num_rows != expected:
        raise CorruptTable(damaged(fileio, file.path, f"gives {rows.num_rows:,} rows where it says {expected:,}"))
    return rows


def why_damaged(fileio: FileIO, path: str, *, size: int, digest: str | None) -> str | None:
    """What is wrong with a file, after reading all of it in pieces. None if it is as committed, or no digest is known.

    size, digest: from its entry. Raises NotFound and storage errors.
    """
    if not is_verifiable(digest):
        return None
    found = FileHash()
    try:
        with fileio.open_read(path, meta=ObjectMeta(path, size, Version(""), 0)) as stream:
            while piece := stream.read(PIECE_BYTES):
                found.update(piece)
    except ObjectChanged as error:
        return str(error)
    return _differing(digest, found.text)


def not_as_committed(fileio: FileIO, file: DataFile, found: str) -> str:
    """The error for a file with other content than was committed."""
    return (
        f"{file.path} in {fileio.url} should have {file.bytes} bytes by the commit that names it, and be that very file, but {found}. "
        "Either the object was damaged, replaced or cut, or something on the way to the store cuts or changes answers. Read again over "
        "another network path. If the error stays, restore the object from a backup."
    )


def damaged(fileio: FileIO, path: str, found: str) -> str:
    """The error for a file whose content makes no sense."""
    return (
        f"{path} in {fileio.url} has the size that was committed, but {found}. Something else was written in its place, it was damaged, "
        "or something on the way to the store answers instead. Restore that object from a backup if the error stays."
    )
