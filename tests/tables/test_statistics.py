"""Columns of which no metadata says a value: entries, manifests, footers and bloom filters know nothing of them, and reads stay right."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from fileio import FileIO
from fileio.memory import MemoryBackend
from fileio.testing import FakeEnv
from objcat.errors import InvalidInput
from tests.effort import few

SCHEMA = pa.schema(
    [
        pa.field("ssn", pa.string(), nullable=False),
        ("mail", pa.string()),
        ("age", pa.int64()),
        ("place", pa.struct([("street", pa.string())])),
    ]
)
SILENT = {f"statistics.{name}": "none" for name in ("ssn", "mail", "place")}
INDEXES: dict[str, Any] = {
    "bucket": objcat.BucketIndex(2),
    "bloom": objcat.BloomIndex(),
    "record": objcat.RecordIndex(2),
    "simple": objcat.SimpleIndex(),
}


def row(number: int) -> dict[str, Any]:
    return {
        "ssn": f"secret-{number:04d}",
        "mail": f"m{number}@secret.example",
        "age": number,
        "place": {"street": f"secret street {number}"},
    }


def lake() -> objcat.Lake:
    return objcat.Lake(FileIO(MemoryBackend("silent"), env=FakeEnv(3)))


def said(table: objcat.Table) -> list[str]:
    """Where metadata says something of the columns: entries, manifests as bytes and decoded, footers, indexes of pages, bloom filters."""
    fileio, found = table._context.fileio, []
    for key in fileio.list_keys(""):
        data = fileio.read(key)
        if not key.startswith("data/") and b"secret" in data:
            found.append(key)
        if not key.endswith(".parquet"):
            continue
        with pq.ParquetFile(io.BytesIO(data)) as file:
            if key.startswith("checkpoints/") and "secret" in str(file.read().to_pydict()):
                found.append(f"{key} decoded")
            groups = range(file.metadata.num_row_groups if key.startswith("data/") else 0)
            found += [f"{key} {name}" for number in groups for name in told(file.metadata.row_group(number))]
    return found


def told(group: pq.RowGroupMetaData) -> list[str]:
    """The silent columns of which a row group says something."""
    columns = [group.column(at) for at in range(group.num_columns)]
    silent = [column for column in columns if column.path_in_schema.split(".")[0] in ("ssn", "mail", "place")]
    return [
        column.path_in_schema
        for column in silent
        if column.statistics is not None or column.has_column_index or getattr(column, "bloom_filter_offset", None) is not None
    ]


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("index", few(INDEXES, 2))
def test_no_metadata_says_a_value_and_all_is_found(index: str, kind: Any) -> None:
    table = lake().create_table("t", SCHEMA, key=["ssn"], index=INDEXES[index], table_type=kind, properties=SILENT)
    for start in range(0, 40, 2):
        table.upsert([row(start), row(start + 1)])
    table.upsert([row(i) | {"age": -i} for i in range(5)])
    table.maintenance.compact()
    for start in range(40, 60):
        table.upsert([row(start)])
    table._context.timeline.publish(table._context.timeline.open())
    assert any(key.startswith("checkpoints/") for key in table._context.fileio.list_keys(""))
    assert said(table) == []
    assert table.scan().count() == 60
    assert table.scan(where="ssn = 'secret-0003'").to_arrow()["age"].to_pylist() == [-3]
    assert table.scan(where="mail = 'm7@secret.example' and age = 7").count() == 1
    assert table.scan(where="place.street = 'secret street 9'").count() == 1
    assert (table.scan().min("ssn"), table.scan().max("mail")) == ("secret-0000", "m9@secret.example")
    deleted = table.delete("mail = 'm8@secret.example'")
    assert deleted is not None and deleted.deleted in (1, None)
    assert table.scan().count() == 59
    assert said(table) == []
    assert table.scan(where="age = 12").plan.groups != ()


def test_the_property_follows_its_column_and_needs_one() -> None:
    table = lake().create_table("t", SCHEMA, key=["ssn"], properties={"statistics.mail": "none", "statistics.age": "values"})
    table.alter.rename_column("mail", "address")
    assert table.refresh().spec.properties == {"statistics.address": "none", "statistics.age": "values"}
    table.alter.drop_column("age")
    assert table.refresh().spec.properties == {"statistics.address": "none"}
    with pytest.raises(InvalidInput, match=r"'statistics\.adress' names no column of the table \(.*address"):
        table.set_properties({"statistics.adress": "none"})
    with pytest.raises(InvalidInput, match=r"the property statistics\.address"):
        table.set_properties({"statistics.address": "hashed"})
    with pytest.raises(InvalidInput, match="names no column"):
        lake().create_table("u", SCHEMA, key=["ssn"], properties={"statistics.name": "none"})


def test_what_was_said_before_goes_with_its_files() -> None:
    table = lake().create_table("t", SCHEMA, key=["ssn"], index=objcat.BucketIndex(1))
    table.upsert([row(i) for i in range(10)])
    assert any("ssn" in one for one in said(table))
    table.set_properties(SILENT)
    table.upsert([row(11)])
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    assert not any(one.startswith("data/") for one in said(table))


def test_rows_lie_in_another_order_without_statistics() -> None:
    table = lake().create_table("t", SCHEMA, key=["ssn"], index=objcat.BucketIndex(1), properties=SILENT)
    table.upsert([row(i) for i in range(30)])
    table.maintenance.cluster(["mail", "age"], zorder=True)
    assert table.scan(where="mail = 'm4@secret.example'").count() == 1
    assert not any(one.startswith("data/") for one in said(table))
