"""Scans: a pure plan from a snapshot, run by either engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fileio.config import nearest
from objcat.errors import InvalidInput
from objcat.predicate import Predicate, parse_predicate
from objcat.table import FileGroup, Manifests, Snapshot
from objcat.tasks import ScanTask


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan reads. columns: logical names, in order. plain: groups whose rows are those of their base file. merged: the other
    groups."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    where: Predicate | None
    plain: tuple[FileGroup, ...]
    merged: tuple[FileGroup, ...]

    def tasks(self, groups: Sequence[FileGroup], *, count_max: int) -> list[ScanTask]:
        """The groups dealt to at most `count_max` tasks of about equal bytes, neighbours together."""
        wanted = max(1, min(count_max, len(groups)))
        total = sum(_bytes(group) for group in groups)
        dealt: list[list[FileGroup]] = [[] for _ in range(wanted)]
        done = 0
        for group in groups:
            dealt[min(wanted - 1, done * wanted // max(1, total))].append(group)
            done += _bytes(group)
        return [ScanTask(self.snapshot.spec, tuple(part), self.columns, self.where) for part in dealt if part]


def plan_scan(snapshot: Snapshot, manifests: Manifests, *, where: str | None, columns: Sequence[str] | None) -> ScanPlan:
    """The plan of a scan. Raises InvalidPredicate, and InvalidInput for an unknown column."""
    schema = snapshot.spec.table_schema
    chosen = tuple(schema.names if columns is None else columns)
    for name in chosen:
        if name not in schema.names:
            raise InvalidInput(f"the table has no column {name!r}: {nearest(name, schema.names)}")
    if not chosen:
        raise InvalidInput("columns=[] selects nothing: name at least one column, or leave it out for all")
    if len(set(chosen)) != len(chosen):
        raise InvalidInput(f"columns={list(chosen)} names a column twice: name each once")
    predicate = None if where is None else parse_predicate(where, schema)
    groups = snapshot.file_groups(manifests, where=None if predicate is None else predicate.to_pruning())
    return ScanPlan(
        snapshot,
        chosen,
        predicate,
        plain=tuple(group for group in groups if group.is_plain),
        merged=tuple(group for group in groups if not group.is_plain),
    )


def _bytes(group: FileGroup) -> int:
    """About what reading the group costs: its base file, and its share of the log objects."""
    logs = sum(rows.object.bytes * (rows.end - rows.start) // max(1, rows.object.rows) for rows in group.logs)
    return (group.base.bytes if group.base else 0) + logs
