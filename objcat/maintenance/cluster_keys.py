"""The arguments of a clustering, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from objcat.common.validation import name_list, nearest_name, shown, whole_number
from objcat.errors import InvalidInput
from objcat.metadata.files import ORDER_COLUMNS_MAX, ZORDER_COLUMNS_MAX
from objcat.metadata.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """How to cluster.

    Attributes:
        by: columns that rows are sorted by; empty: groups are only joined.
        zorder: interleave the bits of all columns, so that filters on any of them profit.
        where: only groups that may hold a row for which this scan filter is true.
        io_bytes_max: bytes to read and write at most; one part is always done.
    """

    by: tuple[str, ...] = ()
    zorder: bool = False
    where: str | pc.Expression | None = None
    io_bytes_max: int | None = None


def check_clustering(spec: TableSpec, clustering: Clustering) -> None:
    """Raises InvalidInput for a table that cannot be clustered this way."""
    for name in name_list(clustering.by, what="by"):
        if name not in spec.table_schema.names:
            raise InvalidInput(f"by= names {shown(name)}, which is not a column: {nearest_name(name, spec.table_schema.names)}")
        if not isinstance(spec.table_schema.column(name).type, str):
            raise InvalidInput(f"by= names the nested column {shown(name)}. Cluster by columns that hold one plain value.")
    if clustering.zorder and not 2 <= len(clustering.by) <= ZORDER_COLUMNS_MAX:
        raise InvalidInput("A z-order takes two to four columns. Name them in by=, or leave zorder out.")
    if not spec.has_free_groups and not clustering.by:
        raise InvalidInput(
            "by= names no column. Keys of a bucket index stay in the file group that they hash to, so groups are not joined. "
            "Name the columns that rows are sorted by within each group, or call compact() to merge log rows."
        )
    if len(set(clustering.by)) < len(clustering.by):
        raise InvalidInput(f"by= names a column twice: {', '.join(map(shown, clustering.by))}. Name each column once.")
    if len(clustering.by) > ORDER_COLUMNS_MAX:
        raise InvalidInput(f"by= names {len(clustering.by)} columns. Name at most {ORDER_COLUMNS_MAX}.")
    if clustering.io_bytes_max is not None:
        whole_number(clustering.io_bytes_max, what="io_bytes_max", least=1)
