"""Plans an incremental read: the latest state of every row that changed in a slot range.

Each row names the transaction that wrote it, through every rewrite. So the changed rows are those rows of the last snapshot whose
transaction committed in the range. They lie in files that are younger than its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from objcat.common.validation import nearest_name
from objcat.errors import InvalidInput
from objcat.metadata.files import FileGroup
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.planning.commits import CommitInfo, commits_table
from objcat.planning.scan import ScanPlan, fixed_partitions, key_hashes, parse_filter
from objcat.tasks.change_columns import COMMIT_FIELDS, COMMIT_SLOT
from objcat.tasks.changes import IncrementTask, by_age, increment_schema
from objcat.tasks.model import Filter
from objcat.timeline.entry import Txn

HIDDEN = tuple(field.name for field in COMMIT_FIELDS)


@dataclass(frozen=True, slots=True)
class IncrementalPlan:
    """What an incremental read reads: rows of the snapshot that commits after slot `since` wrote.

    groups: the file groups written since. commits, newest, columns, where: see `IncrementTask`.
    """

    snapshot: Snapshot
    manifests: Manifests
    since: int
    groups: tuple[FileGroup, ...]
    commits: pa.Table
    newest: Mapping[str, Any]
    columns: tuple[str, ...]
    where: Filter | None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return increment_schema(self.snapshot.spec, self.columns)

    @property
    def sort_by(self) -> str | None:
        """The column that orders rows: none."""
        return None

    def tasks(self, *, count_max: int) -> list[IncrementTask]:
        """The file groups in at most `count_max` tasks, adjacent ones together."""
        size = max(1, -(-len(self.groups) // max(1, count_max)))
        parts = [self.groups[at : at + size] for at in range(0, len(self.groups), size)]
        return [self._task(part) for part in parts]

    def scan(self) -> ScanPlan:
        """A scan whose rows include those of this read: all rows that transactions of `commits` wrote.

        Its columns include the transaction. It reads files of the range. If an ordering column decides and the range has log rows, it also
        reads
        older files of the same file groups, whose rows may win.
        """
        plain, merged = [], []
        for group in self.groups:
            new = by_age(group, self.since)[1]
            kept = group if group.base_slot > self.since else replace(group, base=None)
            if new:
                merged.append(replace(kept, logs=new) if self.snapshot.spec.ordering is None else group)
            elif kept.base is not None:
                plain.append(replace(kept, logs=()))
        columns = tuple(dict.fromkeys([*self.columns, COMMIT_SLOT]))
        return ScanPlan(self.snapshot, columns, self.where, plain=tuple(plain), merged=tuple(merged))

    def bounds(self) -> pa.Table:
        """Column bounds of `scan` in the files of its file groups, see `Snapshot.bounds`. Raises as `Manifests.load`."""
        return self.snapshot.bounds(self.manifests, self.scan().columns_read, group_ids={group.group_id for group in self.groups})

    def _task(self, groups: tuple[FileGroup, ...]) -> IncrementTask:
        known = {base.path: self.newest[base.path] for group in groups if (base := group.base) is not None and base.path in self.newest}
        return IncrementTask(self.snapshot.spec, groups, self.since, self.commits, known, self.columns, self.where)


def plan_incremental(
    snapshot: Snapshot,
    manifests: Manifests,
    commits: Mapping[Txn, CommitInfo],
    *,
    since: int,
    where: str | pc.Expression | None,
    columns: Sequence[str] | None,
) -> IncrementalPlan:
    """The plan of an incremental read up to a snapshot. commits: those of the range. Raises InvalidPredicate and InvalidInput."""
    spec = snapshot.spec
    chosen = chosen_columns(spec, columns, hidden=HIDDEN)
    predicate = parse_filter(where, spec.table_schema)
    if predicate is None:
        groups = snapshot.file_groups(manifests)
    else:
        hashes, partitions = key_hashes(predicate, spec), fixed_partitions(predicate, spec)
        groups = snapshot.file_groups(manifests, where=predicate.to_pruning(), hashes=hashes, partitions=partitions)
    touched = tuple(group for group in groups if group.base_slot > since or any(rows.named_at > since for rows in group.logs))
    return IncrementalPlan(snapshot, manifests, since, touched, commits_table(commits), _newest(snapshot, manifests), chosen, predicate)


def _newest(snapshot: Snapshot, manifests: Manifests) -> Mapping[str, Any]:
    """An upper bound of the ordering values in base files. Late rows are looked for only where they may be."""
    ordering = snapshot.spec.ordering
    if ordering is None:
        return {}
    bounds = snapshot.live(manifests, (ordering,)).bounds()
    name = f"upper_{ordering}"
    if name not in bounds.column_names:
        return {}
    known = zip(bounds.column("base_path").to_pylist(), bounds.column(name).to_pylist(), strict=True)
    return {path: value for path, value in known if path is not None and value is not None}


def chosen_columns(spec: TableSpec, columns: Sequence[str] | None, *, hidden: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns of a read: all of the table if None. hidden: other columns that may be named. Raises InvalidInput."""
    names = spec.table_schema.names
    chosen = tuple(names if columns is None else columns)
    for name in chosen:
        if name not in names and name not in hidden:
            raise InvalidInput(f"The table has no column {name!r}: {nearest_name(name, [*names, *hidden])}")
    if not chosen:
        raise InvalidInput("columns=[] selects nothing. Name at least one column, or leave it out for all.")
    if len(set(chosen)) != len(chosen):
        raise InvalidInput(f"columns={list(chosen)} names a column twice. Name each once.")
    return chosen
