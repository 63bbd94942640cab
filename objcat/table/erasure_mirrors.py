"""The part of an erasure's search that decodes mirrors: bounds in manifests of Iceberg and in statistics of Delta."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from objcat.metadata.schema import Column
from objcat.metadata.table_spec import TableSpec
from objcat.mirror.delta.stats import stats_of
from objcat.mirror.formats import OTHERS_FOLDER, PREFIXES
from objcat.mirror.iceberg.avro import decode_avro
from objcat.mirror.iceberg.bounds import encode_value
from objcat.mirror.iceberg.types import primitive_of

_FOLDERS = tuple(prefix for prefixes in PREFIXES.values() for prefix in prefixes)


def is_mirror(key: str) -> bool:
    """Whether an object is of a mirror."""
    return key.startswith((OTHERS_FOLDER, *_FOLDERS))


def is_mirror_in(key: str, folder: str) -> bool:
    """Whether an object is of the mirrors in a folder, see `objcat.mirror.formats.folder_of`."""
    return key.startswith(tuple(folder + prefix for prefix in _FOLDERS))


class MirrorSearch:
    """Looks for values in what mirrors store.

    Args:
        is_in: whether bytes hold a text or bytes that are looked for.
        bounds: by column id, the values that are looked for, as entries have them in bounds.
    """

    def __init__(self, spec: TableSpec, is_in: Callable[[bytes], bool], bounds: Mapping[int, Collection[Any]]) -> None:
        self._is_in = is_in
        columns = {column.id: column for column in spec.table_schema.columns if isinstance(column.type, str)}
        known = {number: values for number, values in bounds.items() if number in columns}
        self._encoded = {number: _encoded(columns[number], values) for number, values in known.items()}
        self._said: dict[str, set[str]] = {}
        for number, values in known.items():
            for name in (columns[number].name, columns[number].physical):
                self._said.setdefault(name, set()).update(_said(columns[number], values))

    def holds(self, key: str, data: bytes) -> bool:
        """Whether an object of a mirror holds a value."""
        if self._is_in(data):
            return True
        if key.endswith(".avro"):
            return any(self._entry_holds(record) for record in decode_avro(data))
        if "_delta_log/" in key:
            return any(self._is_in(text.encode()) or self._stats_hold(text) for text in _statistics(key, data))
        return False

    def _entry_holds(self, record: Mapping[str, Any]) -> bool:
        file = record.get("data_file") or {}
        pairs = [*(file.get("lower_bounds") or ()), *(file.get("upper_bounds") or ())]
        return any(self._is_in(pair["value"]) or pair["value"] in self._encoded.get(pair["key"], ()) for pair in pairs)

    def _stats_hold(self, text: str) -> bool:
        try:
            found = json.loads(text)
        except ValueError:
            return False
        ends = [found.get("minValues") or {}, found.get("maxValues") or {}]
        return any(json.dumps(value) in self._said.get(name, ()) for end in ends for name, value in end.items())


def _encoded(column: Column, values: Collection[Any]) -> set[bytes]:
    """Values as bounds of Iceberg."""
    assert isinstance(column.type, str)
    made = {encode_value(value, primitive_of(column.type), upper=upper) for value in values for upper in (False, True)}
    return {value for value in made if value is not None}


def _said(column: Column, values: Collection[Any]) -> set[str]:
    """Values as bounds of Delta, as JSON."""
    found = set()
    for value in values:
        said = json.loads(stats_of(1, {column.id: (value, value, 0)}, {column.id: column}))
        found |= {json.dumps(end) for ends in (said["minValues"], said["maxValues"]) for end in ends.values()}
    return found


def _statistics(key: str, data: bytes) -> Iterator[str]:
    """The statistics of files in an object of a Delta log."""
    if key.endswith(".parquet"):
        with pq.ParquetFile(io.BytesIO(data)) as file:
            for number in range(file.num_row_groups):
                for row in file.read_row_group(number, columns=["add"]).column("add").to_pylist():
                    if row and row.get("stats"):
                        yield row["stats"]
        return
    for line in data.splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            continue
        if isinstance(action, dict):
            yield from (one["stats"] for one in action.values() if isinstance(one, dict) and isinstance(one.get("stats"), str))
