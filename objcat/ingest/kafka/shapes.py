"""`TableShape`: the schema of a topic's rows as messages have it now, and the columns that objcat adds to them."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from objcat.errors import InvalidSchema
from objcat.ingest.kafka.message import KafkaMessage, Unreadable
from objcat.ingest.kafka.settings import RecordColumn
from objcat.ingest.kafka.values import BYTES, TEXT, Meaning, ValueField, ValueType, integer_type, time_type
from objcat.ingest.model import KeyValues, SourceTable
from objcat.metadata.column_defaults import encode_default
from objcat.metadata.schema import Ids, type_from_arrow
from objcat.sourcefiles.values import UNFIT

logger = logging.getLogger("objcat")

RECORD_TYPES: Mapping[RecordColumn, ValueType] = {
    "topic": TEXT,
    "partition": integer_type(32),
    "offset": integer_type(64),
    "timestamp": time_type("ms", has_zone=True),
    "key": BYTES,
}
"""The columns of a message itself. In the lake their names begin with an underscore."""
_MAY_BE_UNSENT = (Meaning.TEXT, Meaning.BYTES, Meaning.LIST, Meaning.MAP, Meaning.JSON, Meaning.DECIMAL_ANY, Meaning.UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """One schema of the rows of a topic.

    Args:
        table: what the ingest knows of it.
        key: the key columns with their types.
        unsent: columns that a source may leave out when they did not change, with the values that say so.
        defaults: values by column: what older rows have there.
    """

    table: SourceTable
    key: tuple[tuple[str, ValueType], ...]
    unsent: tuple[tuple[str, tuple[Any, ...]], ...]
    defaults: Mapping[str, Any]

    def key_of(self, values: Mapping[str, Any]) -> KeyValues:
        """The key of a row. Raises Unreadable when a part of it is null or does not fit."""
        found = []
        for name, kind in self.key:
            value = values.get(name)
            try:
                part = kind.key_value(value)
            except UNFIT as error:
                raise Unreadable(f"its key column {name!r} does not fit: {error}") from None
            if part is None:
                raise Unreadable(f"its key column {name!r} has no value")
            found.append(part)
        return tuple(found)

    def unsent_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The columns that the source did not send."""
        return tuple(name for name, marks in self.unsent if row.get(name) in marks)


class JoinedColumns:
    """Tells rows that are older than a column from those that it was dropped from: both lack it. For one topic, and one thread.

    Partitions are read in any order: an older row may come after those that have the column. Its commit says that it is older, also after
    a restart. It is left to the default that the column has in the lake.

    Args:
        since_ms: by column that has a default: when the oldest row was committed that has it. It is added to, and is part of the position.
    """

    def __init__(self, since_ms: dict[str, int] | None = None) -> None:
        self._since_ms: dict[str, int] = {} if since_ms is None else since_ms
        self._oldest_ms: dict[int, int] = {}
        self._lacking: dict[int, tuple[str, ...]] = {}
        self._made: dict[tuple[int, tuple[str, ...], tuple[str, ...]], TableShape] = {}

    def shape_of(self, shape: TableShape, committed_at_ms: int | None) -> TableShape:
        """The shape of a row that was committed then, or deleted.

        Rows before a column was known, those that it joins later, and those that it is gone from have a table each, so that what is
        written of one of them says nothing of the others in the same batch.
        """
        if committed_at_ms is None:
            return shape
        oldest_ms = self._oldest_ms.get(id(shape))
        if oldest_ms is None or committed_at_ms < oldest_ms:
            self._oldest_ms[id(shape)] = committed_at_ms
            if not self._since_ms.keys() >= shape.defaults.keys():
                self._lacking.clear()
            for name in shape.defaults:
                self._since_ms[name] = min(committed_at_ms, self._since_ms.get(name, committed_at_ms))
        lacking = self._lacking.get(id(shape))
        if lacking is None:
            names = {column.name for column in shape.table.columns}
            lacking = self._lacking[id(shape)] = tuple(name for name in self._since_ms if name not in names)
        if not lacking:
            return shape
        joining = tuple(name for name in lacking if committed_at_ms <= self._since_ms[name])
        made = self._made.get((id(shape), lacking, joining))
        if made is None:
            made = replace(shape, table=replace(shape.table, joins_later=joining))
            self._made[id(shape), lacking, joining] = made
        return made


def make_shape(
    topic: str, fields: Sequence[ValueField], key: Sequence[str], records: Sequence[RecordColumn], *, placeholder: str | None
) -> TableShape:
    """The shape of a table.

    Args:
        topic: its name.
        fields: the columns of the rows.
        key: the key columns. Each is one of the fields.
        records: which columns of the message itself rows have.
        placeholder: the text that stands for values which were not sent; None: all are sent.

    Raises:
        Unreadable: a key column is not there, or a column of the message has the name of another.
    """
    types = {field.name: field.type for field in fields}
    types |= {f"_{record}": RECORD_TYPES[record] for record in records if f"_{record}" in key}
    missing = [name for name in key if name not in types]
    if missing:
        raise Unreadable(f"its key column {missing[0]!r} is not in its rows, which have {', '.join(map(repr, types))}")
    for record in records:
        if any(field.name == f"_{record}" for field in fields):
            raise Unreadable(f"it has a column '_{record}' of its own, which record_columns would overwrite")
    columns = [field.type.column(field.name, nullable=field.name not in key) for field in fields]
    columns += [RECORD_TYPES[record].column(f"_{record}", nullable=f"_{record}" not in key) for record in records]
    return TableShape(
        table=SourceTable(name=topic, columns=tuple(columns), key=tuple(key)),
        key=tuple((name, types[name]) for name in key),
        unsent=() if placeholder is None else tuple(_unsent_marks(fields, key, placeholder)),
        defaults={field.name: default for field in fields if (default := _default(field)) is not None},
    )


def with_records(row: Mapping[str, Any], records: Sequence[RecordColumn], message: KafkaMessage) -> Mapping[str, Any]:
    """A row with the columns of its message."""
    if not records:
        return row
    values = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "key": message.key,
    }
    return {**row, **{f"_{record}": values[record] for record in records}}


def _unsent_marks(fields: Sequence[ValueField], key: Sequence[str], placeholder: str) -> list[tuple[str, tuple[Any, ...]]]:
    """The values by which Debezium says that a value was not sent: the text, its bytes, and lists and maps with it."""
    raw = placeholder.encode()
    encoded = base64.b64encode(raw).decode()
    texts = (placeholder, raw, encoded)
    marks: Mapping[Meaning, tuple[Any, ...]] = {
        Meaning.LIST: ([placeholder], [raw], [encoded], list(raw)),
        Meaning.MAP: ({placeholder: placeholder},),
    }
    return [
        (field.name, marks.get(field.type.meaning, texts))
        for field in fields
        if field.name not in key and field.type.meaning in _MAY_BE_UNSENT
    ]


def _default(field: ValueField) -> Any:
    """The default of a column as a value of the lake; None where it has none that is known, or that a column can have."""
    if field.default is None:
        return None
    try:
        value = field.type.decode([field.default])[0].as_py()
        if value is not None:
            encode_default(value, type_from_arrow(field.type.arrow, Ids(0), path=field.name), path=field.name)
    except InvalidSchema:
        logger.warning("The default of the column %r is none that a column of the lake can have, so rows before it are null.", field.name)
        return None
    except UNFIT:
        return None
    return value
