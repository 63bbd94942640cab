"""Explains a scan: what it reads, what it leaves out, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from objcat.datafile.in_place_rows import SourceAnswer, answer_of
from objcat.inspection.snapshot_stats import SnapshotStats, survey_of
from objcat.metadata.manifest import Manifests
from objcat.planning.scan import ScanPlan
from objcat.tasks.scan import known_part_of


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
        sources: of a table in place, how many files are read how: `precomputed` (their precomputed columns alone), `positions` (these say
            which parts of the file are read, if any) and `whole`. Empty for others.
    """

    slot: int
    committed_at_ms: int
    where: str | None
    columns: tuple[str, ...]
    limit: int | None
    total: SnapshotStats
    read: SnapshotStats
    pruned: dict[str, Pruned]
    sources: dict[str, int] = field(default_factory=dict)

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
        if self.sources:
            said = (f"{count:,} {_SOURCES[SourceAnswer(answer)]}" for answer, count in self.sources.items() if count)
            lines.append(f"sources   {', '.join(said) or 'none'}")
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
        sources=_sources(plan),
    )


_SOURCES = {
    SourceAnswer.PRECOMPUTED: "by precomputed columns alone",
    SourceAnswer.POSITIONS: "by positions of matches in precomputed columns",
    SourceAnswer.WHOLE: "whole",
}


def _sources(plan: ScanPlan) -> dict[str, int]:
    """How many files in place are read how."""
    spec = plan.snapshot.spec
    if not spec.is_in_place:
        return {}
    columns = plan.fields_read
    bases = [group.base for group in plan.groups if group.base is not None and group.base.source is not None]
    part = known_part_of(plan.where)
    counts = Counter(answer_of(base, columns, spec, part) for base in bases)
    return {answer.value: counts[answer] for answer in SourceAnswer}


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
