"""What an adoption needs to know of a foreign table: its schema, its partitions and its live data files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from objcat.metadata.schema import TableSchema

FieldIds = Mapping[str, int]
"""By name, the ids of the columns of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile:
    """A live data file of a foreign table.

    Args:
        key: in the lake.
        bytes: its size by the foreign table.
        rows: its row count by the foreign table. None: not known.
        units: of each field of `ForeignTable.partition_by`, a value of its source column that all rows share the partition of.
        values: by column id, the value of columns that the file may lack because it is the same in every row.
        masked: whether some of its rows are deleted.
        handle: what the format's own reader calls the file.
    """

    key: str
    bytes: int
    rows: int | None
    units: Sequence[Any] = ()
    values: Mapping[int, pa.Scalar] = field(default_factory=dict)
    masked: bool = False
    handle: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTable(ABC):
    """The current state of a foreign table.

    Args:
        format: for people, such as "Iceberg v2".
        location: its URL.
        version: for people, which state this is.
        table_schema: as objcat has it. Ids are those of the foreign table, where it has some.
        partition_by: as `Lake.create_table` takes it.
        files: without those that have no row.
        left_out: partition fields that objcat does not have, or that not all files have. Rows of several of their values may be in one
            partition.
        defaults: by column id, the value of rows in files that are older than the column. Null where none is given.
    """

    format: str
    location: str
    version: str
    table_schema: TableSchema
    partition_by: Sequence[str]
    files: Sequence[ForeignFile]
    left_out: Sequence[str] = ()
    defaults: Mapping[int, pa.Scalar] = field(default_factory=dict)

    @abstractmethod
    def version_now(self) -> str:
        """Which state is the current one now. It is read again."""

    @abstractmethod
    def ids_in(self, file: ForeignFile, schema: pa.Schema) -> FieldIds:
        """By name in the file, the ids of its top-level columns. Raises InvalidInput where nothing says what they are.

        schema: of the file.
        """

    @abstractmethod
    def kept_rows(self, file: ForeignFile, rows: int) -> npt.NDArray[Any]:
        """Which of the `rows` rows of a masked file are not deleted, as booleans in the order of the file."""


class TableWithFieldIds(ForeignTable):
    """A foreign table in which the ids of fields inside structs say which they are, whatever a file calls them."""

    @abstractmethod
    def rows_of(self, file: ForeignFile) -> Iterator[pa.Table]:
        """The rows of a file as the format's own library reads them, deleted ones too, under the names of the table, in their order."""
