"""The task functions that every engine runs: small picklable values in, Arrow in, file entries or Arrow out. They never touch the log."""

from objcat.tasks.append import append_rows, fill_group
from objcat.tasks.arrival import POSITION, in_frame_order
from objcat.tasks.current import current_rows
from objcat.tasks.insert import write_inserts
from objcat.tasks.locate import BatchKeys, Gathered, Located, LocateTask, locate, placed, waiting
from objcat.tasks.model import (
    OP_FIELD,
    PLACE_COLUMN,
    PLACE_FIELD,
    TXN_FIELD,
    Filter,
    Layout,
    Operation,
    Rewritten,
    ScanTask,
    WriteResult,
    WriteTask,
)
from objcat.tasks.parallel import run_all
from objcat.tasks.regroup import Changed, DeleteTask, rewrite_groups, rewrite_without
from objcat.tasks.rewrite import rewrite_homes
from objcat.tasks.scan import FILE_COLUMN, HIDDEN_FIELDS, ahead_of, own_rows, scan_groups, scan_schema
from objcat.tasks.write import log_schema, write_rows, written_columns
from objcat.tasks.write_batches import write_routed, write_unrouted

__all__ = [
    "FILE_COLUMN",
    "HIDDEN_FIELDS",
    "OP_FIELD",
    "PLACE_COLUMN",
    "PLACE_FIELD",
    "POSITION",
    "TXN_FIELD",
    "BatchKeys",
    "Changed",
    "DeleteTask",
    "Filter",
    "Gathered",
    "Layout",
    "LocateTask",
    "Located",
    "Operation",
    "Rewritten",
    "ScanTask",
    "WriteResult",
    "WriteTask",
    "ahead_of",
    "append_rows",
    "current_rows",
    "fill_group",
    "in_frame_order",
    "locate",
    "log_schema",
    "own_rows",
    "placed",
    "rewrite_groups",
    "rewrite_homes",
    "rewrite_without",
    "run_all",
    "scan_groups",
    "scan_schema",
    "waiting",
    "write_inserts",
    "write_routed",
    "write_rows",
    "write_unrouted",
    "written_columns",
]
