"""History files: whole entries of archived slots as Parquet, one row each.

The only module of the log that uses Arrow. It is imported late.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from objcat.errors import CorruptTable
from objcat.timeline.entry import Entry, decode_entry, log_key
from objcat.timeline.json_objects import RESTORE

SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("txn", pa.string(), nullable=False),
        pa.field("rollback_of", pa.string()),
        pa.field("entry", pa.binary(), nullable=False),
    ]
)
"""`entry` holds the bytes of the slot before it was archived. The other columns repeat parts of it for query engines."""


def encode_history(bodies: Sequence[bytes], entries: Sequence[Entry]) -> bytes:
    """The bytes of a history file.

    Args:
        bodies: The bytes of slots, in slot order.
        entries: The same slots, decoded.
    """
    columns = {
        "slot": [entry.slot for entry in entries],
        "committed_at": [entry.committed_at_ms for entry in entries],
        "action": [str(entry.action) for entry in entries],
        "txn": [entry.txn for entry in entries],
        "rollback_of": [entry.rollback_of for entry in entries],
        "entry": list(bodies),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue())


def decode_history(data: bytes, *, path: str) -> list[Entry]:
    """The entries of a history file, in row order. Raises CorruptTable, UnsupportedFormat."""
    return [decode_entry(body, key=f"{log_key(slot)} in {path}") for slot, body in decode_bodies(data, path=path)]


def decode_bodies(data: bytes, *, path: str) -> list[tuple[int, bytes]]:
    """The slots of a history file and their bytes, in row order. Raises CorruptTable."""
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["slot", "entry"])
    except (pa.ArrowException, OSError) as error:
        raise CorruptTable(f"{path} is not a history file of objcat ({error}). {RESTORE}") from error
    return list(zip(table.column("slot").to_pylist(), table.column("entry").to_pylist(), strict=True))
