"""Clustering within the file groups of a table with a key: a compaction that writes the rows of each in an order of other columns."""

from __future__ import annotations

from objcat.read.plan import plan_scan
from objcat.services.clustering import Clustering, check_clustering
from objcat.services.compact import CompactionPlan, CompactionWork, narrowed, run_compaction
from objcat.services.perform import Done, Service, perform
from objcat.services.strategy import io_bytes
from objcat.services.workers import Workers
from objcat.table import FileGroup, Manifests, Tables, TableSpec
from objcat.table.files import Order
from objcat.table.snapshot import snapshot_of
from objcat.timeline import Action, Timeline, View


def reorder(
    timeline: Timeline[Tables], table: str, clustering: Clustering, view: View[Tables], *, workers: Workers
) -> Done[CompactionWork] | None:
    """Rewrite file groups whose base files are not in an order; None when all are. view: where to begin. Errors as of `cluster`.

    Nothing moves, so to everybody else it is a compaction: no writer ever conflicts with it.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)

    def plan(view: View[Tables]) -> CompactionWork | None:
        snapshot = snapshot_of(view, table, where=fileio.url)
        check_clustering(snapshot.spec, clustering)
        order = order_of(snapshot.spec, clustering)
        found = plan_scan(snapshot, manifests, where=clustering.where, columns=None).groups
        groups = _within(
            sorted((group for group in found if not _is_in_order(group, order)), key=lambda group: group.home), clustering.io_bytes_max
        )
        if not groups:
            return None
        chosen = CompactionPlan(view.slot, tuple(group.home for group in groups))
        return CompactionWork(chosen, snapshot.spec, groups, snapshot.committed_at_ms, lambda _: order)

    service = Service(
        action=Action.COMPACTION,
        table=table,
        plan=plan,
        run=lambda work, txn: run_compaction(workers, work, txn),
        narrow=narrowed,
    )
    return perform(timeline, service, view)


def order_of(spec: TableSpec, clustering: Clustering) -> Order | None:
    """What files are to say of their order: nothing where it is that of the key, as it is without columns."""
    columns = tuple(spec.table_schema.column(name).id for name in clustering.by)
    return None if columns in ((), tuple(spec.key)) and not clustering.zorder else Order(columns=columns, zorder=clustering.zorder)


def _is_in_order(group: FileGroup, order: Order | None) -> bool:
    return group.base is not None and group.base.order == order


def _within(groups: list[FileGroup], io_bytes_max: int | None) -> tuple[FileGroup, ...]:
    """As many as a bound of bytes allows, at least one."""
    if io_bytes_max is None:
        return tuple(groups)
    taken: list[FileGroup] = []
    left = io_bytes_max
    for group in groups:
        if not taken or io_bytes(group) <= left:
            taken.append(group)
            left -= io_bytes(group)
    return tuple(taken)
