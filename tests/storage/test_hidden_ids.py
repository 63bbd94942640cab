"""Hidden columns of new files have field ids, since readers of Iceberg find every column by its id."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from objcat.datafile.hidden_columns import HIDDEN_IDS

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])


def test_every_column_of_a_file_has_an_id_of_its_own(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path).create_table("shop.orders", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.insert([{"id": 1, "value": 1}])
    table.upsert([{"id": 1, "value": 2}])
    paths = [path for path in tmp_path.rglob("*.parquet") if "data" in path.parts]
    assert len(paths) == 2
    hidden: dict[str, int] = {}
    for path in paths:
        schema = pq.ParquetFile(path).schema_arrow
        ids = {field.name: int((field.metadata or {})[b"PARQUET:field_id"]) for field in schema}
        assert len(set(ids.values())) == len(ids)
        hidden |= {name: number for name, number in ids.items() if name.startswith("_objcat_")}
    assert hidden == HIDDEN_IDS
    # No bounds of them are stored.
    assert all(set(base.bounds) <= {1, 2} for group in table.snapshot.file_groups(table._context.manifests) if (base := group.base))
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "value": 2}]
