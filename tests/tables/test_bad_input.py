"""Bad input: every write operation of either kind of table refuses it with one sentence, and writes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate, NullKey, ObjcatError

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("at", pa.int64()), ("v", pa.float32())])
ROW = {"id": 1, "city": "Rome", "at": 1}
OPERATIONS = ("upsert", "insert", "bulk_insert", "delete")
_stores = itertools.count()

BATCHES: dict[str, tuple[Any, type[ObjcatError], str]] = {
    "null key": ([ROW, ROW | {"id": None}], NullKey, "The key column 'id' is null in row 1"),
    "null ordering": ([ROW | {"at": None}], NullKey, "The ordering column 'at' is null in row 0"),
    "text as a key": (
        [ROW | {"id": "1"}],
        InvalidBatch,
        "'id' is string in the batch and bigint in the table.* Nothing was written. Cast it yourself",
    ),
    "a fraction as a number": ([ROW | {"at": 1.5}], InvalidBatch, "'at' is double in the batch.* does not cast without loss"),
    "a number as text": ([ROW | {"city": 5}], InvalidBatch, "'city' is int64 in the batch and string in the table"),
    "no key": ([{"city": "Rome", "at": 1}], InvalidBatch, "lacks the column 'id'"),
    "no partition": ([{"id": 1, "at": 1}], InvalidBatch, "lacks the column 'city'"),
    "no rows": ([], InvalidBatch, "is empty"),
    "no batch": (5, InvalidBatch, "is not a batch of rows"),
    "a column twice": (pa.table([[1], [2], ["a"], [1]], names=["id", "id", "city", "at"]), InvalidBatch, "'id' twice"),
}
ROWS_ALONE: dict[str, tuple[Any, type[ObjcatError], str]] = {
    "no ordering": ([{"id": 1, "city": "Rome"}], InvalidBatch, "lacks the column 'at'"),
    "an unknown column": ([ROW | {"citi": "a"}], InvalidBatch, "has the column 'citi'.*did you mean 'city'"),
    "a number that would be rounded": ([ROW | {"v": 0.1}], InvalidBatch, "'v' is double in the batch and float in the table"),
}
"""Of batches of rows: a delete takes what it needs of a batch, and ignores the rest."""


@pytest.fixture(params=["merge_on_read", "copy_on_write"])
def table(request: pytest.FixtureRequest) -> objcat.Table:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    made = lake.create_table(
        "t",
        SCHEMA,
        key=["id"],
        ordering="at",
        table_type=request.param,
        partition_by=["city"],
        key_scope="partition",
        index=objcat.BucketIndex(2),
    )
    made.insert([ROW])
    return made


def refused(table: objcat.Table, call: Callable[[], object], error: type[ObjcatError], says: str) -> None:
    before = sorted(table._context.fileio.list_keys())
    with pytest.raises(error, match=says) as raised:
        call()
    assert "\n" not in str(raised.value) and "<class" not in str(raised.value)
    assert sorted(table._context.fileio.list_keys()) == before
    assert table.scan().count() == 1


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("what", [*BATCHES, *ROWS_ALONE])
def test_a_batch_that_does_not_fit(table: objcat.Table, operation: str, what: str) -> None:
    batch, error, says = (BATCHES | ROWS_ALONE)[what]
    if what in ROWS_ALONE and operation == "delete":
        # It is taken all the same.
        table.delete(batch)
        return
    refused(table, lambda: getattr(table, operation)(batch), error, says)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda t: t.upsert([ROW], schema_mode="ad"), InvalidInput, r"schema_mode='ad' .*\(did you mean 'add'"),
        (lambda t: t.bulk_insert([ROW], sort="partitio"), InvalidInput, "did you mean 'partition'"),
        (lambda t: t.bulk_insert([ROW], sort=["city"]), InvalidInput, "are sorted by bucket and key"),
        (lambda t: t.upsert([ROW], delete_when="at ="), InvalidPredicate, "'at =' does not parse"),
        (lambda t: t.upsert([ROW], delete_when="aat = 1"), InvalidPredicate, "did you mean 'at'"),
        (lambda t: t.delete("city == = 'a'"), InvalidPredicate, "does not parse"),
        (lambda t: t.delete("citi = 'a'"), InvalidPredicate, "did you mean 'city'"),
        (lambda t: t.delete("upper(citi) = 'A'"), InvalidPredicate, "did you mean 'city'"),
        (lambda t: t.delete("upper(city)"), InvalidPredicate, "and not true or false"),
        (lambda t: t.delete("upper(city) = 'A' and at = 'x'"), InvalidPredicate, "Cast one of them"),
        (lambda t: t.delete("uper(city) = 'A'"), InvalidInput, "uper"),
        (lambda t: t.erase("upper(city) = 'A'"), InvalidPredicate, "cannot push down"),
        (lambda t: t.scan(where="upper(city) = 'A'"), InvalidPredicate, "cannot push down"),
        (lambda t: t.upsert([ROW], metadata={"a": 1}), InvalidInput, "metadata holds"),
        (lambda t: t.alter.set_partitioning(["dya(at)"]), InvalidInput, "'dya' is no transform \\(did you mean 'day'"),
        (lambda t: t.alter.set_partitioning(["truncate(city)"]), InvalidInput, r"truncate\(column, 10\)"),
    ],
)
def test_a_setting_that_does_not_fit(
    table: objcat.Table, call: Callable[[objcat.Table], object], error: type[ObjcatError], says: str
) -> None:
    refused(table, lambda: call(table), error, says)


@pytest.mark.parametrize("operation", OPERATIONS[:3])
@pytest.mark.parametrize("place", ["x" * 5000, "日" * 400, "\x00", "..", "/", "a\nb", "\ud7ff\U0010ffff"])
def test_any_value_names_a_partition(table: objcat.Table, operation: str, place: str) -> None:
    getattr(table, operation)([{"id": 2, "city": place, "at": 1}])
    assert table.scan(columns=["city"]).to_arrow().column("city").to_pylist().count(place) == 1
    assert all(len(key) < 1000 and key.isascii() and key.isprintable() for key in table._context.fileio.list_keys())


@pytest.mark.parametrize("operation", ["upsert", "mixed", "insert", "delete"])
def test_text_that_is_given_as_views_is_text(table: objcat.Table, operation: str) -> None:
    batch = pl.DataFrame({"id": [1, 3], "city": ["Rome", "Oslo"], "at": [2, 2], "op": ["d", "u"]})
    assert pa.types.is_string_view(pa.table(batch).schema.field("city").type)
    match operation:
        case "mixed":
            table.upsert(batch, delete_when="op = 'd'")
        case "delete":
            table.delete(batch)
        case _:
            getattr(table, operation)(batch.drop("op"))
    wanted = {"mixed": {(3, "Oslo")}, "delete": set()}.get(operation, {(1, "Rome"), (3, "Oslo")})
    assert {(row["id"], row["city"]) for row in table.scan().to_arrow().to_pylist()} == wanted


@pytest.mark.parametrize("data_type", [pa.binary(), pa.string()], ids=str)
def test_python_objects_in_a_frame_are_not_written_as_their_addresses(data_type: pa.DataType) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("raw", data_type)]), key=["id"])
    table.insert([{"id": 1}])
    frame = pl.DataFrame({"id": [2], "raw": pl.Series([object()], dtype=pl.Object)})
    for call in (lambda: table.upsert(frame), lambda: lake.write(frame, "u", key=["id"])):
        refused(table, call, InvalidBatch, "The column 'raw' of the frame holds Python objects. Nothing was written. Cast it")


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_are_sorted_by_text_that_is_given_as_views(kind: TableType) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    table = lake.create_table("t", pa.schema([("city", pa.string()), ("raw", pa.binary())]), key=None, table_type=kind)
    table.bulk_insert(pl.DataFrame({"city": ["Rome", "Oslo", None], "raw": [b"\xff", None, b""]}), sort=["city", "raw"])
    assert table.scan().to_arrow().column("city").to_pylist() == ["Oslo", "Rome", None]


UNREADABLE = pa.array([b"\xff\xfe", b"b"]).view(pa.string())
INDEXES = [objcat.BucketIndex(2), objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex(), objcat.RecordIndex(2)]


@pytest.mark.parametrize("role", ["key", "place", "at"])
@pytest.mark.parametrize("index", INDEXES, ids=lambda index: type(index).__name__)
def test_text_by_which_rows_are_found_is_text(index: Any, role: str) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    schema = pa.schema([(name, pa.string()) for name in ("key", "place", "at", "said")])
    table = lake.create_table("t", schema, key=["key"], partition_by=["place"], key_scope="partition", ordering="at", index=index)
    table.insert([{"key": "a", "place": "b", "at": "c"}])
    rows = pa.table({name: UNREADABLE if name in (role, "said") else pa.array(["b", "c"]) for name in schema.names})
    for call in (lambda: table.upsert(rows), lambda: table.insert(rows), lambda: table.delete(rows.drop_columns(["said"]))):
        refused(table, call, InvalidBatch, f"'{role}' of the batch holds text that is not valid UTF-8")
    table.upsert(rows.set_column(schema.names.index(role), role, pa.array(["b", "c"])))
    table.maintenance.compact()
    assert table.scan().count() == 3


CHOICES: dict[str, Any] = {"text": pl.String, "categories": pl.Categorical, "choices": pl.Enum(["Rome", "Oslo", "d", "u"])}


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
@pytest.mark.parametrize("form", CHOICES)
@pytest.mark.parametrize("index", INDEXES[1:], ids=lambda index: type(index).__name__)
def test_frames_of_polars_where_keys_are_looked_up(index: Any, form: str, kind: TableType) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    table = lake.create_table("t", SCHEMA, key=["id"], partition_by=["city"], table_type=kind, index=index)
    assert table.spec.is_global
    table.insert(pl.DataFrame({"id": [1, 2], "city": pl.Series(["Rome", "Oslo"], dtype=CHOICES[form])}))
    changes: dict[str, Any] = {"id": [1, 2, 3], "city": ["Oslo", "Oslo", "Rome"], "op": ["u", "d", "u"]}
    batch = pl.DataFrame(
        {**changes, "city": pl.Series(changes["city"], dtype=CHOICES[form]), "op": pl.Series(changes["op"], dtype=CHOICES[form])}
    )
    table.upsert(batch, delete_when="op = 'd'")
    assert {(row["id"], row["city"]) for row in table.scan().to_arrow().to_pylist()} == {(1, "Oslo"), (3, "Rome")}
    table.delete(batch.filter(pl.col("id") == 3))
    assert table.scan().to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    "values", [pa.array(["b", "a", None]).dictionary_encode(), pd.Categorical(["b", "a", None])], ids=["Arrow", "pandas"]
)
def test_rows_are_sorted_by_categories(values: Any) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    table = lake.create_table("t", pa.schema([("city", pa.string())]), key=None)
    table.bulk_insert(pa.table({"city": values}) if isinstance(values, pa.Array) else pd.DataFrame({"city": values}), sort=["city"])
    assert table.scan().to_arrow().column("city").to_pylist() == ["a", "b", None]


@pytest.mark.parametrize(
    "values",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([7], pa.int64())),
        pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))),
    ],
    ids=["run-end encoded", "tensor"],
)
@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert"])
def test_what_has_values_and_is_no_list_is_not_taken_for_one(operation: str, values: pa.Array) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.int64()))]), key=["id"])
    table.insert([{"id": 1, "tags": [1]}])
    batch = pa.table({"id": pa.array([1, 2]), "tags": values})
    refused(table, lambda: getattr(table, operation)(batch), InvalidBatch, "'tags' is .* Cast it yourself")


NESTED = pa.struct([("a", pa.int64())])
TWO = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
TWICE: dict[str, tuple[pa.Table, str]] = {
    "a column": (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), "the column 'id' twice"),
    "a field": (pa.table({"id": [1], "s": TWO}), "the field 's.a' twice"),
    "in a list": (pa.table({"id": [1], "l": pa.ListArray.from_arrays([0, 1], TWO)}), "the field 'l.element.a' twice"),
    "in a map": (pa.table({"id": [1], "m": pa.MapArray.from_arrays([0, 1], ["k"], TWO)}), "the field 'm.value.a' twice"),
    "in a struct": (pa.table({"id": [1], "t": pa.StructArray.from_arrays([TWO], ["s"])}), "the field 't.s.a' twice"),
}
WRITES: dict[str, Callable[[objcat.Lake, objcat.Table, Any], object]] = {
    "upsert": lambda _, table, batch: table.upsert(batch),
    "upsert that adds": lambda _, table, batch: table.upsert(batch, schema_mode="add"),
    "insert": lambda _, table, batch: table.insert(batch),
    "bulk insert": lambda _, table, batch: table.bulk_insert(batch),
    "merge": lambda _, table, batch: table.merge(batch).when_matched_update().when_not_matched_insert().execute(),
    "partial": lambda _, table, batch: table.upsert_partial(batch),
    "overwrite": lambda _, table, batch: table.overwrite(batch),
    "lake": lambda lake, _, batch: lake.write(batch, "t", key=["id"]),
    "new table": lambda lake, _, batch: lake.write(batch, "u", key=["id"]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("what", TWICE)
def test_what_has_one_name_twice_is_refused_and_no_value_is_lost(write: Callable[..., object], what: str) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend(f"bad-{next(_stores)}"), env=FakeEnv()))
    nested = [("s", NESTED), ("l", pa.list_(NESTED)), ("m", pa.map_(pa.string(), NESTED)), ("t", pa.struct([("s", NESTED)]))]
    table = lake.create_table(
        "t", pa.schema([pa.field("id", pa.int64(), nullable=False), *nested]), key=["id"], index=objcat.BucketIndex(1)
    )
    table.upsert([{"id": 1, "s": {"a": 5}}])
    batch, says = TWICE[what]
    refused(table, lambda: write(lake, table, batch), InvalidBatch, f"The batch has {says}. Nothing was written. Drop or rename one.")
    assert lake.tables() == ["t"]


def test_a_delete_takes_its_keys_of_a_batch_that_has_other_names_twice(table: objcat.Table) -> None:
    table.delete(pa.Table.from_arrays([pa.array([1]), pa.array(["Rome"]), TWO, TWO], ["id", "city", "x", "x"]))
    assert table.scan().count() == 0
