"""Whether a data file is what was committed: what its entry says of it, held against its bytes, its footer and what a read gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from objcat.errors import CorruptTable
from objcat.metadata.file_digest import FileHash, digest_of, footer_digest_of, is_verifiable
from objcat.metadata.files import BaseFile, FileGroup, LogObject

DataFile = BaseFile | LogObject

FOOTERS_MAX = 64
"""Of files that another reader is about to read: of tables of more files, base files that this leaves out are not looked at."""
_KEPT_BYTES = 100
TAIL_BYTES = 64 * 1024
"""Of the end of a file that are read at first: most footers are shorter."""
PIECE_BYTES = 8 * 1024**2
"""Of a file that is read for nothing but its digest."""
_TRAILER_BYTES, _MAGIC = 8, b"PAR1"


@contextmanager
def reading(fileio: FileIO, file: DataFile) -> Iterator[None]:
    """Errors of reading a file as those of the table: raises CorruptTable when it is missing or was replaced."""
    try:
        yield
    except ObjectChanged as error:
        raise CorruptTable(not_as_committed(fileio, file, str(error))) from error
    except NotFound as error:
        raise CorruptTable(
            f"{file.path} is missing in {fileio.url} although a commit names it: if a clean has passed the slot that is read, as it may "
            "beside a long job, read a newer one; else the table, or that object, was deleted by hand: restore it from a backup"
        ) from error


@contextmanager
def decoding(fileio: FileIO, path: str) -> Iterator[None]:
    """Errors of Arrow's own reader as those of the table: raises CorruptTable when a file cannot be decoded."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if is_full(error):
            raise
        raise CorruptTable(damaged(fileio, path, f"cannot be read as Parquet ({error})")) from error


def whole_bytes(fileio: FileIO, file: DataFile) -> bytes:
    """All bytes of a file, in one request, and verified where its digest is known. They are asked for once more when they are not what was
    committed: what spoils an answer may not do it twice. Raises CorruptTable, storage errors."""
    data = fileio.read(file.path)
    found = _unlike(file, data)
    if found is not None:
        data = fileio.read(file.path)
        found = _unlike(file, data)
    if found is not None:
        raise CorruptTable(not_as_committed(fileio, file, found))
    return data


def _unlike(file: DataFile, data: bytes) -> str | None:
    """What bytes have that their entry does not say of them, in words."""
    if len(data) != file.bytes:
        return f"a read gives {len(data)} bytes"
    if data[-4:] != _MAGIC:
        return "it is no Parquet file"
    return _differing(file.digest, digest_of(data)) if is_verifiable(file.digest) else None


def _differing(known: str | None, found: str) -> str | None:
    return None if known == found else f"the digest of its bytes is {found}, and that of what was committed {known}"


def read_footer(fileio: FileIO, file: DataFile, stream: ReadStream) -> pq.FileMetaData:
    """The footer of a file, verified where its digest is known: one request, two for a long one. Raises CorruptTable, storage errors."""
    begin = max(0, file.bytes - TAIL_BYTES)
    stream.seek(begin)
    tail = stream.read()
    length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if tail[-4:] != _MAGIC or length > file.bytes:
        raise CorruptTable(damaged(fileio, file.path, "no Parquet file"))
    if length > len(tail):
        stream.seek(file.bytes - length)
        tail = stream.read()
    data = tail[-length:]
    if is_verifiable(file.footer) and footer_digest_of(data) != file.footer:
        found = f"the digest of its footer is {footer_digest_of(data)}, and that of what was committed {file.footer}"
        raise CorruptTable(not_as_committed(fileio, file, found))
    with decoding(fileio, file.path):
        return pq.read_metadata(pa.BufferReader(_MAGIC + data))


def check_footers(fileio: FileIO, groups: Iterable[FileGroup], checked: BoundedCache[bool]) -> None:
    """Verify the footers of the files of some groups, for readers that are not ours: so they meet no file in the place of another, and none
    of other rows than its entry says.

    Those of log objects come first, then those of base files, `FOOTERS_MAX` in all; each file is one request. checked: files that were
    looked at before, which are not again. Raises CorruptTable, storage errors.
    """
    found: dict[str, DataFile] = {}
    listed = list(groups)
    files: list[DataFile] = [part.object for group in listed for part in group.logs]
    files += [group.base for group in listed if group.base is not None]
    for file in files:
        if file.path not in found and checked.get(file.path) is None:
            found[file.path] = file
        if len(found) == FOOTERS_MAX:
            break

    def check(file: DataFile) -> None:
        with reading(fileio, file), fileio.open_read(file.path, meta=ObjectMeta(file.path, file.bytes, Version(""), 0)) as stream:
            check_rows(fileio, file, read_footer(fileio, file, stream))
        checked.put(file.path, True, len(file.path) + _KEPT_BYTES)

    map_io(fileio.env, check, list(found.values()))


def check_rows(fileio: FileIO, file: DataFile, footer: pq.FileMetaData) -> None:
    """Raises CorruptTable when a footer counts other rows than the entry, before any row is read."""
    if footer.num_rows != file.rows:
        raise CorruptTable(not_as_committed(fileio, file, f"its footer counts {footer.num_rows:,} rows, and {file.rows:,} were committed"))
    if isinstance(file, LogObject):
        heights = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        if any(height != file.row_group_rows for height in heights[:-1]) or any(height > file.row_group_rows for height in heights):
            raise CorruptTable(not_as_committed(fileio, file, f"not every row group of it has {file.row_group_rows:,} rows"))


def check_count(fileio: FileIO, file: DataFile, rows: pa.Table, expected: int) -> pa.Table:
    """The rows that a read gave. Raises CorruptTable when they are not as many as they must be."""
    if rows.num_rows != expected:
        raise CorruptTable(damaged(fileio, file.path, f"gives {rows.num_rows:,} rows where it says {expected:,}"))
    return rows


def why_damaged(fileio: FileIO, path: str, *, size: int, digest: str | None) -> str | None:
    """Read a whole file, in pieces, and say what is wrong with it; None where it is what was committed, or no digest of it is known.

    size, digest: as its entry says. Raises NotFound, storage errors.
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
    """What is said of a file that is another one."""
    return (
        f"{file.path} in {fileio.url} should have {file.bytes} bytes by the commit that names it, and be that very file, but: {found}. "
        "Either the object was damaged, replaced or cut, or something on the way to the store cuts answers or changes them: read again "
        "over another way, and restore it from a backup if it stays so"
    )


def damaged(fileio: FileIO, path: str, found: str) -> str:
    """What is said of a file whose content makes no sense."""
    return (
        f"{path} in {fileio.url} is of the size that was committed, but {found}: something else was written in its place, it was "
        "damaged, or something on the way to the store answers instead of it; restore that object from a backup if it stays so"
    )
