"""Partition specs: how rows are grouped by column values, and the text that names a partition.

The text has `name=value` parts with slashes between them, like Hive's: `pickup_at_hour=2026-11-20-09/city=Rome`. It is ASCII and legal in
keys of every store. No two partitions have the same text. See `docs/spec/format.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from fileio.options import nearest
from objcat.common.validation import name_list
from objcat.errors import InvalidInput, InvalidSchema
from objcat.metadata.schema import Column, TableSchema

IDENTITY, TRUNCATE = "identity", "truncate"
TRANSFORMS = (IDENTITY, "year", "month", "day", "hour", TRUNCATE)
FIELDS_MAX = 8
WIDTH_MAX = 2**63 - 1
NULL = "__HIVE_DEFAULT_PARTITION__"
"""The text of null. No value's text begins with an underscore."""
VALUE_BYTES_MAX, VALUES_BYTES_MAX = 180, 480
"""Bytes of the text of one value, and of all fields together, which share it evenly. A longer text is cut, and its digest added."""
NAME_BYTES_MAX, NAMES_BYTES_MAX = 60, 240
DIGEST_CHARACTERS = 32

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
TIMES = ("timestamp", "timestamp_ntz")
_VALID_TYPES: Mapping[str, tuple[str, ...]] = {
    "year": ("date", *TIMES),
    "month": ("date", *TIMES),
    "day": ("date", *TIMES),
    "hour": TIMES,
    TRUNCATE: (*_INTEGERS, "string"),
}
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)

Codes = npt.NDArray[np.int32]


