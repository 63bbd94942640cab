"""Arguments that are not what they should be: each is refused by one sentence that names it, and nothing is written."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import objcat
from fileio.errors import MissingDependency
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.common import validation
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate
from objcat.maintenance.compact import schedule_compaction
from objcat.maintenance.savepoint import release, savepoint
from objcat.maintenance.split_buckets import split_buckets
from objcat.predicate.parse import parse_predicate
from objcat.timeline.archive import archive
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import FileGroupId
from objcat.timeline.log_state import AppVersion

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string()), pa.field("size", pa.float64())])
LONE = "half \ud800 of a pair"
NO_INTS: tuple[Any, ...] = (True, 1.0, "1", None, float("nan"), [1], np.int64(1))
NO_TEXTS: tuple[Any, ...] = (5, None, b"a", ["a"], {"a": 1})
_stores = itertools.count()


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend(f"arguments-{next(_stores)}", env=FakeEnv(0))


@pytest.fixture
def lake(memory: MemoryBackend) -> objcat.Lake:
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(1)))
    table = lake.create_table("n.t", SCHEMA, key=["id"], shared_log="d", index=objcat.BucketIndex(2))
    table.insert([{"id": key, "value": "old", "size": 1.0} for key in range(6)])
    return lake


def objects(memory: MemoryBackend) -> set[tuple[str, str]]:
    return {(meta.key, str(meta.version)) for page in FileIO(memory).list() for meta in page.objects}


Call = Callable[[objcat.Lake, Any], Any]


def numbers() -> Iterator[tuple[str, Call, tuple[Any, ...]]]:
    """What takes a whole number: the word for it in the sentence, the call, and what is none for it, besides what never is."""
    yield "slot", lambda lake, bad: lake.table("n.t").maintenance.savepoint(slot=bad), (-1, 99)
    yield "slot", lambda lake, bad: lake.table("n.t").maintenance.release_savepoint(slot=bad), (-1, 99)
    yield "to", lambda lake, bad: lake.table("n.t").restore(to=bad), (-1, 99)
    yield "keep_slots", lambda lake, bad: lake.table("n.t").maintenance.clean(keep_slots=bad), (-1, 0)
    yield "before", lambda lake, bad: lake.table("n.t").maintenance.clean(before=bad), (-1,)
    yield "count", lambda lake, bad: lake.table("n.t").maintenance.split_buckets(count=bad), (-1, 0, 3, 1 << 20)
    yield "slot", lambda lake, bad: lake.table("n.t")._context.timeline.at(bad), (-1, 99)
    yield "keep_slots", lambda lake, bad: archive(lake.table("n.t")._context.timeline, keep_slots=bad), (-1, 0)
    yield (
        "keep",
        lambda lake, bad: collect_checkpoints(lake.table("n.t")._context.timeline, Committer(lake.table("n.t")._context.fileio), keep=bad),
        (0,),
    )
    yield "keep_slots", lambda lake, bad: lake.table("n.t").maintenance.archive(keep_slots=bad), (-1, 0)
    yield "keep", lambda lake, bad: lake.table("n.t").maintenance.expire_checkpoints(keep=bad), (0,)
    yield "version", lambda _, bad: AppVersion(app="a", version=bad), (-1,)
    yield "resumed_after", lambda _, bad: AppVersion(app="a", version=1, resumed_after=bad), (-1,)
    yield "since", lambda _, bad: AppVersion(app="a", version=1, since=bad), (-2,)


OPTIONAL = {"slot", "keep_slots", "before", "count", "resumed_after", "since"}
"""Where None means something."""


@pytest.mark.parametrize(
    ("what", "call", "bad"),
    [
        pytest.param(what, call, bad, id=f"{number}-{what}={bad!r}")
        for number, (what, call, more) in enumerate(numbers())
        for bad in (*NO_INTS, *more)
        if not (bad is None and what in OPTIONAL)
    ],
)
def test_what_is_no_whole_number_in_range(memory: MemoryBackend, lake: objcat.Lake, what: str, call: Call, bad: Any) -> None:
    before = objects(memory)
    with pytest.raises(InvalidInput) as raised:
        call(lake, bad)
    said = str(raised.value)
    assert type(raised.value) is InvalidInput and "\n" not in said
    assert what in said or f"has no slot {bad}" in said or f"cannot become {bad}" in said
    assert objects(memory) == before


TEXTS: Mapping[str, Call] = {
    "name of a savepoint": lambda lake, bad: lake.table("n.t").maintenance.savepoint(name=bad),
    "transaction": lambda lake, bad: lake.table("n.t").resolve(bad),
    "transaction of names": lambda lake, bad: lake.resolve(bad),
    "application": lambda _, bad: AppVersion(app=bad, version=1),
    "table": lambda lake, bad: lake.table(bad),
    "new table": lambda lake, bad: lake.create_table(bad, SCHEMA, key=["id"]),
    "dropped table": lambda lake, bad: lake.undrop_table(bad),
    "other name": lambda lake, bad: lake.rename_table("n.t", bad),
    "namespace": lambda lake, bad: lake.namespaces.create(bad),
    "dropped namespace": lambda lake, bad: lake.namespaces.drop(bad),
    "properties of a namespace": lambda lake, bad: lake.namespaces.properties(bad),
    "table type": lambda lake, bad: lake.create_table("u", SCHEMA, key=["id"], table_type=bad),
    "isolation": lambda lake, bad: lake.transaction(isolation=bad),
    "table of a transaction": lambda lake, bad: transact(lake, bad),  # noqa: PLW0108 - defined below
}


def transact(lake: objcat.Lake, name: str) -> None:
    with lake.transaction() as tx:
        tx[name].upsert([{"id": 1}])


@pytest.mark.parametrize("bad", [*NO_TEXTS, LONE], ids=repr)
@pytest.mark.parametrize("what", TEXTS)
def test_what_is_no_text(memory: MemoryBackend, lake: objcat.Lake, what: str, bad: Any) -> None:
    before = objects(memory)
    with pytest.raises(InvalidInput) as raised:
        TEXTS[what](lake, bad)
    str(raised.value).encode()
    assert type(raised.value) is InvalidInput and objects(memory) == before


@pytest.mark.parametrize("bad", [b"a", 5, LONE], ids=repr)
@pytest.mark.parametrize("how", ["tables", "namespaces.list", "dropped_tables"])
def test_namespaces_to_list_are_texts(lake: objcat.Lake, how: str, bad: Any) -> None:
    with pytest.raises(InvalidInput, match="name of a namespace"):
        attrgetter(how)(lake)(bad)


MAPPINGS: Mapping[str, Call] = {
    "properties of a new table": lambda lake, bad: lake.create_table("u", SCHEMA, key=["id"], properties=bad),
    "properties of a new namespace": lambda lake, bad: lake.namespaces.create("m", bad),
    "properties of a namespace": lambda lake, bad: lake.namespaces.set_properties("n", bad),
    "metadata of a transaction": lambda lake, bad: lake.transaction(metadata=bad),
}


@pytest.mark.parametrize("bad", [["a"], [], "a", 5, {"a": 5}, {5: "a"}, {"a": None}, {"a": LONE}, {LONE: "a"}], ids=repr)
@pytest.mark.parametrize("what", MAPPINGS)
def test_what_is_no_mapping_of_texts(memory: MemoryBackend, lake: objcat.Lake, what: str, bad: Any) -> None:
    before = objects(memory)
    with pytest.raises(InvalidInput, match=what.split(" ", maxsplit=1)[0]) as raised:
        MAPPINGS[what](lake, bad)
    str(raised.value).encode()
    assert objects(memory) == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"schema": None}, r"schema is None\. Give an Arrow schema"),
        ({"schema": {"id": "bigint"}}, r"schema is \{'id': 'bigint'\}\. Give an Arrow schema"),
        ({"key": 5}, r"key is 5\. Give a list of names"),
        ({"key": [1]}, "key holds 1, which is not text"),
        ({"key": ["id", None]}, "key holds None, which is not text"),
        ({"key": "id"}, r"key is the text 'id'\. Give a list of names, \['id'\]"),
        ({"ordering": 5}, "ordering=5 is not text"),
        ({"ordering": ["size", 5]}, "ordering holds 5, which is not text"),
        ({"ordering": ["size", "size"]}, r"The ordering \['size', 'size'\] names a column twice"),
        ({"ordering": []}, "ordering names no column"),
        ({"ordering": ["size", "sise"]}, "no column 'sise'"),
        ({"index": 16}, r"index is 16\. Give objcat\.BucketIndex\(16\)"),
        ({"index": objcat.BucketIndex(2, columns=5)}, r"BucketIndex\(columns\) is 5"),  # type: ignore[arg-type]
        ({"index": objcat.BucketIndex(2, columns=(1,))}, r"BucketIndex\(columns\) holds 1"),  # type: ignore[arg-type]
        ({"table_type": "copy_on_writ"}, "table_type='copy_on_writ' is not known.*did you mean 'copy_on_write'"),
        ({"shared_log": 5}, "5 is not a shared_log name"),
    ],
)
def test_settings_of_a_table(memory: MemoryBackend, lake: objcat.Lake, settings: dict[str, Any], says: str) -> None:
    before = objects(memory)
    with pytest.raises(InvalidInput, match=says):
        lake.create_table("u", **{"schema": SCHEMA, "key": ["id"], **settings})
    assert objects(memory) == before
    if "shared_log" not in settings:
        with pytest.raises(InvalidInput, match=says):
            objcat.create_table_at(lake.fileio.child("alone"), **{"schema": SCHEMA, "key": ["id"], **settings})
        assert objects(memory) == before


@pytest.mark.parametrize(
    ("setting", "says"), [("shared_log", "'shared_log' is not a setting of a table"), ("orderin", "did you mean 'ordering'")]
)
def test_a_setting_that_a_table_without_a_lake_lacks_is_named(memory: MemoryBackend, lake: objcat.Lake, setting: str, says: str) -> None:
    before = objects(memory)
    given: dict[str, Any] = {setting: "d"}
    with pytest.raises(InvalidInput, match=says):
        objcat.create_table_at(lake.fileio.child("alone"), SCHEMA, key=["id"], **given)
    assert objects(memory) == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, -0.001, 1e300, "60", None, True, [60]], ids=repr)
def test_what_is_no_time_span(memory: MemoryBackend, lake: objcat.Lake, bad: Any) -> None:
    table = lake.table("n.t")
    before = objects(memory)
    with pytest.raises(InvalidInput, match=r"older_than_s=.* is not a time span\. Give seconds"):
        table.maintenance.rollback_failed_writes(older_than_s=bad)
    assert objects(memory) == before


@pytest.mark.parametrize("bad", [5, "a", [("", 0, 2)], FileGroupId("", 0, 2), [None], {FileGroupId("", 0, 2): 1}], ids=repr)
def test_what_are_no_groups(memory: MemoryBackend, lake: objcat.Lake, bad: Any) -> None:
    table = lake.table("n.t")
    table.upsert([{"id": 1, "value": "new"}])
    before = objects(memory)
    for call in (
        lambda: table.maintenance.compact(file_groups=bad),
        lambda: schedule_compaction(table._context.timeline, table.id, file_groups=bad),
    ):
        with pytest.raises(InvalidInput, match=r"^file_groups .*\. Give a list of file groups"):
            call()
    assert objects(memory) == before


@pytest.mark.parametrize("bad", ["a", ("a", 1), {"app": "a", "version": 1}], ids=repr)
def test_what_is_no_application(memory: MemoryBackend, lake: objcat.Lake, bad: Any) -> None:
    table = lake.table("n.t")
    before = objects(memory)
    with pytest.raises(InvalidInput, match=r"app is .*\. Give an objcat\.AppVersion"):
        table.upsert([{"id": 1}], app=bad)
    with pytest.raises(InvalidInput, match=r"app is .*\. Give an objcat\.AppVersion"), lake.transaction(app=bad) as tx:
        tx["n.t"].upsert([{"id": 1}])
    assert objects(memory) == before


ROW = {"id": 1, "value": "a", "size": 1.0}
FIRST_TRIES: Mapping[str, tuple[Callable[[objcat.Table], Any], str]] = {
    "a session's name": (lambda t: t.scan().to_spark("local"), r"spark is 'local'\. Give a session"),  # type: ignore[arg-type]
    "no session": (lambda t: t.changes(since=0).to_spark(None), r"spark is None\. Give a session"),  # type: ignore[arg-type]
    "a session's name to delete": (lambda t: t.delete("id = 1", spark="local"), "spark is 'local'"),  # type: ignore[call-overload]
    "a session's name to update": (lambda t: t.update({"size": 1}, spark="local"), "spark is 'local'"),  # type: ignore[arg-type]
    "a session's name to compact": (lambda t: t.maintenance.compact(spark="local"), "spark is 'local'"),  # type: ignore[arg-type]
    "a file of DuckDB": (lambda t: t.scan().to_duckdb("a.db"), r"connection is 'a.db'\. Give duckdb.connect"),  # type: ignore[arg-type]
    "an update's text": (lambda t: t.update("size = 1"), "does not say what to set. Give a dict"),  # type: ignore[arg-type]
    "text without quotes": (lambda t: t.update({"value": "new"}), "'new', which is not a column .text stands in quotes"),
    "a time as a value": (lambda t: t.update({"size": pd.Timestamp(0)}), "Pass SQL text .timestamp '2026"),
    "a list to max": (lambda t: t.scan().max(["size"]), "column=.'size'. is not text"),  # type: ignore[arg-type]
    "text without quotes in a filter": (lambda t: t.scan(where="value = new"), r"names 'new', .* Text stands in single quotes, 'new'\.$"),
    "None in a filter": (lambda t: t.scan(where="value is None"), "names 'None', which is not a column. Write IS NULL"),
    "& in a filter": (lambda t: t.scan(where="(id = 1) & (size > 1)"), "AND, OR, .* of SQL and not & | ~ of Python"),
    "a field in a filter": (lambda t: t.scan(where="value.x = 1"), "'value' is of type string, and only structs have fields"),
    "a field of a column": (lambda t: t.scan(columns=["value.x"]), "no column 'value.x': read 'value' whole"),
    "another case": (lambda t: t.scan(columns=["ID"]), "no column 'ID': did you mean 'id'"),
    "another case in a batch": (lambda t: t.upsert([{"ID": 1}]), "has the column 'ID'.*did you mean 'id'"),
    "an index of pandas": (lambda t: t.upsert(pd.DataFrame({"id": [1]}, index=pd.Index(["a"], name="value"))), "has the index 'value'"),
    "NaT": (lambda t: t.upsert([ROW, ROW | {"value": pd.NaT}]), "'value' of the batch holds values of several types .* None where"),
    "a lazy frame": (lambda t: t.upsert(pl.LazyFrame({"id": [1]})), "A LazyFrame is not a batch of rows, but its collect"),
    "a path": (lambda t: t.upsert("rows.parquet"), "A str is not a batch of rows, and lake.import_parquet reads files"),
    "two columns of one name": (lambda t: t.upsert(pd.DataFrame([[1, 2]], columns=["id", "id"])), "one type and a name each"),
}


@pytest.mark.parametrize("what", FIRST_TRIES)
def test_first_tries_that_miss_are_told_what_to_write(memory: MemoryBackend, lake: objcat.Lake, what: str) -> None:
    call, says = FIRST_TRIES[what]
    before = objects(memory)
    with pytest.raises(InvalidInput, match=says) as raised:
        call(lake.table("n.t"))
    assert "\n" not in str(raised.value)
    with pytest.raises(InvalidInput, match="spark is 'local'"):
        lake.sql("SELECT 1", "local")  # type: ignore[call-overload]
    assert objects(memory) == before


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("polars", lambda table: table.scan().to_polars()),
        ("polars", lambda table: table.scan().to_polars_lazy()),
        ("polars", lambda table: table.changes(since=0).to_polars()),
        ("duckdb", lambda table: table.scan().to_duckdb()),
        ("duckdb", lambda table: table.update({"size": 1})),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[objcat.Table], Any]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=rf"need(s)? {name}, which is not installed\. Run pip install 'objcat\[local\]'\.$"):
        call(lake.table("n.t"))


def test_an_index_of_pandas_that_is_a_column_too_is_taken(lake: objcat.Lake) -> None:
    frame = pd.DataFrame([ROW])
    table = lake.table("n.t")
    table.upsert(frame.set_index("value", drop=False))
    table.upsert(frame.assign(id=9).groupby("id", as_index=False).max())
    assert table.scan().count() == 7


def test_plain_values_are_taken(lake: objcat.Lake) -> None:
    table = lake.table("n.t")
    assert savepoint(table._context.timeline, table.id, slot=0, name="") is not None
    assert release(table._context.timeline, table.id, slot=0) is not None
    assert split_buckets(table._context.timeline, table.id, count=4) is not None
    assert table.maintenance.compact(file_groups=(FileGroupId("", 0, 4), FileGroupId("", 1, 4))) is not None
    assert table.maintenance.rollback_failed_writes(older_than_s=0.5) == []
    assert table.maintenance.clean(before=0).bound == 0


# ---- filters -------------------------------------------------------------------------------------------------------

DEEP: Mapping[str, str] = {
    "parentheses": "(" * 5000 + "id = 1" + ")" * 5000,
    "negations": "not " * 5000 + "id = 1",
    "nested ORs": "".join(f"id = {number} or (" for number in range(3000)) + "id = 0" + ")" * 3000,
    "ANDs and ORs by turns": "(" * 3000 + "id = 0" + "".join(f" {'or' if n % 2 else 'and'} id = {n})" for n in range(3000)),
    "signs": "id = " + "- " * 5000 + "1",
}


@pytest.mark.parametrize("what", DEEP)
def test_a_filter_that_is_nested_too_deeply(lake: objcat.Lake, what: str) -> None:
    with pytest.raises(InvalidPredicate, match=r"is nested too deeply. Write it with fewer parentheses") as raised:
        lake.table("n.t").scan(where=DEEP[what])
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (" or ".join(f"id = {number}" for number in range(4, 1204)), {4, 5}),
        (" and ".join(f"size <> {number}" for number in range(2, 1202)), {0, 1, 2, 3, 4, 5}),
        (" or ".join(f"id = {number} and value = 'old'" for number in range(3, 1203)), {3, 4, 5}),
        (" and ".join(f"(id <> {number} or value = 'new')" for number in range(1200)), set()),
    ],
    ids=["OR", "AND", "OR of ANDs", "AND of ORs"],
)
def test_a_long_chain_is_no_depth(lake: objcat.Lake, where: str, found: set[int]) -> None:
    scan = lake.table("n.t").scan(where=where, columns=["id"])
    assert set(scan.to_arrow().column("id").to_pylist()) == found
    said = parse_predicate(where, lake.table("n.t").spec.table_schema).to_spark_sql()
    assert said.count("`id`") + said.count("`size`") >= 1200


@pytest.mark.parametrize("where", [LONE, f"value = '{LONE}'", 5, b"id = 1", ["id = 1"], True], ids=repr)
def test_a_filter_that_is_no_text(lake: objcat.Lake, where: Any) -> None:
    with pytest.raises(InvalidPredicate) as raised:
        lake.table("n.t").scan(where=where)
    str(raised.value).encode()


# ---- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([{"id": 9, "value": LONE}], "The column 'value' of the batch holds .* which is not valid Unicode"),
        ([{"id": 9, LONE: "a"}], "has the column .* which is not valid Unicode"),
        (pd.DataFrame({"id": [9], "value": [LONE]}), "The frame holds .* which is not valid Unicode"),
        (pd.DataFrame({"id": [9, 10], "value": ["a", 1]}), "The frame is not a batch of rows"),
        (pd.DataFrame([[9, 9]], columns=["id", "id"]), "The frame is not a batch of rows.*id"),
        (pd.Series([9], name="id"), "A Series is not a batch of rows"),
        (pl.Series("id", [9]), "is not a batch of rows"),
    ],
    ids=["value", "column", "frame", "mixed frame", "repeated column", "pandas series", "polars series"],
)
def test_a_batch_that_no_file_can_hold(memory: MemoryBackend, lake: objcat.Lake, batch: Any, says: str) -> None:
    before = objects(memory)
    with pytest.raises(InvalidBatch, match=says) as raised:
        lake.table("n.t").upsert(batch)
    str(raised.value).encode()
    assert objects(memory) == before


# ---- the checks ----------------------------------------------------------------------------------------------------


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "says"),
    [("a\nb", r"'a\\nb'"), (LONE, r"'half \\ud800 of a pair'"), (Unshowable(), "a Unshowable"), ("x" * 500, "'" + "x" * 99 + r"\.\.\.")],
    ids=["lines", "surrogate", "unshowable", "long"],
)
def test_values_are_quoted_on_one_short_line(value: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^count={says} is not a whole number from 1 to 9\. Give one as an int\.$"):
        validation.whole_number(value, what="count", least=1, most=9)
