"""Dropped tables of a lake: how a table is dropped, restored, or purged.

A drop has two steps: the table's own log gets a CLOSE, then the catalog takes the name away. The data stays until a purge, so the table can
come back until then. Begin with `drop_table`. `objcat.catalog.plans` plans the changes of names.
"""

from __future__ import annotations

from functools import partial

from objcat.catalog.names import CatalogNames, DroppedTable, check_name
from objcat.catalog.plans import PlanOutdated, find_dropped, plan_purge, plan_undrop, renamed
from objcat.catalog.table_lifecycle import reopen
from objcat.common.validation import case_folded, seconds, text
from objcat.errors import TableMoved
from objcat.lake.context import ATTEMPTS_MAX, LakeContext
from objcat.maintenance.clean import CleanResult
from objcat.maintenance.purge import purge
from objcat.table.table import Table


def drop_table(lake: LakeContext, name: str) -> None:
    """See `Lake.drop_table`."""
    for _ in range(ATTEMPTS_MAX):
        binding = lake.newest_binding(name)
        lake.catalog.check_writable()
        try:
            closed = lake.close_table(binding)
        except TableMoved:
            continue  # Drop it where it is now.
        lake.finish_drop(binding.table, closed)
        return
    raise lake.contended(f"The table {name!r} moved {ATTEMPTS_MAX} times while it was dropped")


def undrop_table(lake: LakeContext, name: str, *, new_name: str | None, table: str | None) -> Table:
    """See `Lake.undrop_table`."""
    target = check_name(new_name if new_name is not None else name)
    for _ in range(ATTEMPTS_MAX):
        names, dropped = _find(lake, name, table)
        lake.check_free(names, target)
        timeline, view = lake.open_log(dropped.binding.prefix)
        view = reopen(timeline, view, dropped.table)
        lake.remember(dropped.binding.prefix, view)
        binding = renamed(dropped.binding, target, opened=view.slot)
        try:
            lake.catalog.change(partial(plan_undrop, dropped=dropped, binding=binding, first=names, where=lake.fileio.url))
        except PlanOutdated:
            continue
        return lake.table(target, dropped.table, timeline, view)
    raise lake.contended(f"The table {name!r} was dropped and restored {ATTEMPTS_MAX} times meanwhile")


def dropped_tables(lake: LakeContext, namespace: str | None) -> list[DroppedTable]:
    """See `Lake.dropped_tables`."""
    names = lake.catalog.refresh()
    below = "" if namespace is None else case_folded(text(namespace, what="name of a namespace")) + "."
    found = [table for table in names.dropped.values() if case_folded(table.name).startswith(below) and not table.is_purged]
    return sorted(found, key=lambda table: table.slot, reverse=True)


def purge_table(lake: LakeContext, name: str, *, older_than_s: float, table: str | None) -> CleanResult:
    """See `Lake.purge_table`."""
    seconds(older_than_s, what="older_than_s")
    _, dropped = _find(lake, check_name(name), table)
    done = purge(lake.timeline(dropped.binding.prefix), dropped.table, older_than_s=older_than_s)
    lake.catalog.change(lambda names: plan_purge(names, dropped))
    return done


def _find(lake: LakeContext, name: str, table: str | None) -> tuple[CatalogNames, DroppedTable]:
    """The newest names, and a dropped table in them. A drop that was interrupted is finished first."""
    names = lake.catalog.refresh()
    lake.catalog.check_writable()
    bound = names.table(name)
    if bound is not None:
        lake.complete_drop(bound)
        names = lake.catalog.names
    return names, find_dropped(names, name, table, where=lake.fileio.url)
