"""What a table is: schema with column ids, settings, and the snapshot that the log folds to. No data is read or written here."""

from objcat.table.files import BaseFile, LogObject, LogRows, TableDelta
from objcat.table.schema import Column, TableSchema
from objcat.table.snapshot import FileGroup, Manifests, Snapshot, Tables, TablesFold, TableState
from objcat.table.spec import Bucket, TableSpec

__all__ = [
    "BaseFile",
    "Bucket",
    "Column",
    "FileGroup",
    "LogObject",
    "LogRows",
    "Manifests",
    "Snapshot",
    "TableDelta",
    "TableSchema",
    "TableSpec",
    "TableState",
    "Tables",
    "TablesFold",
]
