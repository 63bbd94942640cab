"""What is read of Kafka, and what it becomes: `KafkaMessage` and `MessageChange`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from objcat.ingest.model import BadRecord, RowChange, TableTruncated

ROW_BYTES = 600
"""About what the objects of a message take, next to its bytes."""
BYTES_FACTOR = 4
"""About how many bytes of objects a byte of a message becomes."""


class KafkaMessage(msgspec.Struct, frozen=True):
    """A message of a topic. timestamp_ms: of the record, None where it has none. epoch: of the leader that wrote it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    epoch: int | None = None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.topic}/{self.partition}@{self.offset}"

    @property
    def size_bytes(self) -> int:
        """About how much memory its change takes."""
        return ROW_BYTES + BYTES_FACTOR * (len(self.key or b"") + len(self.value or b""))


class MessageChange(msgspec.Struct, frozen=True):
    """A change that a message says.

    Args:
        change: the change.
        transaction: of the source that it belongs to, None for one that belongs to none.
        total_order: its number in the transaction.
        collections: names that Debezium may count it by: `public.orders`.
        committed_at_ms: when the source committed it, or the time of the record.
        is_snapshot: whether it is part of a snapshot of the source.
        ends_snapshot: whether it is the last one of a snapshot.
        is_incremental: whether it is part of a snapshot that has no last one.
        defaults: values by column: what older rows have in the columns of the table.
    """

    change: RowChange | TableTruncated | BadRecord
    transaction: str | None = None
    total_order: int = 0
    collections: tuple[str, ...] = ()
    committed_at_ms: int | None = None
    is_snapshot: bool = False
    ends_snapshot: bool = False
    is_incremental: bool = False
    defaults: Mapping[str, Any] = {}


class Unreadable(ValueError):
    """A message cannot be read. Its text says why; the message goes to the dead letters."""
