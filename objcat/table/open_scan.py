"""`open_scan`: plans a scan of a table at its newest snapshot, or at an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from objcat.common.validation import AsOf, ScanMode, name_list, one_of, whole_number
from objcat.metadata.snapshot import Snapshot
from objcat.planning.scan import MODES, SNAPSHOT, ScanPlan, plan_scan
from objcat.table.context import TableContext
from objcat.table.scan import Scan


def open_scan(
    context: TableContext,
    *,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    as_of: AsOf | None = None,
    limit: int | None = None,
    mode: ScanMode = SNAPSHOT,
) -> Scan:
    """See `Table.scan`."""
    columns = None if columns is None else name_list(columns, what="columns")
    one_of(mode, MODES, what="mode")
    if limit is not None:
        whole_number(limit, what="limit")

    def plan_of(snapshot: Snapshot) -> ScanPlan:
        return plan_scan(snapshot, context.manifests, where=where, columns=columns, mode=mode)

    def plan() -> ScanPlan:
        return context.on_newest(plan_of) if as_of is None else plan_of(context.snapshot_as_of(as_of))

    planned = context.retry_on_new_checkpoint(plan)
    return Scan(
        context.fileio,
        planned,
        context.manifests,
        limit=limit,
        check=lambda: context.check_readable(planned.snapshot.slot),
        commits=context.commits_of,
    )
