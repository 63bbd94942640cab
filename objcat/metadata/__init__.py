"""What a table is: schema with column ids, settings, and the snapshot that the log folds to. No data is read or written here."""

from objcat.table.files import BaseFile, FileGroup, LogObject, LogRows, LogSlice, TableDelta
from objcat.table.fold import TablesFold
from objcat.table.manifest import Condition, Junction, Manifests, Pruning
from objcat.table.schema import Column, TableSchema
from objcat.table.snapshot import Snapshot
from objcat.table.spec import Bloom, Bucket, Memory, Record, Simple, TableSpec
from objcat.table.state import Tables, TableState

__all__ = [
    "BaseFile",
    "Bloom",
    "Bucket",
    "Column",
    "Condition",
    "FileGroup",
    "Junction",
    "LogObject",
    "LogRows",
    "LogSlice",
    "Manifests",
    "Memory",
    "Pruning",
    "Record",
    "Simple",
    "Snapshot",
    "TableDelta",
    "TableSchema",
    "TableSpec",
    "TableState",
    "Tables",
    "TablesFold",
]
