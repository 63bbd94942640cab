"""Clustering within the file groups of a bucket index: a compaction that sorts the rows of each group by other columns."""

from __future__ import annotations

from objcat.maintenance.cluster_keys import Clustering, check_clustering
from objcat.maintenance.compact import CompactionPlan, CompactionWork, narrowed, run_compaction
from objcat.maintenance.compaction_strategy import io_bytes
from objcat.maintenance.workers import Workers
from objcat.metadata.files import FileGroup, Order
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.planning.scan import plan_scan
from objcat.timeline.entry import Action
from objcat.timeline.log_view import LogView, Timeline
from objcat.write.service_commit import Service, ServiceCommit, run_service


def reorder(
    timeline: Timeline[Tables], table: str, clustering: Clustering, view: LogView[Tables], *, workers: Workers
) -> ServiceCommit[CompactionWork] | None:
    """Rewrite file groups whose base files are not in an order; None when all are. Raises as `cluster`.

    Nothing moves, so for everybody else it is a compaction: no writer conflicts with it.
    """
    fileio, manifests = timeline.fileio, Manifests(timeline.fileio)

    def plan(view: LogView[Tables]) -> CompactionWork | None:
        snapshot = snapshot_of(view, table, where=fileio.url)
        check_clustering(snapshot.spec, clustering)
        order = order_of(snapshot.spec, clustering)
        found = plan_scan(snapshot, manifests, where=clustering.where, columns=None).groups
        groups = _within(
            sorted((group for group in found if not _is_in_order(group, order)), key=lambda group: group.group_id), clustering.io_bytes_max
        )
        if not groups:
            return None
        chosen = CompactionPlan(view.slot, tuple(group.group_id for group in groups))
        return CompactionWork(chosen, snapshot.spec, groups, snapshot.committed_at_ms, lambda _: order)

    service = Service(
        action=Action.COMPACTION,
        table=table,
        plan=plan,
        run=lambda work, txn: run_compaction(workers, work, txn),
        narrow=narrowed,
    )
    return run_service(timeline, service, view)


def order_of(spec: TableSpec, clustering: Clustering) -> Order | None:
    """The order that files declare; None where it is that of the key, as it is without columns."""
    columns = tuple(spec.table_schema.column(name).id for name in clustering.by)
    return None if columns in ((), tuple(spec.key)) and not clustering.zorder else Order(columns=columns, zorder=clustering.zorder)


def _is_in_order(group: FileGroup, order: Order | None) -> bool:
    return group.base is not None and group.base.order == order


def _within(groups: list[FileGroup], io_bytes_max: int | None) -> tuple[FileGroup, ...]:
    """As many groups as the byte limit allows, at least one."""
    if io_bytes_max is None:
        return tuple(groups)
    taken: list[FileGroup] = []
    left = io_bytes_max
    for group in groups:
        if not taken or io_bytes(group) <= left:
            taken.append(group)
            left -= io_bytes(group)
    return tuple(taken)
