"""Bounds of live data files, from the manifests of a snapshot."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from objcat.metadata.files import Bound
from objcat.metadata.manifest import Manifests
from objcat.metadata.manifest_rows import bounded_columns
from objcat.metadata.snapshot import Snapshot
from objcat.timeline.entry import FileGroupId


def bounds_by_path(snapshot: Snapshot, manifests: Manifests, group_ids: Collection[FileGroupId] | None) -> dict[str, dict[int, Bound]]:
    """By path, what is known of columns of live files: bounds that hold for all its rows, and a count of nulls that is not exceeded.

    A manifest has the bounds of a file group, which hold for each of its files. Raises as `Manifests.load`.

    Args:
        group_ids: only files of these file groups; None: all.
    """
    rows = snapshot.live(manifests, None, group_ids).rows
    known = [column.id for column in bounded_columns(snapshot.spec) if f"lower_{column.id}" in rows.column_names]
    ends = {number: tuple(_said(rows.column(f"{end}_{number}")) for end in ("lower", "upper", "nulls")) for number in known}
    found: dict[str, dict[int, Bound]] = {}
    paths = rows.column("base_path").to_pylist()
    logs = rows.column("logs").combine_chunks()
    names = logs.values.field("path").to_pylist()
    offsets = logs.offsets.to_pylist()
    for at, path in enumerate(paths):
        bounds = {number: (low[at], high[at], nulls[at]) for number, (low, high, nulls) in ends.items() if nulls[at] is not None}
        for file in {*([] if path is None else [path]), *names[offsets[at] : offsets[at + 1]]}:
            # Of a file with rows of several file groups, any of them knows the bounds of the whole file.
            found.setdefault(file, bounds)
    return found


def _said(values: pa.ChunkedArray) -> list[Any]:
    """Values as JSON has them, see `Bound`."""
    kind = values.type
    if pt.is_date(kind):
        return list(values.cast(pa.int32()).to_pylist())
    if pt.is_timestamp(kind):
        return list(values.cast(pa.int64()).to_pylist())
    if pt.is_decimal(kind):
        return list(values.cast(pa.string()).to_pylist())
    if pt.is_binary(kind):
        return [None if value is None else value.hex() for value in values.to_pylist()]
    return list(values.to_pylist())
