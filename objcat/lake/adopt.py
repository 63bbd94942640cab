"""Makes a table of a lake from a table of Iceberg or Delta, whose data files stay where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from msgspec import structs

from fileio.errors import FileIOError
from fileio.options import nearest
from fileio.store import FileIO
from objcat.adoption.adopt import AdoptionResult, adopt_files, check_unchanged, in_file_groups
from objcat.adoption.delta import open_delta
from objcat.adoption.files import PlannedFile, look_at_files, schema_with_room
from objcat.adoption.foreign import ForeignTable
from objcat.adoption.iceberg import open_iceberg
from objcat.adoption.keys import check_key_types
from objcat.catalog.names import NameBinding, check_name, log_prefix
from objcat.catalog.plans import PlanOutdated, plan_create
from objcat.catalog.table_lifecycle import create
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import KeyScope, TableType, instance, name_list, one_of, text_mapping
from objcat.errors import CommitUnknown, InvalidInput, ObjcatError
from objcat.lake.context import EMPTY_LOG_VIEW, LakeContext
from objcat.lake.create import abandon
from objcat.metadata.ordering import Ordering
from objcat.metadata.schema import check_names
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
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import FileGroupId, Txn, new_txn
from objcat.timeline.log_view import LogView, Timeline


class AdoptionSettings(TypedDict, total=False):
    """The settings of a table that is adopted. `Lake.create_table` says what each one means. Columns and partitions are the table's own."""

    ordering: Ordering | None
    key_scope: KeyScope
    index: Index | None
    table_type: TableType
    properties: Mapping[str, str] | None


@reports_full_memory
class AdoptingLake:
    """What a lake makes of tables of other formats."""

    def __init__(self, context: LakeContext) -> None:
        self._context = context

    @property
    def fileio(self) -> FileIO:
        """The store, from the prefix of the lake on."""
        return self._context.fileio

    def adopt_iceberg(self, source: Any, name: str, *, key: Sequence[str] | None, **settings: Unpack[AdoptionSettings]) -> AdoptionResult:
        """Make a table of an Iceberg table, whose data files stay where they are. Needs `objcat[adopt]`.

        The current state is adopted: schema with its field ids, partitions, rows. Data files with deleted rows are written again, all
        others are named by the new table. Nothing of the Iceberg table is changed. From then on write to the new table only: no engine may
        write to the Iceberg table, expire its snapshots or remove its files. A clean of the new table deletes adopted files that none of
        its readable slots names.

        Args:
            source: the URL of the table or of its metadata file, or a table of pyiceberg. It lies below the lake. Of a table by URL the
                metadata file with the greatest number is read; the catalog of the table knows which one is current.
            name: of the new table.
            key: the columns that identify a row. They are read, and must be unique. None: a table without a key.
            settings: of `create_table`: `ordering`, `key_scope`, `index`, `table_type` and `properties`. The index is `SimpleIndex()` by
                default, and cannot be a `BucketIndex`.

        Returns:
            What was adopted, and how many files were written again.

        Raises:
            InvalidInput, InvalidSchema: the table or an argument does not fit, or keys repeat; nothing was adopted.
            ForeignTableChanged: the Iceberg table changed meanwhile; nothing was adopted.
            TableExists: names the winner.
            MissingDependency: pyiceberg is not installed.
            CommitUnknown: the new table may have its name; see `resolve`.
        """
        return adopt_table(self._context, open_iceberg(self.fileio, source), name, key=key, **settings)

    def adopt_delta(
        self,
        source: Any,
        name: str,
        *,
        key: Sequence[str] | None,
        storage_options: Mapping[str, str] | None = None,
        **settings: Unpack[AdoptionSettings],
    ) -> AdoptionResult:
        """Make a table of a Delta table, whose data files stay where they are. Needs `objcat[adopt]`.

        As `adopt_iceberg`, with a Delta table. Partition values, which Delta does not store in files, are part of the new table's log.
        Files with deletion vectors are written again. No engine may write to the Delta table or vacuum it.

        Args:
            source: the URL of the table, or a table of deltalake. It lies below the lake.
            name: of the new table.
            key: see `adopt_iceberg`.
            storage_options: of deltalake, which reads the Delta log. None: made of the options of the lake.
            settings: see `adopt_iceberg`.

        Returns:
            What was adopted, and how many files were written again.

        Raises:
            ObjcatError: the errors of `adopt_iceberg`.
            MissingDependency: deltalake is not installed.
        """
        return adopt_table(self._context, open_delta(self.fileio, source, storage_options), name, key=key, **settings)


