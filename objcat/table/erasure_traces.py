"""What the files of a table hold of some rows: every version of them, and the deletes of their keys, live or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from fileio.store import FileIO
from objcat.datafile.casting import logical
from objcat.datafile.hidden_columns import TXN_COLUMN
from objcat.datafile.merge import OP_COLUMN
from objcat.datafile.parquet import as_of_schema, every_piece
from objcat.errors import InvalidInput
from objcat.metadata.key_index_table import INDEX_PARTITION
from objcat.metadata.manifest import Pruning
from objcat.metadata.schema import FIELD_ID_KEY
from objcat.metadata.table_spec import TableSpec
from objcat.planning.scan import parse_filter
from objcat.table.key_filters import Keyed, keys_text
from objcat.tasks.model import Filter

Leaf: TypeAlias = "int | str"
"""A plain column by its id, or a plain field of a nested one by its path."""
KEYS_FILTERED_MAX = 1000
"""Up to so many keys skip row groups by their bounds."""
HIDDEN = frozenset({TXN_COLUMN, OP_COLUMN})


@dataclass(slots=True)
class Traces:
    """What was found. `values`: by leaf. `keys`: of the rows, by physical names; None where there is no key or no row."""

    values: dict[Leaf, set[Any]] = field(default_factory=dict)
    keys: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows as a file has them."""
        for leaf, values in leaves_of(rows):
            known = self.values.setdefault(leaf, set())
            known.update(value for value in pc.unique(values).to_pylist() if value is not None)


def leaves_of(rows: pa.Table) -> Iterator[tuple[Leaf, pa.ChunkedArray]]:
    """The plain values of all columns but hidden ones."""
    for at, name in enumerate(rows.column_names):
        if name in HIDDEN:
            continue
        column_id = (rows.schema.field(at).metadata or {}).get(FIELD_ID_KEY)
        yield from _leaves(name if column_id is None else int(column_id), name, rows.column(at))


def _leaves(leaf: Leaf, path: str, values: pa.ChunkedArray) -> Iterator[tuple[Leaf, pa.ChunkedArray]]:
    kind = values.type
    if pt.is_struct(kind):
        parts = [chunk.flatten() for chunk in values.chunks]
        for at in range(kind.num_fields):
            inner = kind.field(at)
            chunks = pa.chunked_array([part[at] for part in parts], inner.type)
            yield from _leaves(f"{path}.{inner.name}", f"{path}.{inner.name}", chunks)
    elif pt.is_map(kind):
        for name, of in (("key", "keys"), ("value", "items")):
            chunks = pa.chunked_array(
                [getattr(chunk, of) for chunk in values.chunks], getattr(kind, "key_type" if of == "keys" else "item_type")
            )
            yield from _leaves(f"{path}.{name}", f"{path}.{name}", chunks)
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        chunks = pa.chunked_array([chunk.flatten() for chunk in values.chunks], kind.value_type)
        yield from _leaves(f"{path}.element", f"{path}.element", chunks)
    else:
        yield leaf, values


Pieces: TypeAlias = "Callable[[Pruning | None], Iterator[pa.Table]]"
"""The row groups of a file that may hold a matching row."""


def trace(
    fileio: FileIO, spec: TableSpec, where: Filter, paths: Iterable[str], *, keys: pa.Table | None = None, adopted: Sequence[Pieces] = ()
) -> Traces:
    """What some data files hold of the rows for which a filter is true, and of all other versions of their keys.

    Reads row groups that may hold some. Raises CorruptTable and storage errors; a file that is gone holds nothing.

    Args:
        paths: of base files, log files and files of a record index.
        keys: other keys to look for, see `Traces.keys`.
        adopted: files of other tools.
    """
    found = Traces(keys=keys)
    own: list[Pieces] = [partial(_pieces, fileio, path, spec) for path in paths if f"/{INDEX_PARTITION}/" not in path]
    files = [*own, *adopted]
    names = [spec.table_schema.column(name).physical for name in where.columns]
    by_key = [column.physical for column in spec.key_columns]

    def passing(rows: pa.Table) -> pa.Array:
        return mask_of(logical(as_of_schema(rows, names, spec.table_schema), spec.table_schema), where)

    for file in files:
        for rows in _matching(file, where.to_pruning(), passing):
            found.add(rows)
            if by_key:
                new = as_of_schema(rows, by_key, spec.table_schema).select(by_key)
                found.keys = new if found.keys is None else pa.concat_tables([found.keys, new])
    if found.keys is None or not found.keys.num_rows:
        found.keys = None
        return found
    found.keys = found.keys.combine_chunks().group_by(by_key).aggregate([])
    keyed = Keyed(found.keys)
    pruning = _pruning_of(spec, found.keys)
    for file in files:
        for rows in _matching(file, pruning, lambda some: keyed.mask(as_of_schema(some, by_key, spec.table_schema))):
            found.add(rows)
    return found


def _pruning_of(spec: TableSpec, keys: pa.Table) -> Pruning | None:
    """What skips row groups without any of these keys; None for nothing."""
    if keys.num_rows > KEYS_FILTERED_MAX:
        return None
    try:
        parsed = parse_filter(keys_text(spec, keys), spec.table_schema)
    except InvalidInput:
        return None  # No filter finds such keys.
    return None if parsed is None else parsed.to_pruning()


def mask_of(rows: pa.Table, where: Filter) -> pa.Array:
    """For each row, whether a filter is true for it."""
    number = "_objcat_number"
    numbered = rows.append_column(number, pa.array(np.arange(rows.num_rows)))
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[numbered.filter(where.to_arrow()).column(number).to_numpy()] = True
    return pa.array(mask)


def _pieces(fileio: FileIO, path: str, spec: TableSpec, where: Pruning | None) -> Iterator[pa.Table]:
    return every_piece(fileio, path, spec, where=where)


def _matching(file: Pieces, pruning: Pruning | None, mask: Callable[[pa.Table], pa.Array]) -> Iterator[pa.Table]:
    """The rows of a file for which `mask` is true, with all columns, one row group at a time."""
    for rows in file(pruning):
        some = rows.filter(mask(rows))
        if some.num_rows:
            yield some
