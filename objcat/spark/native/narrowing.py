"""Scans by Python workers, made again for what a query needs of them.

Spark pushes neither columns nor filters into Python workers. So the frame of such a scan has a mark, and a rule of the optimizer in
`ObjcatCatalog.java` asks here for another frame, with the columns and fields that the plan above reads, and with its conditions. The
conditions stay in the plan: here they only leave out rows that these drop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from objcat.common.bounded_cache import BoundedCache
from objcat.errors import InvalidPredicate, InvalidSql
from objcat.metadata.column_parts import cheapest_column, field_at, path_text
from objcat.metadata.schema import TableSchema
from objcat.planning.scan import ScanPlan
from objcat.predicate.parse import parse_predicate
from objcat.spark.catalog_filters import filter_text

MARK = "objcat_rows_"
"""The beginning of the name of a column that workers take, as the rule knows it."""
KEPT_BYTES_MAX = 64 * 1024**2
_SCAN_BYTES, _GROUP_BYTES = 10_000, 1_000

NarrowPlan = Callable[[ScanPlan, str | None, Sequence[str]], ScanPlan]
"""From a plan, a filter and columns to the plan of those file groups of the first that may hold such rows."""


@dataclass(frozen=True, slots=True)
class MarkedScan:
    """A scan by Python workers that a query may narrow.

    narrow: see `NarrowPlan`. frame: of a plan. Fields of structs that it lacks are null.
    """

    plan: ScanPlan
    narrow: NarrowPlan
    frame: Callable[[ScanPlan], DataFrame]


_scans: BoundedCache[MarkedScan] = BoundedCache(bytes_max=KEPT_BYTES_MAX)
_numbers = itertools.count()


def mark(scan: MarkedScan) -> str:
    """The mark of a scan. It is known for as long as there is room; after that, whole rows are read."""
    name = f"{MARK}{next(_numbers)}"
    _scans.put(name, scan, _SCAN_BYTES + _GROUP_BYTES * len(scan.plan.groups))
    return name


def narrowed_rows(name: str, paths: Sequence[Sequence[str]], conditions: Sequence[Mapping[str, Any]]) -> DataFrame | None:
    """The frame of a marked scan for a query. None: the mark is not known any more, or nothing is to be gained.

    Args:
        paths: the columns, and fields of structs, that it reads.
        conditions: as of `filter_text`. All hold in the rows that it keeps.
    """
    scan = _scans.get(name)
    if scan is None:
        return None
    spec = scan.plan.snapshot.spec
    whole = {path[0] for path in paths if len(path) == 1}
    inner = {tuple(path) for path in paths if path[0] not in whole}
    fields = {path for path in inner if not any(path[:depth] in inner for depth in range(1, len(path)))}
    named = [name for name in scan.plan.columns if name in whole]
    columns = [*named, *(path_text(path) for path in sorted(fields))] or [cheapest_column(spec)]
    terms = [term for one in conditions if (term := _term(one, spec.table_schema)) is not None]
    if not terms and not fields and len(named) == len(scan.plan.columns):
        return None
    return scan.frame(scan.narrow(scan.plan, " AND ".join(f"({term})" for term in terms) or None, columns))


def _term(condition: Mapping[str, Any], schema: TableSchema) -> str | None:
    """A condition as the text of a filter that drops no row which Spark keeps. None: there is none."""
    with suppress(InvalidSql, InvalidPredicate, OverflowError):
        text = filter_text([condition])
        kinds = [field_at(schema, path).type for path in parse_predicate(text, schema).paths()]
        # To Spark, NaN is equal to itself and greater than all else.
        return None if any(kind in ("float", "double") for kind in kinds) else text
    return None
