"""The transactions of an entry one by one: each with its own log files, as if it had a slot of its own."""

from __future__ import annotations

import msgspec

from objcat.metadata.files import LogObject, TableDelta, decode_delta, encode_delta
from objcat.timeline.entry import Entry, Footprint, SharedCommit, data_prefix


def commits_of(entry: Entry) -> list[Entry]:
    """What each transaction of an entry did, in the order in which their rows count. All have the slot and the time of the entry.

    An entry of one transaction is the only one. Raises CorruptTable.
    """
    if not entry.also:
        return [entry]
    deltas = {table: decode_delta(raw) for table, raw in entry.changes.items()}
    own = SharedCommit(txn=entry.txn, base=entry.base, writer=entry.writer, summary=entry.summary, metadata=entry.metadata)
    return [_commit_of(entry, deltas, one) for one in (own, *entry.also)]


def _commit_of(entry: Entry, deltas: dict[str, TableDelta], one: SharedCommit) -> Entry:
    prefix = data_prefix(one.txn)
    logs = {table: tuple(log for log in delta.logs if log.path.startswith(prefix)) for table, delta in deltas.items()}
    logs = {table: files for table, files in logs.items() if files}
    return msgspec.structs.replace(
        entry,
        txn=one.txn,
        base=one.base,
        writer=one.writer,
        summary=one.summary,
        metadata=one.metadata,
        changes={table: encode_delta(TableDelta(logs=files)) for table, files in logs.items()},
        footprint={table: _footprint_of(files) for table, files in logs.items()},
        also=(),
    )


def _footprint_of(logs: tuple[LogObject, ...]) -> Footprint:
    return Footprint(appends=tuple(dict.fromkeys(rows.group_id for log in logs for rows in log.slices)))
