"""Builds the `ServiceResult` of a service from the files that it wrote."""

from __future__ import annotations

from objcat.metadata.files import BaseFile, LogObject, TableDelta, encode_delta, features_of
from objcat.metadata.snapshot import Snapshot
from objcat.tasks.model import WriteResult
from objcat.timeline.entry import Footprint, Keys, Summary
from objcat.write.service_commit import ServiceResult


def proposal_of(written: WriteResult, snapshot: Snapshot, *, keys: Keys | None = None) -> ServiceResult:
    """What to commit for deletes or for rewritten file groups.

    keys: of deletes under an index without hash buckets.
    """
    replaces = tuple(sorted(base.group_id for base in written.bases))
    appends = tuple(sorted({rows.group_id for log in written.logs for rows in log.slices}.difference(replaces)))
    files: list[BaseFile | LogObject] = [*(base for base in written.bases if base.source is None), *written.logs]
    index = TableDelta(logs=written.index) if written.index else None
    delta = TableDelta(bases=written.bases, logs=written.logs, as_of=snapshot.slot if replaces else None, index=index)
    return ServiceResult(
        features=features_of(delta),
        footprint=Footprint(replaces=replaces, appends=appends, rmw=appends, keys=keys),
        changes=encode_delta(delta),
        summary=Summary(
            rows=written.rows,
            inserted=0,
            updated=sum(group_id.updated for group_id in written.rewritten),
            deleted=sum(group_id.deleted for group_id in written.rewritten) if written.rewritten else written.rows,
            files=len(files),
            bytes=sum(file.bytes for file in files),
        ),
        files=tuple(delta.paths),
    )
