"""Checks the keys of adopted files, which no writer of objcat has seen: no null, and each key once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.store import FileIO
from objcat.datafile.bucket_hash import key_digests
from objcat.datafile.merge import OP_COLUMN, OP_UPSERT
from objcat.datafile.parquet import base_pieces
from objcat.errors import InvalidInput, InvalidSchema
from objcat.metadata.files import BaseFile, LogObject
from objcat.metadata.key_index_table import BUCKET_FIELD, PARTITION_FIELD
from objcat.metadata.table_spec import PARTITION_SCOPE, TableSpec
from objcat.tasks.key_index import put_index
from objcat.tasks.model import Operation, WriteTask
from objcat.tasks.parallel import run_all
from objcat.timeline.entry import Txn

MEMORY_SHARE = 8
"""The part of the process's memory for digests of keys. More keys are read in several passes."""
INDEX_ROWS = 1024**2
"""Keys in one log file of a record index, about."""
_PARTITION = "_objcat_partition"


def check_key_types(spec: TableSpec) -> None:
    """Raises InvalidSchema for a key of floating numbers, which other tools do not store in one form for each value."""
    for column in spec.key_columns:
        if column.type in ("float", "double"):
            raise InvalidSchema(
                f"The key column {column.name!r} is {column.type}. Other tools store 0.0 and -0.0 as two values, which are one key here. "
                "Nothing was adopted. Choose another key, or copy the rows with lake.write()."
            )


def check_keys(fileio: FileIO, spec: TableSpec, bases: Sequence[BaseFile]) -> None:
    """Read the key columns of all files. Raises InvalidInput for a null, and for a key that comes twice.

    fileio: of the table. Holds 8 bytes for each key, or reads in several passes.
    """
    rows = sum(base.rows for base in bases)
    passes = max(1, 16 * rows * MEMORY_SHARE // fileio.env.memory_bytes)
    for number in range(passes):

        def digests_of(base: BaseFile, number: int = number) -> npt.NDArray[np.uint64]:
            """The digests of this pass in one file."""
            found = [key_digests(keys.columns) for keys in _keys(fileio, spec, base, check=number == 0)]
            together = np.concatenate([np.zeros(0, np.uint64), *found])
            return together if passes == 1 else together[together % np.uint64(passes) == number]

        digests = np.sort(np.concatenate([np.zeros(0, np.uint64), *run_all(fileio.env, digests_of, bases)]))
        twice = np.unique(digests[1:][digests[1:] == digests[:-1]])
        if len(twice):
            _check_really(fileio, spec, bases, twice)


def _check_really(fileio: FileIO, spec: TableSpec, bases: Sequence[BaseFile], twice: npt.NDArray[np.uint64]) -> None:
    """Raises InvalidInput where keys with one digest are equal."""
    every = (keys for base in bases for keys in _keys(fileio, spec, base, check=False))
    found = [keys.filter(pa.array(np.isin(key_digests(keys.columns), twice))) for keys in every]
    names = [pc.field(name) for name in found[0].column_names]
    counts = pa.concat_tables(found).group_by(names).aggregate([([], "count_all")])
    several = counts.filter(pc.greater(counts.column("count_all"), 1))
    if several.num_rows:
        shown = ", ".join(f"{column.name}={several.column(column.physical)[0].as_py()!r}" for column in spec.key_columns)
        raise InvalidInput(
            f"{several.num_rows} keys come twice or more in the foreign table, such as ({shown}) in {several.column('count_all')[0]} "
            "rows. Nothing was adopted. Remove the other rows in the table's own engine, choose another key, or adopt it with key=None."
        )


def _keys(fileio: FileIO, spec: TableSpec, base: BaseFile, *, check: bool) -> Iterator[pa.Table]:
    """The keys of a file under physical names, with their partition where that is part of what they identify."""
    key = [column.physical for column in spec.key_columns]
    columns = list(dict.fromkeys([*key, *spec.ordering_physical]))
    for rows in base_pieces(fileio, base, columns, spec=spec):
        if check:
            _check_values(rows, spec, base)
        keys = rows.select(key)
        if spec.key_scope == PARTITION_SCOPE:
            keys = keys.append_column(_PARTITION, pa.array([base.group_id.partition] * rows.num_rows, pa.string()))
        yield keys


def _check_values(rows: pa.Table, spec: TableSpec, base: BaseFile) -> None:
    """Raises InvalidInput for a null key, and a null or NaN ordering value."""
    for column in [*spec.key_columns, *spec.ordering_columns]:
        values = rows.column(column.physical)
        what = "ordering" if column.id in spec.ordering_ids else "key"
        nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
        if values.null_count or nan:
            raise InvalidInput(
                f"The {what} column {column.name!r} has {'nulls' if values.null_count else 'NaN'} in {base.path}. Nothing was adopted. "
                f"Fill or delete these rows in the table's own engine, or choose another {what} column."
            )


def index_of(fileio: FileIO, spec: TableSpec, bases: Sequence[BaseFile], txn: Txn) -> tuple[LogObject, ...]:
    """Write the record index of some base files. Returns its log files. fileio: of the table."""
    task = WriteTask(spec, txn, Operation.INSERT)
    key = [column.physical for column in spec.key_columns]
    held: list[pa.Table] = []
    logs: tuple[LogObject, ...] = ()

    def put() -> tuple[LogObject, ...]:
        """The log files of the keys at hand."""
        rows = pa.concat_tables(held)
        held.clear()
        return put_index(fileio, task, f"adopt-{len(logs)}-index", rows).index

    for base in bases:
        for rows in base_pieces(fileio, base, key, spec=spec):
            count = rows.num_rows
            held.append(
                pa.table(
                    {
                        **{name: rows.column(name) for name in key},
                        PARTITION_FIELD: pa.array([base.group_id.partition] * count, pa.string()),
                        BUCKET_FIELD: pa.array(np.full(count, base.group_id.bucket, np.int32)),
                        OP_COLUMN: pa.array(np.full(count, OP_UPSERT, np.int8)),
                    }
                )
            )
            if sum(part.num_rows for part in held) >= INDEX_ROWS:
                logs += put()
    return logs + put() if held else logs
