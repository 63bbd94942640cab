"""Files in place whose precomputed columns answer a scan. Spark reads these columns itself, as it reads adopted files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from objcat.datafile.in_place import held_columns
from objcat.metadata.files import Adoption, FileGroup
from objcat.metadata.schema import Column
from objcat.planning.scan import ScanPlan
from objcat.tasks.scan import FILE_COLUMN


def with_precomputed(plan: ScanPlan) -> ScanPlan:
    """A plan with files of precomputed columns in place of those files that they answer it for: they have all columns that it reads.

    Files with masked rows stay, since a mask has positions. So do all files of a plan that asks for their names, or for fields of structs.
    """
    if not plan.snapshot.spec.is_in_place or plan.parts or FILE_COLUMN in plan.columns:
        return plan
    columns = plan.columns_read
    plain = tuple(_answered(group, columns) for group in plan.plain)
    return plan if plain == plan.plain else replace(plan, plain=plain)


def _answered(group: FileGroup, columns: Sequence[Column]) -> FileGroup:
    """A file group with the file of the precomputed columns of its base file, where that has these columns; else the same."""
    base = group.base
    if base is None or base.adopted is None or base.source is None or base.source.precomputed is None or base.source.masked:
        return group
    there = base.source.precomputed.columns
    file = base.precomputed_file
    if file is None or not all(column.id in there for column in held_columns(columns, base.adopted).values()):
        return group
    # Its columns have their physical names.
    return replace(group, base=structs.replace(file, adopted=Adoption(txn=base.adopted.txn, values=base.adopted.values)))
