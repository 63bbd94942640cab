"""Rewriting file groups of a table without a key, and what a service that has written files says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from fileio.store import FileIO
from objcat.services.perform import Proposal
from objcat.storage.files import BaseWriter, base_path
from objcat.table import BaseFile, FileGroup, LogObject, Snapshot, TableDelta, TableSpec
from objcat.table.files import encode_delta
from objcat.tasks import TXN_FIELD, Rewritten, WriteResult, run_all
from objcat.tasks.current import current_cuts, loaded_logs, rewritten_at_once
from objcat.timeline import Footprint, Summary, Txn


@dataclass(frozen=True, slots=True)
class Changed:
    """What some rows become, and how many of them are other ones or gone."""

    rows: pa.Table
    updated: int = 0
    deleted: int = 0


def rewrite_groups(
    fileio: FileIO, spec: TableSpec, groups: Sequence[FileGroup], txn: Txn, change: Callable[[pa.Table], Changed]
) -> WriteResult:
    """The groups of a table without a key of which some rows change, rewritten; the others stay as they are.

    change: is given the rows of a group a few row groups at a time, under physical names with the txn that wrote each. Raises CorruptTable,
    storage errors, and what `change` raises.
    """
    logs = loaded_logs(fileio, spec, groups)

    def rewrite(group: FileGroup) -> tuple[BaseFile, int, int] | None:
        schema = spec.table_schema.to_arrow_physical().append(TXN_FIELD)
        path = base_path(txn, group.home, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
        updated = deleted = 0
        with BaseWriter(fileio, path, schema, group.home, bounded=spec.bounded, filtered=spec.filtered) as writer:
            for rows, _ in current_cuts(fileio, spec, group, logs):
                changed = change(rows)
                updated, deleted = updated + changed.updated, deleted + changed.deleted
                writer.write(changed.rows.select(schema.names))
            return (writer.finish(), updated, deleted) if updated or deleted else None

    at_once = rewritten_at_once(groups, most=fileio.env.parallelism)
    found = [one for one in run_all(fileio.env, rewrite, groups, at_once=at_once) if one is not None]
    rewritten = tuple(Rewritten(base.home, updated + deleted, 0, updated, deleted, changed=True) for base, updated, deleted in found)
    return WriteResult(tuple(base for base, _, _ in found), rows=sum(home.rows for home in rewritten), rewritten=rewritten)


def proposal_of(written: WriteResult, snapshot: Snapshot) -> Proposal:
    """What to commit of deletes, or of rewritten groups."""
    replaces = tuple(sorted(base.home for base in written.bases))
    appends = tuple(sorted({rows.home for log in written.logs for rows in log.homes}.difference(replaces)))
    files: list[BaseFile | LogObject] = [*written.bases, *written.logs]
    return Proposal(
        footprint=Footprint(replaces=replaces, appends=appends, rmw=appends),
        changes=encode_delta(TableDelta(bases=written.bases, logs=written.logs, as_of=snapshot.slot if replaces else None)),
        summary=Summary(
            rows=written.rows,
            inserted=0,
            updated=sum(home.updated for home in written.rewritten),
            deleted=sum(home.deleted for home in written.rewritten) if written.rewritten else written.rows,
            files=len(files),
            bytes=sum(file.bytes for file in files),
        ),
        files=tuple(file.path for file in files),
    )
