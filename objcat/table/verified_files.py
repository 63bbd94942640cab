"""Checks files before Spark reads them, and says what their footers tell of event-time order."""

from __future__ import annotations

from fileio.store import FileIO
from objcat.datafile.verification import check_footers
from objcat.metadata.manifest import Manifests
from objcat.metadata.ordering import OrderingBounds
from objcat.planning.event_time import UNKNOWN, LogOrder, log_order
from objcat.planning.scan import ScanPlan
from objcat.table.stale_rows import stale_rows


def verified(fileio: FileIO, manifests: Manifests, plan: ScanPlan) -> LogOrder:
    """Verify the footers of the files of a plan, see `check_footers`.

    Returns:
        What they tell of the ordering values of its log rows. Where few of these may be stale, it reads which are.

    Raises:
        CorruptTable: a file is not what was committed. And storage errors.
    """
    ordering = plan.snapshot.spec.ordering_columns
    check_footers(fileio, plan.groups, manifests.footers, ordering=ordering)
    if not ordering:
        return UNKNOWN
    types = tuple(column.type for column in ordering)

    def bounds_of(path: str) -> OrderingBounds | None:
        found = manifests.footers.get(path)
        return None if found is None or found.types != types else found.ordering

    order = log_order(plan.merged, bounds_of)
    if order.is_commit_order or order == UNKNOWN or plan.hashes is not None:
        return order  # Of a few keys, Spark compares less than would be read here.
    stale = stale_rows(fileio, manifests, plan.snapshot.spec, plan.merged, bounds_of)
    return order if stale is None else LogOrder(is_commit_order=True, wins_over_base=True, limit=order.limit, stale=stale)
