"""The settings of a new table: their types, their checks, and the spec that they make."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pyarrow as pa

from fileio.options import nearest
from fileio.store import FileIO
from objcat.common.validation import KeyScope, TableType, instance, name_list, one_of, span_ms, text, text_mapping
from objcat.errors import InvalidInput
from objcat.metadata.ordering import Ordering
from objcat.metadata.schema import schema_from_arrow
from objcat.metadata.schema_evolution import SetDefault, evolve
from objcat.metadata.table_spec import (
    KEY_SCOPES,
    MERGE_ON_READ,
    TABLE_SCOPE,
    TABLE_TYPES,
    BloomIndex,
    BucketIndex,
    Index,
    MemoryIndex,
    RecordIndex,
    SimpleIndex,
    TableSpec,
    make_spec,
)
from objcat.table.batch_input import schema_given

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableSettings(TypedDict, total=False):
    """The settings of a new table, next to its columns and its key. `Lake.create_table` says what each one means."""

    ordering: Ordering | None
    allowed_lateness: str | dt.timedelta | None
    partition_by: Sequence[str]
    key_scope: KeyScope
    index: Index | None
    table_type: TableType
    properties: Mapping[str, str] | None
    defaults: dict[str, Any] | None


class NamedTableSettings(TableSettings, total=False):
    """The settings of a new table of a lake."""

    shared_log: str | None


def check_settings(settings: Mapping[str, Any], of: type[TableSettings] = TableSettings) -> None:
    """Raises InvalidInput for a name that is no setting of a table, with the nearest one."""
    known = of.__annotations__
    for setting in settings:
        if setting not in known:
            raise InvalidInput(f"{setting!r} is not a setting of a table: {nearest(setting, known)}")


def new_spec(fileio: FileIO, schema: pa.Schema | StructType, *, key: Sequence[str] | None, **settings: Unpack[TableSettings]) -> TableSpec:
    """The spec of a new table. Settings that are left out have the defaults of `Lake.create_table`. Raises InvalidInput."""
    check_settings(settings)
    allowed_lateness = settings.get("allowed_lateness")
    index, properties = settings.get("index"), settings.get("properties")
    columns = schema_from_arrow(schema_given(schema))
    if index is not None and not isinstance(index, (SimpleIndex, BloomIndex, MemoryIndex, RecordIndex)):
        instance(
            index,
            BucketIndex,
            what="index",
            such_as="objcat.BucketIndex(16), objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex() or objcat.RecordIndex()",
        )
        if index.columns is not None:
            name_list(index.columns, what="BucketIndex(columns)")
    spec = make_spec(
        fileio.env.new_id(),
        columns,
        key=None if key is None else name_list(key, what="key"),
        ordering=settings.get("ordering"),
        lateness_ms=None if allowed_lateness is None else span_ms(allowed_lateness, what="allowed_lateness"),
        partition_by=name_list(settings.get("partition_by", ()), what="partition_by"),
        key_scope=one_of(settings.get("key_scope", TABLE_SCOPE), KEY_SCOPES, what="key_scope"),
        index=index,
        table_type=one_of(settings.get("table_type", MERGE_ON_READ), TABLE_TYPES, what="table_type"),
        properties={} if properties is None else text_mapping(properties, what="properties"),
    )
    defaults = settings.get("defaults")
    if defaults is None:
        return spec
    instance(defaults, dict, what="defaults", such_as="{'status': 'new'}, by column")
    return evolve(spec, [SetDefault(text(name, what="defaults"), value) for name, value in defaults.items()])
