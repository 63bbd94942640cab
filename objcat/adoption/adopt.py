"""Adopts the files of a foreign table in one commit to a new table that has no name yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fileio.store import FileIO
from objcat.adoption.files import PlannedFile, partition_texts, with_txn
from objcat.adoption.foreign import ForeignTable, TableWithFieldIds
from objcat.adoption.keys import check_keys, index_of
from objcat.common.progress import shown_progress
from objcat.datafile.batch_checks import conform
from objcat.datafile.parquet import BaseWriter, base_path, base_pieces, constant
from objcat.errors import ForeignTableChanged, InvalidInput
from objcat.metadata.consistency import check_own
from objcat.metadata.files import OUTER, BaseFile, TableDelta, encode_delta, features_of
from objcat.metadata.table_spec import RecordIndexSpec, TableSpec
from objcat.metadata.table_state import Tables
from objcat.tasks.model import TXN_FIELD
from objcat.tasks.parallel import run_all
from objcat.tasks.row_order import by_key
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.commit_session import CommitSession
from objcat.timeline.entry import BUCKETS_MAX, Action, FileGroupId, Footprint, Summary, Txn, new_txn
from objcat.timeline.log_view import LogView, Timeline

REWRITTEN_AT_ONCE = 2
"""Files that are written again at the same time. A sort by key holds some row groups of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionResult:
    """A foreign table that is a table of the lake now.

    Attributes:
        format: such as "Iceberg v2" or "Delta".
        version: the state of the foreign table that was adopted: its metadata file, or its version.
        files_named: data files that are named where they are.
        files_rewritten: data files whose rows were written again, and why they could not be named: by reason, how many.
        rows: of the table.
        bytes: of the files that are named.
        left_out: partition fields of the foreign table that the new table does not have.
        slot: of the commit.
    """

    format: str
    version: str
    files_named: int
    files_rewritten: dict[str, int]
    rows: int
    bytes: int
    left_out: tuple[str, ...]
    slot: int


def in_file_groups(table: ForeignTable, spec: TableSpec, files: Sequence[PlannedFile]) -> list[tuple[PlannedFile, FileGroupId]]:
    """Each file that has rows, with its file group. Raises InvalidInput where a partition has more files than file groups."""
    planned = [one for one in files if one.rows]
    texts = partition_texts(spec, planned)
    taken: Counter[str] = Counter()
    found = []
    for one, text in zip(planned, texts, strict=True):
        found.append((one, FileGroupId(text, taken[text], BUCKETS_MAX)) if taken[text] < BUCKETS_MAX else (one, FileGroupId(text, 0, 1)))
        taken[text] += 1
    partition, most = max(taken.items(), key=lambda item: item[1], default=("", 0))
    if most > BUCKETS_MAX:
        raise InvalidInput(
            f"The partition {partition!r} of the {table.format} table at {table.location} has {most:,} data files, and a partition holds "
            f"{BUCKETS_MAX:,}. Nothing was adopted. Compact the table in its own engine first."
        )
    return found


def adopt_files(
    timeline: Timeline[Tables],
    view: LogView[Tables],
    spec: TableSpec,
    table: ForeignTable,
    planned: Sequence[tuple[PlannedFile, FileGroupId]],
) -> tuple[AdoptionResult, LogView[Tables]]:
    """Commit the files of a foreign table to a table that was just created, and that nobody else knows.

    Files with deleted rows are written again. Keys are checked before the commit.

    Args:
        timeline: of the new table.
        view: in which it is empty.
        planned: of `in_file_groups`.

    Returns:
        The result, and the view after the commit.

    Raises:
        InvalidInput: the keys are not unique, or a key is null.
        ForeignTableChanged: the foreign table changed meanwhile.
        CommitUnknown: the commit may have landed; the table has no name in any case.
    """
    fileio = timeline.fileio
    txn = new_txn(fileio.env)
    session = CommitSession(Committer(fileio), txn, waits=True)
    action = Action.COMMIT if spec.rewrites else Action.DELTA_COMMIT
    skew_ms = session.announce(action, view.log, engine="local")
    with session:
        bases = _bases(fileio, spec, table, planned, txn)
        if spec.has_key:
            check_keys(fileio, spec, bases)
        logs = index_of(fileio, spec, bases, txn) if isinstance(spec.index, RecordIndexSpec) else ()
        check_unchanged(table)
        delta = TableDelta(bases=tuple(bases), index=TableDelta(logs=logs) if logs else None)
        rows = sum(base.rows for base in bases)
        size = sum(base.bytes for base in bases)
        candidate = CommitAttempt(
            txn=txn,
            action=action,
            base=view.log,
            changes={spec.table: encode_delta(delta)},
            footprint={spec.table: Footprint(creates=tuple(base.group_id for base in bases))},
            features=features_of(delta),
            summary=Summary(rows=rows, inserted=rows, updated=0, deleted=0, files=len(bases), bytes=size),
            metadata={"adopted": table.location, "adopted_version": table.version},
        )
        check_own(delta, candidate, spec.table)
        committed = session.commit(candidate, skew_ms=skew_ms())
    named = [base for base in bases if base.adopted is not None]
    result = AdoptionResult(
        format=table.format,
        version=table.version,
        files_named=len(named),
        files_rewritten=dict(Counter(one.reason for one, _ in planned if one.reason)),
        rows=rows,
        bytes=sum(base.bytes for base in named),
        left_out=tuple(table.left_out),
        slot=committed.entry.slot,
    )
    return result, timeline.advance(view, [*committed.read, committed.entry])


