"""A prefix that is copied to another place is the same lake there: it opens, reads, takes commits, and neither knows of the other."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from devkit.handle import ServerHandle
from fileio import open_store
from fileio.contract import GetResult
from fileio.memory import drop_memory
from fileio.store import FileIO
from objcat.inspection.doctor import examine
from objcat.maintenance.savepoint import savepoint
from objcat.timeline import side_objects
from objcat.timeline.archive import archive
from objcat.timeline.checkpoint import HINT_KEY

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), pa.field("at", pa.int64(), nullable=False)])
FROM, TO = "original-zq41", "duplicate-zq42"
"""Names that occur nowhere by accident: of buckets, of directories, of prefixes."""
ALONE = "by-itself"
HEAD = 19
"""Of the log of `city.trips`, when the lake is filled."""


@dataclass(frozen=True)
class Place:
    """Where lakes may be. traces: what no object of a lake there may contain."""

    url: str
    options: Mapping[str, Any]
    traces: tuple[str, ...]

    def open(self) -> FileIO:
        return open_store(self.url, self.options)


def on_server(handle: ServerHandle, prefix: str) -> Place:
    bucket = handle.url.removeprefix("s3://")
    host, port = handle.address
    return Place(f"{handle.url}/{prefix}/deep", handle.options, (bucket, prefix, f"{host}:{port}", handle.endpoint))


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path, servers: Callable[[Any], ServerHandle]) -> Iterator[tuple[Place, Place]]:
    def place(kind: str, name: str) -> Place:
        match kind:
            case "memory":
                return Place(f"memory://{name}", {}, (name, "memory:"))
            case "file":
                return Place(str(tmp_path / name), {}, (name, str(tmp_path), "file:"))
        return on_server(servers(kind).fresh_bucket(), name)

    source, target = request.param
    yield place(source, FROM), place(target, TO)
    for name in (FROM, TO):
        drop_memory(name)


@pytest.fixture(autouse=True)
def little_fits_into_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes beside the log without writing as much as it takes otherwise."""
    monkeypatch.setattr(side_objects, "INLINE_BYTES_MAX", 1024)


everywhere = pytest.mark.parametrize(
    "places",
    [
        pytest.param(("memory", "file"), id="memory to file"),
        pytest.param(("file", "memory"), id="file to memory"),
        pytest.param(("versitygw", "seaweedfs"), id="versitygw to seaweedfs", marks=pytest.mark.tier("all")),
        pytest.param(("versitygw", "versitygw"), id="versitygw to versitygw"),
    ],
    indirect=True,
)


