"""What the examination of a mirror goes by: the slots that are readable, and the files of the newest mirrored one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from objcat.inspection.findings import Finding, Severity
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirroredFile, MirrorFolder

REMADE = (
    "The table is not affected. Set the property mirrors to none and run objcat mirror, then set it again and run objcat mirror: the "
    "mirror is made again from the log."
)
FOREIGN = (
    "The table is not affected. Find out what else writes there and take its right to write away. Delete what it wrote, then run objcat "
    "mirror."
)
DAMAGE = (
    CorruptMirror,
    ForeignMetadata,
    *(ValueError, LookupError, EOFError, TypeError, ArithmeticError, OSError),
    *(zlib.error, struct.error, pa.ArrowException),
)
"""What decoders raise for bytes that are no metadata. No error of a store is among them."""


@dataclass(frozen=True, slots=True)
class MirrorUnderCheck:
    """A mirror, and what its metadata is compared with.

    Attributes:
        name: of the mirror, for findings.
        folder: where it is.
        newest: its newest slot. -1: it cannot be read.
        txns: by readable slot of the log, its transaction.
        files: by path, the files of the table at the newest mirrored slot. None: the table or the mirror cannot be read there.
    """

    name: str
    folder: MirrorFolder
    newest: int
    txns: Mapping[int, str]
    files: Mapping[str, MirroredFile] | None

    def broken(self, subject: str, says: str, error: BaseException | None = None) -> Finding:
        """A finding. error: why the subject is none of the mirror's metadata."""
        return Finding("P7", Severity.BROKEN, subject, says, FOREIGN if isinstance(error, ForeignMetadata) else REMADE)

    def check_file(self, path: str, *, rows: int | None, size: int, said_by: str) -> Iterator[Finding]:
        """Compare rows and bytes of a data file, as the newest slot of the mirror says them, with the table.

        Args:
            path: relative to the log. Files that are not of the table are passed over.
            rows: all its rows, masked ones too.
            size: its bytes.
            said_by: the object of the mirror that says so.
        """
        file = None if self.files is None else self.files.get(path)
        if file is None:
            return
        if rows != file.rows:
            yield self.broken(said_by, f"says that {path} has {'no number of' if rows is None else rows} rows, and it has {file.rows}")
        if size != file.bytes:
            yield self.broken(said_by, f"says that {path} has {size} bytes, and it has {file.bytes}")

    def check_txn(self, subject: str, slot: int, txn: str | None) -> Iterator[Finding]:
        """Compare the transaction that metadata of a readable slot names with the log."""
        if slot in self.txns and txn != self.txns[slot]:
            yield self.broken(subject, f"is of transaction {txn}, and slot {slot} of the log is of {self.txns[slot]}")