def check_unchanged(table: ForeignTable) -> None:
    """Raises ForeignTableChanged where the foreign table has another current state than the one that was read."""
    now = table.version_now()
    if now != table.version:
        raise ForeignTableChanged(
            f"The {table.format} table at {table.location} changed from {table.version} to {now} while it was adopted. Nothing was "
            "adopted. Stop its writers, and adopt it again."
        )


def _bases(
    fileio: FileIO, spec: TableSpec, table: ForeignTable, planned: Sequence[tuple[PlannedFile, FileGroupId]], txn: Txn
) -> list[BaseFile]:
    drafts = [(one, _named(one, group_id, txn)) for one, group_id in planned]
    masked = [(one, draft) for one, draft in drafts if one.reason]
    rows = sum(draft.rows for _, draft in masked)
    with shown_progress(fileio.env, "objcat: rewrite files", rows, unit="rows") as advance:

        def rewrite(pair: tuple[PlannedFile, BaseFile]) -> BaseFile | None:
            """The file that takes the place of another."""
            written = _rewritten(fileio, spec, table, *pair, txn)
            advance(pair[1].rows)
            return written

        written = run_all(fileio.env, rewrite, masked, at_once=REWRITTEN_AT_ONCE)
    bases = [draft for one, draft in drafts if not one.reason] + [base for base in written if base is not None]
    return sorted(bases, key=lambda base: base.group_id)


def _named(planned: PlannedFile, group_id: FileGroupId, txn: Txn) -> BaseFile:
    """A data file of the foreign table as a base file."""
    return BaseFile(
        path=f"{OUTER}/{planned.file.key}",
        bytes=planned.file.bytes,
        rows=planned.rows,
        group_id=group_id,
        bounds=dict(planned.bounds),
        digest=planned.digest,
        footer=planned.footer_digest,
        adopted=with_txn(planned, txn),
    )


def _rewritten(fileio: FileIO, spec: TableSpec, table: ForeignTable, planned: PlannedFile, draft: BaseFile, txn: Txn) -> BaseFile | None:
    """Write the rows of a data file that are not deleted. None if there are none."""
    schema = spec.table_schema.to_arrow_physical()
    kept = table.kept_rows(planned.file, draft.rows) if planned.file.masked else np.ones(draft.rows, np.bool_)
    pieces = _masked(_all_rows(fileio, spec, table, planned, draft), kept)
    if spec.has_key:
        pieces = by_key(pieces, key=[column.physical for column in spec.key_columns])
    path = base_path(txn, draft.group_id, file_id=fileio.env.new_id(), attempt=fileio.env.new_id())
    marked = schema.append(TXN_FIELD)
    with BaseWriter(fileio, path, marked, draft.group_id, statistics=spec.statistics, filtered=spec.filtered) as writer:
        for rows in pieces:
            if rows.num_rows:
                writer.write(rows.cast(schema).append_column(TXN_FIELD, constant(txn, rows.num_rows)))
        return writer.finish() if writer.rows else None


def _all_rows(fileio: FileIO, spec: TableSpec, table: ForeignTable, planned: PlannedFile, draft: BaseFile) -> Iterator[pa.Table]:
    """All rows of a data file under physical names, in its order."""
    if planned.by_library:
        assert isinstance(table, TableWithFieldIds), "only files of such tables are planned so"
        for rows in table.rows_of(planned.file):
            yield conform(rows, spec)
        return
    names = [column.physical for column in spec.table_schema.columns]
    yield from base_pieces(fileio, draft, names, spec=spec)


def _masked(pieces: Iterator[pa.Table], kept: Any) -> Iterator[pa.Table]:
    begin = 0
    for rows in pieces:
        yield rows.filter(pa.array(kept[begin : begin + rows.num_rows]))
        begin += rows.num_rows
