"""Explains a scan: what it reads, what it leaves out, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from objcat.inspection.snapshot_stats import SnapshotStats, survey_of
from objcat.metadata.manifest import Manifests
from objcat.planning.scan import ScanPlan


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one reason leaves out, of what earlier reasons left.

    bytes: of files, and of log rows by their share.
    """

    groups: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a scan reads. `str()` formats it for people.

    Attributes:
        slot: the slot of its snapshot.
        committed_at_ms: the commit time of that slot, in milliseconds since 1970 UTC.
        where: the filter as text, or None.
        columns: the selected columns.
        limit: the row limit, or None.
        total: everything live in the snapshot.
        read: what this scan reads at most. A limit stops it earlier, and in large files statistics exclude row groups.
        pruned: what each reason leaves out, in order: `partition` (bounds of partition columns), `bucket` (hash of the key), `statistics`
            (bounds
            of other columns, and of the key in log rows).
        merged: file groups of `read` whose log rows are merged with their base file.
    """

    slot: int
    committed_at_ms: int
    where: str | None
    columns: tuple[str, ...]
    limit: int | None
    total: SnapshotStats
    read: SnapshotStats
    pruned: dict[str, Pruned]

    @property
    def merged(self) -> int:
        """Number of file groups that need a merge with log rows."""
        return self.read.groups - self.read.plain

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.committed_at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6]
        read, total = self.read, self.total
        lines = [
            f"snapshot  slot {self.slot}, {when} UTC",
            f"columns   {', '.join(self.columns)}",
            f"where     {self.where or '(everything)'}",
            *([] if self.limit is None else [f"limit     {self.limit:,} rows: stops when it has them"]),
            f"reads     {read.base_files:,} of {total.base_files:,} base files, {_of_bytes(read.base_bytes, total.base_bytes)}",
            f"          {read.log_rows:,} of {total.log_rows:,} log rows, in {read.log_objects:,} of {total.log_objects:,} log objects",
            f"groups    {read.plain:,} plain, {self.merged:,} merged with log rows, of {total.groups:,}",
        ]
        for reason, pruned in self.pruned.items():
            if pruned.groups:
                lines.append(f"pruned    by {reason}: {pruned.groups:,} groups, {pruned.files:,} base files, {bytes_text(pruned.bytes)}")
        return "\n".join(lines)


def explain_plan(plan: ScanPlan, manifests: Manifests, *, limit: int | None) -> Explanation:
    """Explain a plan. Costs as much as the planning, and no request if its manifests are cached. Raises as `Manifests.load`."""
    snapshot, where = plan.snapshot, plan.where
    partition_columns = [column.name for column in snapshot.spec.partition_columns]
    by_partition = None if where is None else where.to_pruning(only=partition_columns)
    stages: dict[str, dict[str, Any]] = {
        "": {},
        "partition": {"where": by_partition},
        "bucket": {"where": by_partition, "hashes": plan.hashes},
        "statistics": {"where": None if where is None else where.to_pruning(), "hashes": plan.hashes},
    }
    surveys = [survey_of(snapshot, manifests, mode=plan.mode, **chosen) for chosen in stages.values()]
    surveys[-1] = _as_planned(surveys[-1], plan)
    pruned = {
        reason: Pruned(before.groups - after.groups, before.base_files - after.base_files, before.bytes - after.bytes)
        for reason, before, after in zip(list(stages)[1:], surveys, surveys[1:], strict=False)
    }
    return Explanation(
        slot=snapshot.slot,
        committed_at_ms=snapshot.committed_at_ms,
        where=None if where is None else where.text,
        columns=plan.columns,
        limit=limit,
        total=surveys[0],
        read=surveys[-1],
        pruned=pruned,
    )


def _as_planned(survey: SnapshotStats, plan: ScanPlan) -> SnapshotStats:
    """Statistics of whole file groups, but only with the log rows that the plan reads."""
    logs = [part for group in plan.groups for part in group.logs]
    return replace(
        survey,
        groups=len(plan.groups),
        plain=len(plan.plain),
        log_objects=len({part.object.path for part in logs}),
        log_rows=sum(part.rows for part in logs),
        log_bytes=sum(part.object.bytes * part.rows // max(1, part.object.rows) for part in logs),
    )


def _of_bytes(some: int, total: int) -> str:
    return f"{bytes_text(some)} of {bytes_text(total)}"


def bytes_text(count: int) -> str:
    """Bytes for people, e.g. `12.5 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