def adopt_table(
    lake: LakeContext, foreign: ForeignTable, name: str, *, key: Sequence[str] | None, **settings: Unpack[AdoptionSettings]
) -> AdoptionResult:
    """Create a table over the files of a foreign one, and give it its name last. Raises as `Lake.adopt_iceberg`."""
    check_name(name)
    first = lake.catalog.refresh()
    lake.catalog.check_writable()
    lake.check_free(first, name)
    check_names(foreign.table_schema.names, where=f"the {foreign.format} table at {foreign.location}")
    asked = _spec_of(lake, foreign, key=key, **settings)
    lake.check_store()
    files = look_at_files(lake.fileio, foreign, asked)
    spec = structs.replace(asked, table_schema=schema_with_room(foreign.table_schema, files))
    planned = in_file_groups(foreign, spec, files)
    prefix = log_prefix(name, lake.fileio.env.new_id())
    timeline = lake.timeline(prefix)
    txn = new_txn(lake.fileio.env)
    try:
        result, opened, view = _adopted(timeline, spec, foreign, planned, txn)
    except (ObjcatError, FileIOError):
        abandon(timeline, EMPTY_LOG_VIEW, spec.table, shared=False)
        raise
    binding = NameBinding(name=name, table=spec.table, prefix=prefix, shared_log="", opened=opened)
    try:
        lake.catalog.change(partial(plan_create, binding=binding, first=first, where=lake.fileio.url), txn=txn)
    except CommitUnknown:
        raise
    except (PlanOutdated, ObjcatError, FileIOError):
        abandon(timeline, view, spec.table, shared=False)
        raise
    lake.remember(prefix, view)
    return result


def _adopted(
    timeline: Timeline[Tables], spec: TableSpec, foreign: ForeignTable, planned: Sequence[tuple[PlannedFile, FileGroupId]], txn: Txn
) -> tuple[AdoptionResult, int, LogView[Tables]]:
    """Create the table without a name, with all rows. Returns the slot that created it, and the view with the rows."""
    try:
        created = create(timeline, EMPTY_LOG_VIEW, spec, txn)
        result, view = adopt_files(timeline, created, spec, foreign, planned)
    except CommitUnknown as error:
        # Committed or not, no name points to it, and none will. That is certain, and all that a user can see.
        if isinstance(error.__cause__, FileIOError):
            raise error.__cause__ from None
        raise
    check_unchanged(foreign)
    return result, created.slot, view


def _spec_of(lake: LakeContext, foreign: ForeignTable, *, key: Sequence[str] | None, **settings: Unpack[AdoptionSettings]) -> TableSpec:
    """The settings of the new table. Raises InvalidInput."""
    known = AdoptionSettings.__annotations__
    for setting in settings:
        if setting not in known:
            raise InvalidInput(f"{setting!r} is not a setting of an adopted table: {nearest(setting, known)}")
    index, properties = settings.get("index"), settings.get("properties")
    if isinstance(index, BucketIndex):
        raise InvalidInput(
            "The bucket index needs files with the rows of one bucket, and files of other tools have rows of all. Nothing was adopted. "
            "Choose objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex() or objcat.RecordIndex()."
        )
    if index is not None and not isinstance(index, (SimpleIndex, BloomIndex, MemoryIndex, RecordIndex)):
        instance(index, SimpleIndex, what="index", such_as="objcat.SimpleIndex(), BloomIndex(), MemoryIndex() or RecordIndex()")
    spec = make_spec(
        lake.fileio.env.new_id(),
        foreign.table_schema,
        key=None if key is None else name_list(key, what="key"),
        ordering=settings.get("ordering"),
        partition_by=list(foreign.partition_by),
        key_scope=one_of(settings.get("key_scope", TABLE_SCOPE), KEY_SCOPES, what="key_scope"),
        index=SimpleIndex() if index is None and key is not None else index,
        table_type=one_of(settings.get("table_type", MERGE_ON_READ), TABLE_TYPES, what="table_type"),
        properties={} if properties is None else text_mapping(properties, what="properties"),
    )
    check_key_types(spec)
    return spec
