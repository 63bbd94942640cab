"""The first write of a table that it creates: what cannot be written is refused before the table is there, or takes the table with it."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.catalog.plans import plan_drop
from objcat.catalog.table_lifecycle import close_unchanged
from objcat.datafile.batch_checks import conform
from objcat.errors import ObjcatError
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.table.batch_input import prepare_batch
from objcat.tasks.model import Operation
from objcat.timeline.log_view import Timeline

logger = logging.getLogger("objcat")

ROWS_AT_ONCE = 128 * 1024


def check_rows(fileio: FileIO, data: Any, spec: TableSpec, operation: Operation, *, table: str) -> None:
    """Refuse a batch that a table which is to be created cannot take: the columns of any, and the rows of one in memory.

    table: as users call it. Raises as `prepare_batch`, InvalidBatch and NullKey.
    """
    rows = prepare_batch(fileio, data, spec, operation, table=table).data
    if isinstance(rows, pa.Table):
        for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
            conform(pa.Table.from_batches([batch]), spec)


def drop_created_table(catalog: Catalog, timeline: Timeline[Tables], table: str, *, opened: int) -> bool:
    """Drop a table whose first write was refused, unless somebody has committed to it. Returns whether it was. Never raises.

    table: its id. opened: the slot that created it. The slot of the CLOSE decides: a commit of another that has it keeps the table, and one
    that comes later is refused.
    """
    try:
        closed = close_unchanged(timeline, timeline.at(opened), table)
        if closed is None:
            return False
        catalog.change(lambda names: plan_drop(names, table, closed))
    except (ObjcatError, FileIOError) as error:
        logger.warning("the table %s of %s was created for a write that was refused, and may be there: %s", table, catalog.where, error)
        return False
    return True
