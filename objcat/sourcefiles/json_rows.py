"""Lines of JSON as batches of declared columns.

A block of lines is decoded at once where all its values have the JSON types that their columns expect. That takes no Python per value but
the one that is kept. Other blocks are decoded line by line, and lines that are no rows are set apart. Both give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import structs

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.sourcefiles.file_batch import BadRow, BrokenFile, FileBatch
from objcat.sourcefiles.layout import FileLayout
from objcat.sourcefiles.line_blocks import Lines, batch_of, line_batches, short, wanted_types
from objcat.sourcefiles.values import MISFITS, json_column, text_cast

BOM = b"\xef\xbb\xbf"
_UNDECODED = (msgspec.DecodeError, UnicodeError, ArithmeticError, RecursionError)
"""What a decoder raises for a line that is no object, or has a value of another type."""
_MISFITS = (*_UNDECODED, *MISFITS)


def _number(text: str) -> Any:
    """A number with a fraction or an exponent. One that no decimal can hold stays text, and fits no column of numbers."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return text


_OBJECTS = msgspec.json.Decoder(float_hook=_number)


class JsonRows:
    """A file of JSON with one object in each line. Names that are not declared are left out; declared ones that are missing are null."""

    def __init__(self, fileio: FileIO, meta: ObjectMeta, layout: FileLayout) -> None:
        self.types: Mapping[str, pa.DataType] = wanted_types(layout)
        self._misfits_are_null = layout.misfits_are_null
        self._batches = line_batches(fileio, meta, layout, self._decoded)
        self._typed = _decoder(self.types, [_kind_of(data_type) for data_type in self.types.values()])
        self._any = _decoder(self.types, [Any for _ in self.types])

    def batches(self) -> Iterator[FileBatch]:
        """All rows."""
        return self._batches

    def _decoded(self, lines: Lines) -> FileBatch:
        columns = self._at_once(lines)
        if columns is None:
            return self._line_by_line(lines)
        return batch_of(columns, self.types, range(lines.first, lines.first + lines.count), {}, [])

    def _at_once(self, lines: Lines) -> dict[str, pa.Array] | None:
        """The columns of lines that are all objects whose values have the expected types. None for other lines."""
        if self._typed is None:
            return None
        try:
            # The decoder skips values that are not wanted, and does not look whether their text is UTF-8. `decode_lines` is no quicker,
            # and takes several objects in one line.
            lines.data.decode()
            rows = list(map(self._typed.decode, lines.each))
            return {
                name: _column(list(map(attrgetter(f"f{place}"), rows)), data_type)
                for place, (name, data_type) in enumerate(self.types.items())
            }
        except _MISFITS:
            return None

    def _line_by_line(self, lines: Lines) -> FileBatch:
        bad: list[BadRow] = []
        held = [(number, line, row) for number, line in lines if (row := self._row(line, number, bad)) is not None]
        columns, errors = {}, dict[int, str]()
        for place, (name, data_type) in enumerate(self.types.items()):
            columns[name], wrong = json_column([row[place] for _, _, row in held], data_type)
            errors |= {} if self._misfits_are_null else {place: f"{name}: {why}" for place, why in wrong.items()}
        bad += [BadRow(held[place][0], held[place][1].rstrip(b"\r\n"), why) for place, why in sorted(errors.items())]
        return batch_of(columns, self.types, [number for number, _, _ in held], errors, bad)

    def _row(self, line: bytes, number: int, bad: list[BadRow]) -> tuple[Any, ...] | None:
        """The wanted values of a line. None for one that is no row. Raises BrokenFile for a file that is one array."""
        if self._any is not None:
            try:
                line.decode()
                return structs.astuple(self._any.decode(line))
            except _UNDECODED:
                pass
        if number == 1 and line.lstrip(BOM + b" \t\r\n").startswith(b"["):
            raise BrokenFile("it is one array: write one object in each line")
        found = _object(line, number, bad)
        return None if found is None else tuple(found.get(name) for name in self.types)


def is_object(line: bytes) -> bool:
    """Whether a line is an object of JSON."""
    return _object(line, 0, []) is not None


def _object(line: bytes, number: int, bad: list[BadRow]) -> dict[str, Any] | None:
    """The object of a line; None for a blank line and for one that is no object, which is added to `bad`."""
    if number == 1:
        line = line.removeprefix(BOM)
    if not line.strip():
        return None
    try:
        found = _OBJECTS.decode(line)
    except _UNDECODED as error:
        bad.append(BadRow(number, line.rstrip(b"\r\n"), f"it is no JSON ({short(error)})"))
        return None
    if not isinstance(found, dict):
        bad.append(BadRow(number, line.rstrip(b"\r\n"), "it is no object of JSON"))
        return None
    return found


def _decoder(types: Mapping[str, pa.DataType], kinds: Sequence[Any]) -> msgspec.json.Decoder[Any] | None:
    """A decoder of objects with these fields, as structs with the fields f0, f1 and so on. None where a name does not allow it."""
    fields = [(f"f{place}", kind, None) for place, kind in enumerate(kinds)]
    renamed = {f"f{place}": name for place, name in enumerate(types)}
    try:
        # Without tracking by the garbage collector: no value refers to its row.
        row = msgspec.defstruct("Row", fields, rename=renamed, gc=False)
    except ValueError:
        return None
    return msgspec.json.Decoder(row, float_hook=_number)


def _kind_of(data_type: pa.DataType) -> Any:
    """The type that values of a column have in most files, and that becomes the column without a look at each value."""
    if pa.types.is_boolean(data_type):
        return bool | None
    if pa.types.is_integer(data_type):
        return int | None
    if pa.types.is_float64(data_type):
        return float | None
    if pa.types.is_string(data_type) or pa.types.is_temporal(data_type):
        return str | None
    return Any


def _column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """A column of values that the decoder found to be of `_kind_of` its type. Raises one of `_MISFITS`."""
    kind = _kind_of(data_type)
    if kind == str | None:
        texts = pa.array(values, pa.string())
        return text_cast(data_type)(texts)
    if kind is not Any:
        return pa.array(values, data_type)
    found, wrong = json_column(values, data_type)
    if wrong:
        raise pa.ArrowInvalid("a value does not fit")
    return found