def fill(store: FileIO) -> objcat.Lake:
    """A lake whose metadata is of every kind: a log with a checkpoint, archived slots, changes beside the log, several tables in a log."""
    lake = objcat.Lake(store)
    trips = lake.create_table("city.trips", SCHEMA, key=["id"], ordering="at", index=objcat.BucketIndex(4), properties={"owner": "Ann"})
    trips.insert([{"id": n, "value": "first", "at": 0} for n in range(4)], metadata={"source": "meters"})
    for n in range(14):
        trips.set_properties({"round": str(n)})
    with lake.transaction() as tx:
        for first in range(0, 60, 10):
            rows = [{"id": n, "value": "many", "at": 1} for n in range(first, first + 10)]
            # Adjacent batches of the same columns would be one.
            tx["city.trips"].upsert(rows if first % 20 else [dict(reversed(row.items())) for row in rows])
    savepoint(trips._context.timeline, trips.id, slot=1, name="first")
    trips.delete([{"id": 2, "at": 9}])
    trips.delete([{"id": 3}])
    trips._context.timeline.publish(trips._context.timeline.refresh(trips._context.timeline.open()))
    assert archive(trips._context.timeline, keep_slots=2).tombstones > 10
    stock = lake.create_table("city.stock", SCHEMA, key=["id"], table_type="copy_on_write", index=objcat.BucketIndex(2), shared_log="shop")
    sales = lake.create_table("city.sales", SCHEMA, key=["id"], index=objcat.BucketIndex(1), shared_log="shop")
    with lake.transaction() as tx:
        tx["city.stock"].insert([{"id": 1, "value": "apples", "at": 0}])
        tx["city.sales"].insert([{"id": 1, "value": "apples", "at": 0}])
    stock.upsert([{"id": 1, "value": "pears", "at": 1}])
    sales.upsert([{"id": 1, "value": "pears", "at": 1}])
    sales.maintenance.compact()
    sales.maintenance.clean(keep_slots=2)
    lake.rename_table("city.stock", "shop.stock")
    alone = objcat.create_table_at(store.child(ALONE), SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    alone.upsert([{"id": 1, "value": "alone", "at": 0}])
    return lake


def objects(store: FileIO) -> dict[str, bytes]:
    found = {key: store.get(key) for key in store.list_keys() if "/intents/" not in f"/{key}"}
    return {key: result.data for key, result in found.items() if isinstance(result, GetResult)}


def without_hints(store: FileIO) -> dict[str, bytes]:
    """Every object but those that a writer may still replace in the background."""
    return {key: data for key, data in objects(store).items() if not key.endswith(HINT_KEY)}


def copy(source: FileIO, target: FileIO) -> None:
    """The bytes of every object and nothing else, as the plainest tool does it."""
    for key, data in objects(source).items():
        target.put(key, data)


def contents(lake: objcat.Lake) -> dict[str, Any]:
    tables = [lake.table(name) for name in lake.tables()] + [objcat.table_at(lake.fileio.child(ALONE))]
    return {table.name: [rows_of(table, as_of=slot) for slot in readable(table)] for table in tables}


def readable(table: objcat.Table) -> list[int]:
    view = table._context.timeline.open()
    marks = view.log.marks(table.id)
    born = next(entry.slot for entry in table.inspect.history() if table.id in entry.changes)
    slots = [slot for slot in range(born, view.slot + 1) if marks.is_readable(slot)]
    return slots if len(slots) < 8 else [*slots[:2], *slots[-4:]]


def rows_of(table: objcat.Table, **scan: Any) -> list[dict[str, Any]]:
    return table.scan(**scan).to_arrow().sort_by("id").to_pylist()


# ---- copies --------------------------------------------------------------------------------------------------------


@everywhere
def test_a_copied_lake_is_the_same_lake_and_the_two_go_different_ways(places: tuple[Place, Place]) -> None:
    source, target = (place.open() for place in places)
    original = fill(source)
    copy(source, target)
    duplicate = objcat.Lake(target)
    assert contents(duplicate) == contents(original)
    assert len(contents(duplicate)["city.trips"][-1]) == 58

    before = without_hints(source)
    ahead = objcat.Lake(places[1].open())
    assert ahead.table("city.trips").upsert([{"id": 1, "value": "copied", "at": 10}]).slot == HEAD + 1
    ahead.table("city.trips").maintenance.compact()
    ahead.table("city.trips").maintenance.clean(keep_slots=1)
    with ahead.transaction() as tx:
        tx["shop.stock"].upsert([{"id": 5, "value": "plums", "at": 1}])
        tx["city.sales"].delete([{"id": 1}])
    ahead.rename_table("shop.stock", "city.stock")
    ahead.drop_table("city.sales")
    objcat.table_at(target.child(ALONE)).delete([{"id": 1}])
    assert without_hints(source) == before

    after = without_hints(target)
    trips = original.table("city.trips")
    assert trips.upsert([{"id": 1, "value": "stayed", "at": 10}]).slot == HEAD + 1
    trips.restore(to=1)
    assert rows_of(trips) == [{"id": n, "value": "first", "at": 0} for n in range(4)]
    assert rows_of(original.table("city.sales")) == [{"id": 1, "value": "pears", "at": 1}]
    assert without_hints(target) == after
    assert rows_of(objcat.Lake(places[1].open()).table("city.trips"), where="id = 1") == [{"id": 1, "value": "copied", "at": 10}]
    for lake in (original, objcat.Lake(places[1].open())):
        for name in lake.tables():
            assert examine(lake.table(name)._context.timeline).healthy


@everywhere
def test_a_table_without_a_lake_is_copied_to_any_other_place(places: tuple[Place, Place]) -> None:
    source, target = (place.open() for place in places)
    table = objcat.create_table_at(source.child(ALONE), SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.insert([{"id": n, "value": "old", "at": 0} for n in range(5)])
    table.upsert([{"id": 1, "value": "new", "at": 0}])
    copy(source.child(ALONE), target.child("some/where/else"))
    there = objcat.table_at(f"{places[1].url}/some/where/else", options=places[1].options)
    assert rows_of(there) == rows_of(table)
    assert there.upsert([{"id": 1, "value": "there", "at": 0}]).slot == table.upsert([{"id": 1, "value": "here", "at": 0}]).slot == 3
    assert [rows_of(found, where="id = 1")[0]["value"] for found in (there, table)] == ["there", "here"]


# ---- no place in any object ----------------------------------------------------------------------------------------


def texts_of(key: str, data: bytes) -> Iterator[str]:
    """Everything that an object says: a JSON object whole; of Parquet, the footer, the names, and every text and bytes in a row."""
    if data[:4] != b"PAR1":
        yield data.decode()
        return
    yield data.decode("latin-1")  # the footer is not compressed
    file = pq.ParquetFile(io.BytesIO(data))
    yield str(file.metadata.metadata)
    yield str(file.schema)
    for column in file.read().columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type) or pa.types.is_nested(column.type):
            for value in column.to_pylist():
                yield value.decode("latin-1") if isinstance(value, bytes) else str(value)


def mentions(found: Mapping[str, bytes], traces: tuple[str, ...]) -> list[tuple[str, str]]:
    """Which objects say something of a place."""
    return [(key, trace) for key, data in found.items() for text in texts_of(key, data) for trace in traces if trace in text]


ABSOLUTE = re.compile(r'"(/|[a-z0-9]+://|file:|memory:)')


@everywhere
def test_no_object_says_where_the_lake_is(places: tuple[Place, Place]) -> None:
    store = places[0].open()
    fill(store)
    found = objects(store)
    kinds = {re.sub(r"[0-9a-f]{8,}|\d+", "#", key) for key in found}
    for part in (
        r"/history/",
        r"/checkpoints/.*\.parquet",
        r"/root\.json",
        r"/head\.json",
        r"/changes\.json",
        r"_catalog/log/",
        r"\.log\.p",
    ):
        assert any(re.search(part, kind) for kind in kinds), (part, kinds)
    assert mentions(found, places[0].traces) == []
    for key, data in found.items():
        if data[:4] != b"PAR1":
            json.loads(data)
            assert not ABSOLUTE.search(data.decode()), key


def test_a_place_that_is_mentioned_is_found() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"path": [f"s3://{FROM}/x"] * 3}), sink, compression="zstd")
    footer = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}).replace_schema_metadata({"from": FROM}), footer)
    found = {"a.json": f'{{"path": "{FROM}/x"}}'.encode(), "b.parquet": sink.getvalue(), "c.parquet": footer.getvalue(), "d.json": b"{}"}
    assert {key for key, _ in mentions(found, (FROM,))} == {"a.json", "b.parquet", "c.parquet"}
    assert ABSOLUTE.search('{"path": "/data/x"}') and not ABSOLUTE.search('{"path": "data/x"}')
