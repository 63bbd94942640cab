"""CSV and JSON lines as batches of declared columns. A line that does not fit is set apart; the file goes on."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.ingest.folder.file_batch import BadRow, BrokenFile, FileBatch
from objcat.ingest.folder.settings import FileRule
from objcat.ingest.folder.values import cast_rows, json_column, text_cast

BUFFER_BYTES = 1024 * 1024
BLOCK_BYTES = 4 * 1024 * 1024
"""The longest row of CSV."""
LINE_BYTES_MAX = 64 * 1024 * 1024
BATCH_ROWS = 16 * 1024
_OBJECTS = msgspec.json.Decoder(float_hook=Decimal)
_DAMAGE = (pa.ArrowException, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError)
"""What broken text or compression raises."""


def open_text(fileio: FileIO, meta: ObjectMeta) -> io.BufferedReader[Any]:
    """The bytes of a file, without its compression."""
    stream: io.BufferedReader[Any] = io.BufferedReader(fileio.open_read(meta.key, meta=meta), BUFFER_BYTES)
    if not meta.key.lower().endswith(".gz"):
        return stream
    return io.BufferedReader(gzip.GzipFile(fileobj=stream), BUFFER_BYTES)


def wanted_types(rule: FileRule) -> dict[str, pa.DataType]:
    """The columns to read: those that are declared, and the one that says what a delete is."""
    deletes = rule.settings.delete_column
    return {**rule.columns, **({deletes: pa.string()} if deletes and deletes not in rule.columns else {})}


class CsvRows:
    """A file of CSV. Fields are in double quotes where they need it; an empty field without quotes is null."""

    def __init__(self, fileio: FileIO, meta: ObjectMeta, rule: FileRule) -> None:
        self._rule = rule
        self._file = open_text(fileio, meta)
        wanted = wanted_types(rule)
        names = self._header() if rule.settings.header else list(wanted)
        self._names = names
        self._types = {name: data_type for name, data_type in wanted.items() if name in names}
        if not self._types:
            raise BrokenFile(f"its header has none of the columns {', '.join(wanted)}")
        self._torn: list[BadRow] = []
        self._torn_numbers: set[int] = set()
        self._at = 1

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """The columns that it has of those that are wanted."""
        return self._types

    def batches(self) -> Iterator[FileBatch]:
        """All rows."""
        settings = self._rule.settings
        try:
            reader = pa_csv.open_csv(
                pa.PythonFile(self._file, mode="r"),
                read_options=pa_csv.ReadOptions(
                    use_threads=False, block_size=BLOCK_BYTES, column_names=self._names, skip_rows=1 if settings.header else 0
                ),
                parse_options=pa_csv.ParseOptions(
                    delimiter=settings.delimiter, newlines_in_values=True, invalid_row_handler=self._take_torn
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(self._types, pa.string()),
                    include_columns=list(self._types),
                    null_values=list(settings.nulls),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in reader:
                yield self._decoded(batch)
        except _DAMAGE as error:
            if self._at == 1 and "Empty CSV file" in str(error):
                return
            raise BrokenFile(f"it cannot be read from about row {self._at} on ({_short(error)})") from error
        if self._torn:
            yield self._decoded(None)

    def _header(self) -> list[str]:
        try:
            line = self._file.peek(BUFFER_BYTES).split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")
            names = next(csv.reader([line], delimiter=self._rule.settings.delimiter), [])
        except (*_DAMAGE, csv.Error) as error:
            raise BrokenFile(f"its header cannot be read ({_short(error)})") from error
        if not any(names):
            raise BrokenFile("it has no header")
        if len(set(names)) != len(names):
            raise BrokenFile("two of its columns have the same name")
        return names

    def _take_torn(self, row: Any) -> str:
        # Its numbers count the header.
        number = (row.number or 0) - self._rule.settings.header
        said = f"{row.actual_columns} fields, and the header has {row.expected_columns}"
        self._torn.append(BadRow(number, str(row.text).encode(), said))
        self._torn_numbers.add(number)
        return "skip"

    def _next_numbers(self, count: int) -> Sequence[int]:
        """The numbers of the next rows: those between them that are torn are no rows of a batch."""
        first = self._at
        numbers: Sequence[int] = range(first, first + count)
        if self._torn_numbers:
            whole = (number for number in itertools.count(first) if number not in self._torn_numbers)
            numbers = list(itertools.islice(whole, count))
        self._at = numbers[-1] + 1 if count else first
        return numbers

    def _decoded(self, batch: pa.RecordBatch | None) -> FileBatch:
        bad, self._torn = self._torn, []
        count = 0 if batch is None else batch.num_rows
        numbers = self._next_numbers(count)
        texts = {name: pa.array([], pa.string()) if batch is None else batch.column(name) for name in self._types}
        columns, errors = {}, dict[int, str]()
        for name, data_type in self._types.items():
            columns[name], wrong = cast_rows(texts[name], text_cast(data_type), data_type) if count else (pa.array([], data_type), {})
            errors |= {place: f"{name}: {why}" for place, why in wrong.items()}
        for place, why in sorted(errors.items()):
            shown = {name: text[place].as_py() for name, text in texts.items()}
            bad.append(BadRow(numbers[place], json.dumps(shown).encode(), why))
        return _batch(columns, self._types, numbers, errors, bad)


class JsonRows:
    """A file of JSON with one object in each line. Names that are not declared are left out; declared ones that are missing are null."""

    def __init__(self, fileio: FileIO, meta: ObjectMeta, rule: FileRule) -> None:
        self.types: Mapping[str, pa.DataType] = wanted_types(rule)
        self._file = open_text(fileio, meta)

    def batches(self) -> Iterator[FileBatch]:
        """All rows."""
        held: list[tuple[int, bytes, dict[str, Any]]] = []
        bad: list[BadRow] = []
        number, size = 0, 0
        try:
            while line := self._file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise BrokenFile(f"line {number} has more than {LINE_BYTES_MAX:,} bytes")
                if number == 1 and line.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                    raise BrokenFile("it is one array: write one object in each line")
                row = _object(line, number, bad)
                if row is not None:
                    held.append((number, line, row))
                    size += len(line)
                if len(held) + len(bad) >= BATCH_ROWS or size >= BLOCK_BYTES:
                    yield self._decoded(held, bad)
                    held, bad, size = [], [], 0
        except _DAMAGE as error:
            raise BrokenFile(f"it cannot be read from about line {number} on ({_short(error)})") from error
        if held or bad:
            yield self._decoded(held, bad)

    def _decoded(self, held: list[tuple[int, bytes, dict[str, Any]]], bad: list[BadRow]) -> FileBatch:
        columns, errors = {}, dict[int, str]()
        for name, data_type in self.types.items():
            columns[name], wrong = json_column([row.get(name) for _, _, row in held], data_type)
            errors |= {place: f"{name}: {why}" for place, why in wrong.items()}
        bad += [BadRow(held[place][0], held[place][1].rstrip(b"\r\n"), why) for place, why in sorted(errors.items())]
        return _batch(columns, self.types, [number for number, _, _ in held], errors, bad)


def _object(line: bytes, number: int, bad: list[BadRow]) -> dict[str, Any] | None:
    """The object of a line; None for a blank line and for one that is no object, which is added to `bad`."""
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    if not line.strip():
        return None
    try:
        found = _OBJECTS.decode(line)
    except (msgspec.DecodeError, UnicodeError, ArithmeticError, RecursionError) as error:
        bad.append(BadRow(number, line.rstrip(b"\r\n"), f"it is no JSON ({_short(error)})"))
        return None
    if not isinstance(found, dict):
        bad.append(BadRow(number, line.rstrip(b"\r\n"), "it is no object of JSON"))
        return None
    return found


def _batch(
    columns: Mapping[str, pa.Array], types: Mapping[str, pa.DataType], numbers: Sequence[int], errors: Mapping[int, str], bad: list[BadRow]
) -> FileBatch:
    made = pa.Table.from_arrays([columns[name] for name in types], schema=pa.schema(list(types.items())))
    if not errors:
        return FileBatch(made, numbers, bad)
    keep = [place not in errors for place in range(len(numbers))]
    return FileBatch(made.filter(pa.array(keep)), [number for number, kept in zip(numbers, keep, strict=True) if kept], bad)


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
