"""CSV and lines of text as batches of declared columns. A line that does not fit is set apart; the file goes on."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.sourcefiles.file_batch import BadRow, BrokenFile, FileBatch
from objcat.sourcefiles.layout import FileLayout
from objcat.sourcefiles.line_blocks import BUFFER_BYTES, DAMAGE, Lines, batch_of, broken_by, line_batches, open_text, short, wanted_types
from objcat.sourcefiles.values import cast_rows, text_cast

BLOCK_BYTES = 4 * 1024 * 1024
"""The longest row of CSV."""


class CsvRows:
    """A file of CSV. Fields are in double quotes where they need it; an empty field without quotes is null."""

    def __init__(self, fileio: FileIO, meta: ObjectMeta, layout: FileLayout) -> None:
        self._layout = layout
        self._file = open_text(fileio, meta)
        self._is_header_alone = False
        wanted = wanted_types(layout)
        names = self._header() if layout.header else list(wanted)
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
        settings = self._layout
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
        except DAMAGE as error:
            if self._at == 1 and ("Empty CSV file" in str(error) or (self._is_header_alone and "Could not skip" in str(error))):
                return
            raise broken_by(error, f"it cannot be read from about row {self._at} on") from error
        if self._torn:
            yield self._decoded(None)

    def _header(self) -> list[str]:
        try:
            begin = self._file.peek(BUFFER_BYTES)
            line = begin.split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")
            names = next(csv.reader([line], delimiter=self._layout.delimiter), [])
        except (*DAMAGE, csv.Error) as error:
            raise broken_by(error, "its header cannot be read") from error
        if not any(names):
            raise BrokenFile("it has no header")
        if len(set(names)) != len(names):
            raise BrokenFile("two of its columns have the same name")
        self._is_header_alone = b"\n" not in begin and len(begin) < BUFFER_BYTES
        return names

    def _take_torn(self, row: Any) -> str:
        # Its numbers count the header.
        number = (row.number or 0) - self._layout.header
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
        for place, why in () if self._layout.misfits_are_null else sorted(errors.items()):
            shown = {name: text[place].as_py() for name, text in texts.items()}
            bad.append(BadRow(numbers[place], json.dumps(shown).encode(), why))
        return batch_of(columns, self._types, numbers, {} if self._layout.misfits_are_null else errors, bad)


class TextRows:
    """A file of text, in which each line is a row: the named groups of a regular expression are its columns. A group without text is null.

    Lines end with a line feed, or with a carriage return and a line feed. The expression has to match a line as a whole.
    """

    def __init__(self, fileio: FileIO, meta: ObjectMeta, layout: FileLayout) -> None:
        self._pattern = re.compile(layout.line)
        self.types: Mapping[str, pa.DataType] = {name: kind for name, kind in layout.columns.items() if name in self._pattern.groupindex}
        if not self.types:
            raise BrokenFile(f"no group of its pattern of lines is one of the columns {', '.join(layout.columns)}")
        self._misfits_are_null = layout.misfits_are_null
        self._batches = line_batches(fileio, meta, layout, self._rows)

    def batches(self) -> Iterator[FileBatch]:
        """All rows."""
        return self._batches

    def _rows(self, lines: Lines) -> FileBatch:
        bad: list[BadRow] = []
        found = ((number, line, self._match(line, number, bad)) for number, line in lines)
        return self._decoded([(number, line, match) for number, line, match in found if match is not None], bad)

    def _match(self, line: bytes, number: int, bad: list[BadRow]) -> re.Match[str] | None:
        """The match of a line; None for one that is no row, which is added to `bad`."""
        text = _without_end(line)
        try:
            found = self._pattern.fullmatch(text.decode())
        except UnicodeDecodeError as error:
            bad.append(BadRow(number, text, f"it is no UTF-8 ({short(error)})"))
            return None
        if found is None:
            bad.append(BadRow(number, text, "it does not match the pattern of lines"))
        return found

    def _decoded(self, held: list[tuple[int, bytes, re.Match[str]]], bad: list[BadRow]) -> FileBatch:
        columns, errors = {}, dict[int, str]()
        for name, data_type in self.types.items():
            texts = pa.array([found[name] for _, _, found in held], pa.string())
            columns[name], wrong = cast_rows(texts, text_cast(data_type), data_type) if held else (pa.array([], data_type), {})
            errors |= {} if self._misfits_are_null else {place: f"{name}: {why}" for place, why in wrong.items()}
        bad += [BadRow(held[place][0], _without_end(held[place][1]), why) for place, why in sorted(errors.items())]
        return batch_of(columns, self.types, [number for number, _, _ in held], errors, bad)


def _without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