class PartitionField(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a partition's text.

    Args:
        name: The text before the `=`. It is fixed, whatever the column is called later.
        column: The id of the source column.
        transform: One of `TRANSFORMS`.
        width: For `truncate`, how many numbers or code points make one partition.
    """

    name: str
    column: int
    transform: str = IDENTITY
    width: Annotated[int, msgspec.Meta(ge=0, le=WIDTH_MAX)] = 0


class Partitioning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A partition spec. No fields: all rows are in one partition.

    mark: a first part of the text, for a spec whose fields have the names of those of a previous one.
    """

    fields: tuple[PartitionField, ...] = ()
    mark: str = ""

    @property
    def shape(self) -> tuple[str, ...]:
        """What distinguishes its partitions from those of the table's other partition specs."""
        return (*([self.mark] if self.mark else []), *(field.name for field in self.fields))

    @property
    def value_bytes_max(self) -> int:
        """Bytes of the text of each value."""
        return min(VALUE_BYTES_MAX, VALUES_BYTES_MAX // max(1, len(self.fields)))

    def text(self, values: Sequence[str]) -> str:
        """The partition of some values, which are texts of `value_text`."""
        parts = [f"{field.name}={value}" for field, value in zip(self.fields, values, strict=True)]
        return "/".join(([self.mark] if self.mark else []) + parts)


UNPARTITIONED = Partitioning()


def shape_of(partition: str) -> tuple[str, ...]:
    """The shape of the partition spec of a partition."""
    return tuple(part.partition("=")[0] for part in partition.split("/")) if partition else ()


def transforms_of(column: Column) -> tuple[str, ...]:
    """The transforms for the type of a column."""
    return tuple(name for name in TRANSFORMS if name == IDENTITY or column.type in _VALID_TYPES[name])


# ---- from what a user asks for -----------------------------------------------------------------------------------


def parse_partitioning(asked: Any, schema: TableSchema, *, others: Collection[Partitioning] = ()) -> Partitioning:
    """A partition spec from texts.

    A text is a column, or `hour(column)`, `day`, `month`, `year`, `truncate(column, width)`, `identity`.

    others: the table's previous partition specs, whose names keep their meaning. Raises InvalidInput and InvalidSchema that name what fits.
    """
    texts = name_list(asked, what="partition_by")
    if len(texts) > FIELDS_MAX:
        raise InvalidInput(f"partition_by has {len(texts)} fields. Use at most {FIELDS_MAX}.")
    known = {(field.column, field.transform, field.width): field.name for other in others for field in other.fields}
    taken = {name.lower() for name in known.values()}
    fields: list[PartitionField] = []
    for text in texts:
        column, transform, width = _parse_field(text, schema)
        identity = (column.id, transform, width)
        if any((field.column, field.transform, field.width) == identity for field in fields):
            raise InvalidInput(f"partition_by names {text!r} twice. Name each field once.")
        name = known.get(identity)
        if name is None:
            name = _free_name(column.name, transform, width, taken, len(texts))
            taken.add(name.lower())
        fields.append(PartitionField(name=name, column=column.id, transform=transform, width=width))
    found = Partitioning(fields=tuple(fields))
    shapes = {other.shape for other in others}
    number = 1
    while found.shape in shapes:
        number += 1
        found = Partitioning(fields=tuple(fields), mark=f"v{number}")
    return found


def fields_asked(partitioning: Partitioning, schema: TableSchema) -> list[str]:
    """The texts of a partition spec, as for `parse_partitioning`, with current column names."""
    texts = []
    for field in partitioning.fields:
        name = schema.by_id(field.column).name
        width = f", {field.width}" if field.transform == TRUNCATE else ""
        texts.append(name if field.transform == IDENTITY else f"{field.transform}({name}{width})")
    return texts


def _parse_field(text: str, schema: TableSchema) -> tuple[Column, str, int]:
    call = None if text in schema.names else _CALL.fullmatch(text)
    transform, argument, width = IDENTITY, text, 0
    if call is not None:
        transform, argument = call.group(1).lower(), call.group(2)
        if transform not in TRANSFORMS:
            raise InvalidInput(f"partition_by has {text!r}, but {transform!r} is no transform ({nearest(transform, TRANSFORMS)}).")
    if transform == TRUNCATE:
        argument, _, said = argument.rpartition(",")
        if not argument or not re.fullmatch(r"\s*[0-9]{1,19}\s*", said) or not 1 <= int(said) <= WIDTH_MAX:
            raise InvalidInput(f"partition_by has {text!r}, which lacks a width of 1 or more. Write truncate(column, 10).")
        width = int(said)
    column = _column(argument, schema, text)
    if not isinstance(column.type, str):
        raise InvalidSchema(f"partition_by has {text!r}, but the column {column.name!r} is nested. Partition by a column of plain values.")
    valid = _VALID_TYPES.get(transform)
    if valid is not None and column.type not in valid:
        raise InvalidSchema(
            f"partition_by has {text!r}, but the column {column.name!r} has the type {column.type}. {transform} takes {', '.join(valid)}."
        )
    return column, transform, width


def _column(argument: str, schema: TableSchema, text: str) -> Column:
    said = argument if argument in schema.names else argument.strip()
    name = said[1:-1].replace("``", "`") if len(said) > 1 and said.startswith("`") and said.endswith("`") else said
    if name not in schema.names and said in schema.names:
        # The backticks belong to the name.
        name = said
    try:
        return schema.column(name)
    except KeyError:
        raise InvalidInput(f"partition_by has {text!r}, but there is no column {name!r} ({nearest(name, schema.names)}).") from None


def _free_name(column: str, transform: str, width: int, taken: Collection[str], count: int) -> str:
    suffix = {IDENTITY: "", TRUNCATE: f"_truncate_{width}"}.get(transform, f"_{transform}")
    wanted = column + suffix
    number = 1
    while True:
        name = encoded(wanted if number == 1 else f"{wanted}_{number}", most=min(NAME_BYTES_MAX, NAMES_BYTES_MAX // count))
        if name.lower() not in taken:
            return name
        number += 1


# ---- text --------------------------------------------------------------------------------------------------------

_ESCAPED = re.compile(rb"[^A-Za-z0-9._-]")


def encoded(text: str, *, most: int) -> str:
    """Text as a part of a partition's text, of at most `most` bytes: see `docs/spec/format.md`."""
    raw = text.encode()
    kept = _ESCAPED.sub(lambda found: b"%%%02X" % found.group()[0], raw).decode()
    if kept.startswith("_"):
        kept = "%5F" + kept[1:]
    if kept.endswith("."):
        kept = kept[:-1] + "%2E"
    if len(kept) <= most:
        return kept
    digest = hashlib.sha256(raw).hexdigest()[: min(DIGEST_CHARACTERS, most - 1)]
    head = kept[: most - len(digest) - 1]
    # Never cut an escape in two.
    escape = head.rfind("%", len(head) - 2) if len(head) > 1 else -1
    return f"{head[:escape] if escape >= 0 else head}~{digest}"
