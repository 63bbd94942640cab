"""What a table is: schema with column ids, settings, and the snapshot that the log folds to. No data is read or written here."""

from objcat.table.schema import Column, TableSchema
from objcat.table.snapshot import BaseFile, FileGroup, LogObject, LogRows, Snapshot
from objcat.table.spec import Bucket, TableSpec

__all__ = ["BaseFile", "Bucket", "Column", "FileGroup", "LogObject", "LogRows", "Snapshot", "TableSchema", "TableSpec"]
