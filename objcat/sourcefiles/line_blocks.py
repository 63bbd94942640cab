"""Files of lines as blocks of some hundred KiB, and what the readers of text have in common."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.sourcefiles.file_batch import BadRow, BrokenFile, FileBatch
from objcat.sourcefiles.layout import FileLayout, Span, compression_of

BUFFER_BYTES = 1024 * 1024
LINES_BYTES = 1024 * 1024
"""Bytes of lines that are read together. One needle in a file costs about as much."""
LINE_BYTES_MAX = 64 * 1024 * 1024
DAMAGE = (pa.ArrowException, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError, OSError)
"""What broken text or compression raises."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of a file, one after the other.

    Args:
        first: the number of the first line in its file, from 1. It is known only where a file is read from its beginning.
        begin: the place of its first byte in the file, without compression.
        data: the bytes. Lines end with a line feed, and the last one of a file may lack it.
    """

    first: int
    begin: int
    data: bytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Each line with its number, without its line feed."""
        return enumerate(self.each, start=self.first)

    @property
    def each(self) -> list[bytes]:
        """Each line, without its line feed."""
        lines = self.data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @property
    def count(self) -> int:
        """How many lines there are."""
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    @property
    def end(self) -> int:
        """The place after its last byte."""
        return self.begin + len(self.data)


def open_text(fileio: FileIO, meta: ObjectMeta) -> io.BufferedReader[Any]:
    """The bytes of a file, without its compression."""
    stream: io.BufferedReader[Any] = io.BufferedReader(fileio.open_read(meta.key, meta=meta), BUFFER_BYTES)
    match compression_of(meta.key):
        case "none":
            return stream
        case "gzip":
            return io.BufferedReader(gzip.GzipFile(fileobj=stream), BUFFER_BYTES)
        case "bz2":
            return io.BufferedReader(bz2.BZ2File(stream), BUFFER_BYTES)
        case kind:
            return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), kind), BUFFER_BYTES)


def wanted_types(layout: FileLayout) -> dict[str, pa.DataType]:
    """The columns to read: those that are declared, and the one that says what a delete is."""
    deletes = layout.also
    return {**layout.columns, **({deletes: pa.string()} if deletes and deletes not in layout.columns else {})}


def line_batches(fileio: FileIO, meta: ObjectMeta, layout: FileLayout, decoded: Callable[[Lines], FileBatch]) -> Iterator[FileBatch]:
    """The rows of a file of lines, a block at a time. A block without any is left out.

    Args:
        decoded: the rows of some lines.

    Raises:
        BrokenFile: the file cannot be read, or a line is too long.
    """
    number = 1
    try:
        seeks = layout.spans is not None and compression_of(meta.key) == "none"
        # A buffer would read more than a span.
        file: Any = fileio.open_read(meta.key, meta=meta) if seeks else open_text(fileio, meta)
        blocks = _blocks(file) if layout.spans is None else _spans(file, layout.spans, seeks=seeks)
        for begin, data in blocks:
            # The first line of a file may begin with a mark, and says whether all is one array.
            number = max(number, 2) if begin else number
            lines = Lines(number, begin, data)
            if len(data) > LINE_BYTES_MAX:
                _check_lengths(lines)
            found = decoded(lines)
            number += lines.count
            if found.rows.num_rows or found.bad:
                yield FileBatch(found.rows, found.kept, found.bad, span=(begin, lines.end))
    except DAMAGE as error:
        raise broken_by(error, f"it cannot be read from about line {number} on") from error


def _blocks(file: Any) -> Iterator[tuple[int, bytes]]:
    """Whole lines, each block with its place."""
    rest, at = bytearray(), 0
    while data := file.read(LINES_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut:
            block = bytes(rest) + data[:cut]
            rest = bytearray(data[cut:])
            yield at, block
            at += len(block)
            continue
        rest += data
        if len(rest) > LINE_BYTES_MAX:
            yield at, bytes(rest)
            return
    if rest:
        yield at, bytes(rest)


def _spans(file: Any, spans: Sequence[Span], *, seeks: bool) -> Iterator[tuple[int, bytes]]:
    """The bytes of some spans. seeks: other bytes are not read."""
    at = 0
    for begin, end in spans:
        if seeks:
            file.seek(begin)
        else:
            while at < begin and (passed := file.read(min(LINES_BYTES, begin - at))):
                at += len(passed)
        data = file.read(end - begin)
        if len(data) != end - begin:
            raise BrokenFile(f"it ends before byte {end:,}")
        at = end
        yield begin, data


def _check_lengths(lines: Lines) -> None:
    for number, line in lines:
        if len(line) > LINE_BYTES_MAX:
            raise BrokenFile(f"line {number} has more than {LINE_BYTES_MAX:,} bytes")


def broken_by(error: Exception, what: str) -> Exception:
    """The error of a file whose bytes are damaged. One of their transport, with a number, stays; so does one of memory."""
    if (isinstance(error, OSError) and error.errno is not None) or isinstance(error, pa.ArrowMemoryError):
        return error
    return BrokenFile(f"{what} ({short(error)})")


def batch_of(
    columns: Mapping[str, pa.Array], types: Mapping[str, pa.DataType], numbers: Sequence[int], errors: Mapping[int, str], bad: list[BadRow]
) -> FileBatch:
    """A batch of columns, without the rows that have errors. errors: by the place of a row."""
    made = pa.Table.from_arrays([columns[name] for name in types], schema=pa.schema(list(types.items())))
    if not errors:
        return FileBatch(made, numbers, bad)
    keep = [place not in errors for place in range(len(numbers))]
    return FileBatch(made.filter(pa.array(keep)), [number for number, kept in zip(numbers, keep, strict=True) if kept], bad)


def short(error: BaseException) -> str:
    """The text of an error, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
