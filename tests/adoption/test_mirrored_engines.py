"""Mirrors of adopted tables as engines read them: adopted files where they are, without the rows that were replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

import objcat
from devkit.engines import AT_NIGHT, ENGINES
from tests.adoption.foreign import all_types, iceberg_catalog, replace_only_file
from tests.engines.process import Engines, ReadRefused, running_engines
from tests.engines.readers.serve import Request
from tests.engines.rows import compare

BY_DAY = [name for name in ENGINES if name not in AT_NIGHT]
REFUSED = {
    ("polars", "of_delta_2", "delta"): "No such file or directory",
    ("chdb", "of_delta_2", "delta"): "should be inside the table directory",
    ("daft", "of_delta_2", "delta"): "deletion vectors are not yet supported",
    ("daft", "of_delta_2", "iceberg"): "carries no parquet field IDs",
}
"""What engines refuse, and what they say: paths of Delta that lead upwards, deletion vectors, files without field ids."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with running_engines() as running:
        yield running


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> objcat.Lake:
    """Tables that were Iceberg and Delta. Each has adopted files with masked rows, and files of its own."""
    root = tmp_path_factory.mktemp("adopted")
    lake = objcat.connect(root)
    catalog = iceberg_catalog(root)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()), NestedField(3, "count", IntegerType())
    )
    foreign = catalog.create_table("db.old", schema, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name")))
    foreign.append(pa.table({"id": list(range(6)), "name": ["a", "b c", "a"] * 2, "count": [1, 2, None] * 2}).cast(schema.as_arrow()))
    with foreign.update_schema() as change:
        change.rename_column("name", "label")
        change.update_column("count", LongType())
        change.add_column("price", DoubleType())
    added = pa.table({"id": [6, 7], "label": ["d", None], "count": [2**40, 1], "price": [1.5, None]})
    foreign.append(added.cast(foreign.schema().as_arrow()))
    catalog.close()
    write_deltalake(root / "old", all_types(range(12)).drop_columns(["local"]))
    replace_only_file(root / "old", all_types(range(12)).drop_columns(["local"]), use_deprecated_int96_timestamps=True)
    for version in ("2", "3"):
        name = f"of_iceberg_{version}"
        lake.adopt_iceberg(foreign, name, key=["id"], properties={"mirrors": "iceberg", "mirror_iceberg_version": version})
        table = lake.table(name)
        table.upsert(pa.table({"id": [1, 6, 9], "label": ["new", None, "own"], "count": [0, 0, 0], "price": [0.5, None, 1.0]}))
        table.delete(pa.table({"id": [2]}))
        name = f"of_delta_{version}"
        lake.adopt_delta("old", name, key=["id"], properties={"mirrors": "iceberg,delta", "mirror_iceberg_version": version})
        lake.table(name).upsert(all_types(range(10, 14)).drop_columns(["local"]))
        lake.table(name).delete(pa.table({"id": [1, 4]}))
    return lake


def truth_and_place(lake: objcat.Lake, name: str) -> tuple[pa.Table, Path, int]:
    table = lake.table(name)
    assert all(report.held == "" and report.lag == 0 for report in table.maintenance.mirror())
    assert any(path.startswith("_lake/") for path in table.inspect.files().column("path").to_pylist())
    return table.scan().to_arrow(), Path(table.url.removeprefix("file://")), table.snapshot.slot


def check(engines: Engines, engine: str, name: str, truth: pa.Table, request: Request) -> None:
    said = REFUSED.get((engine, name, request.format))
    if said is not None:
        with pytest.raises(ReadRefused, match=said):
            engines[engine].read(request)
        return
    found = engines[engine].read(request)
    difference = compare(truth, found, empties=engine == "chdb")
    assert difference is None or difference.shapes, f"{engine}: {difference}"


@pytest.mark.parametrize("engine", [name for name in BY_DAY if "iceberg" in ENGINES[name].formats])
@pytest.mark.parametrize("name", ["of_iceberg_2", "of_delta_2"])
def test_iceberg(engines: Engines, lake: objcat.Lake, engine: str, name: str) -> None:
    truth, place, slot = truth_and_place(lake, name)
    metadata = str(place / "metadata" / f"v{slot + 1}.metadata.json")
    check(engines, engine, name, truth, Request("iceberg", str(place), "pinned", slot, metadata))


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize("name", ["of_iceberg_3", "of_delta_3"])
def test_iceberg_with_vectors(engines: Engines, lake: objcat.Lake, engine: str, name: str) -> None:
    truth, place, slot = truth_and_place(lake, name)
    metadata = str(place / "metadata" / f"v{slot + 1}.metadata.json")
    check(engines, engine, name, truth, Request("iceberg", str(place), "pinned", slot, metadata))


@pytest.mark.parametrize("engine", [name for name in BY_DAY if "delta" in ENGINES[name].formats])
def test_delta(engines: Engines, lake: objcat.Lake, engine: str) -> None:
    truth, place, slot = truth_and_place(lake, "of_delta_2")
    check(engines, engine, "of_delta_2", truth, Request("delta", str(place), "newest", slot, ""))
