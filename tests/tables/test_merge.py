"""Merges and updates: what becomes of every row on every kind of table, what is refused, and what others do meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.common.validation import TableType
from objcat.errors import InvalidBatch, InvalidInput, InvalidPredicate, NullKey
from tests.tables.racing import RacingBackend

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("share", pa.float32()),
    ]
)
KINDS = ("merge_on_read", "copy_on_write")
TABLES: list[dict[str, Any]] = [
    {"key": ["id"]},
    {"key": ["id"], "ordering": "at"},
    {"key": ["id"], "partition_by": ["city"], "key_scope": "partition"},
    {"key": ["city", "id"], "partition_by": ["city"]},
    {"key": ["id"], "index": objcat.SimpleIndex()},
]
WITHOUT_KEY: list[dict[str, Any]] = [{"key": None}, {"key": None, "partition_by": ["city"]}]


def row(i: int, **other: Any) -> dict[str, Any]:
    return {"id": i, "city": "abc"[i % 3], "v": i, "note": None, "at": 5, "price": None, "share": None} | other


def make(place: Any, count: int = 20, **table: Any) -> objcat.Table:
    lake = objcat.Lake(place) if isinstance(place, FileIO) else objcat.connect(place)
    made = lake.create_table("t", SCHEMA, **({"index": objcat.BucketIndex(4) if table["key"] else None} | table))
    made.insert(pa.Table.from_pylist([row(i) for i in range(count)], SCHEMA))
    return made


def memory(seed: int = 7) -> FileIO:
    return FileIO(MemoryBackend("merge"), env=FakeEnv(seed))


def values(table: objcat.Table, column: str = "v") -> dict[int, Any]:
    found = table.scan().to_arrow()
    keys = found["id"].to_pylist()
    assert len(keys) == len(set(keys)), "a key is there twice"
    return dict(zip(keys, found[column].to_pylist(), strict=True))


def counts(result: objcat.CommitResult | None) -> tuple[int | None, int | None, int | None]:
    assert result is not None
    return result.inserted, result.updated, result.deleted


# ---- update


@pytest.mark.parametrize("settings", [*TABLES, *WITHOUT_KEY], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_sets_what_passes_and_nothing_else(kind: TableType, settings: dict[str, Any]) -> None:
    table = make(memory(), table_type=kind, **settings)
    expected = values(table)
    result = table.update({"v": "v * 10 + id", "note": "concat('was ', v)"}, where="v >= 10 and city = 'b'", metadata={"why": "asked"})
    changed = {i for i in expected if i >= 10 and i % 3 == 1}
    assert counts(result) == (0, len(changed), 0) and result is not None and result.rows == len(changed)
    assert values(table) == {i: 11 * i if i in changed else i for i in expected}
    assert values(table, "note") == {i: f"was {i}" if i in changed else None for i in expected}
    assert dict(table.inspect.history()[-1].metadata) == {"why": "asked"}
    # What a scan cannot filter by is evaluated.
    result = table.update({"note": "'even'"}, where="v % 2 = 0 and length(city) = 1 and v < 10")
    assert counts(result) == (0, 5, 0)
    assert {i for i, note in values(table, "note").items() if note == "even"} == {0, 2, 4, 6, 8}
    table.maintenance.compact()
    assert values(table, "note")[10] == "was 10"
    told = table.changes(since=1, net=True).to_arrow().to_pylist()
    if table.spec.has_key:
        assert {row["_change_type"] for row in told} == {"update_before", "update_after"}


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_passes_nothing_is_committed(tmp_path: Path, kind: TableType) -> None:
    table = make(tmp_path, table_type=kind, key=["id"])
    before = set(tmp_path.glob("tables/*/data/**/*.parquet"))
    assert table.update({"v": 1}, where="v = 1000") is None
    assert table.update({"v": 1}, where="abs(v) = 1000") is None
    assert table.merge([{"id": 100}]).when_matched_delete().execute() is None
    assert table.refresh().slot == 1 and set(tmp_path.glob("tables/*/data/**/*.parquet")) == before


def test_an_update_does_not_make_a_row_older() -> None:
    table = make(memory(), key=["id"], ordering="at")
    assert table.update({"at": "at - 1", "v": -1}, where="id < 3") is None
    assert counts(table.update({"at": "at + id - 1", "v": -1}, where="id < 3")) == (0, 2, 0)
    assert [values(table)[i] for i in range(3)] == [0, -1, -1]


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"v": "nothing + 1"}, InvalidPredicate, "is not a column"),
        ({"w": "1"}, InvalidInput, "no column 'w'"),
        ({"id": "id + 1"}, InvalidInput, "key column"),
        ({"city": "'z'"}, InvalidInput, "another partition"),
        ({"v": "'x'"}, InvalidInput, "Cast it"),
        ({"v": "v / 2"}, InvalidInput, "Cast it"),
        ({"v": "(select 1)"}, InvalidPredicate, "columns of one row"),
        ({"v": "sum(v)"}, InvalidPredicate, "columns of one row"),
        ({"v": "no_such_function(v)"}, InvalidPredicate, "does not fit"),
        ({"v": "v +"}, InvalidPredicate, "does not parse"),
        ({"v": "source.v"}, InvalidPredicate, "no row of the source"),
        ({"v": "9223372036854775807 + v"}, InvalidInput, "fails on a row"),
        ({"at": None}, NullKey, "null"),
        ({}, InvalidInput, "what to set"),
        ({"v": object()}, InvalidPredicate, "not an expression"),
    ],
    ids=str,
)
def test_what_an_update_refuses(said: dict[str, Any], error: type[Exception], match: str) -> None:
    table = make(memory(), key=["id"], ordering="at", partition_by=["city"], key_scope="partition")
    with pytest.raises(error, match=match):
        table.update(said)
    assert table.refresh().slot == 1
    with pytest.raises(InvalidPredicate, match="not true or false"):
        table.update({"v": 1}, where="v + 1")
    with pytest.raises(InvalidInput, match="determines the partition of a row"):
        make(memory(), key=None, partition_by=["city"]).update({"city": "'z'"})


def test_values_are_cast_only_where_nothing_is_lost() -> None:
    table = make(memory(), key=["id"])
    table.update({"price": "cast(v * 1.25 as decimal(10, 2))", "share": "v / 4", "note": None, "v": "cast(v as int)"})
    assert str(values(table, "price")[3]) == "3.75" and values(table, "share")[3] == 0.75
    table.update({"price": "price * 2"}, where="id = 3")
    assert str(values(table, "price")[3]) == "7.50"
    with pytest.raises(InvalidBatch, match="does not cast without loss"):
        table.update({"price": "price * 1.333"}, where="id = 3")
    table.update({"v": "try_cast('x' as bigint)"}, where="id = 3")
    assert values(table)[3] is None
    with pytest.raises(InvalidInput, match="fails on a row"):
        table.update({"v": "cast(city as bigint)"})


def test_names_of_columns_mean_what_they_say() -> None:
    lake = objcat.Lake(memory())
    place = pa.struct([pa.field("x", pa.int64())])
    schema = pa.schema(
        [("id", pa.int64()), ("a.b", pa.int64()), ("V", pa.int64()), ("w", pa.int64()), ("place", place), ("select", pa.int64())]
    )
    table = lake.create_table("odd", schema, key=["id"])
    table.upsert(pa.Table.from_pylist([{"id": 1, "a.b": 2, "V": 3, "w": 4, "place": {"x": 5}, "select": 6}], schema))
    table.update({"a.b": "v + target.W + place.x + `select` + target.`a.b`", "W": "V"})
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "a.b": 20, "V": 3, "w": 3, "place": {"x": 5}, "select": 6}]
    merged = table.merge(pa.table({"ID2": [1], "a.b": [7]}), on="s.id2 = t.id", source_alias="s", target_alias="t")
    assert counts(merged.when_matched_update({"V": "s.`a.b` + t.`a.b` + t.place.x"}).execute()) == (0, 1, 0)
    assert table.scan(columns=["V"]).to_arrow()["V"].to_pylist() == [32]


# ---- merge


@pytest.mark.parametrize("settings", TABLES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_every_clause_at_once(kind: TableType, settings: dict[str, Any]) -> None:
    table = make(memory(), table_type=kind, **settings)
    source = [{"id": i, "city": "abc"[i % 3], "amount": i * 100, "op": "d" if i % 5 == 0 else "u"} for i in range(10, 30)]
    result = (
        table.merge(source)
        .when_matched_delete(where="source.op = 'd'")
        .when_matched_update({"v": "target.v + source.amount", "note": "'both'"}, where="source.amount > 1200")
        .when_not_matched_insert({"id": "source.id", "city": "source.city", "v": "amount", "at": 9}, where="op <> 'd'")
        .when_not_matched_by_source_delete(where="target.v < 3")
        .when_not_matched_by_source_update({"note": "'alone'"}, where="v < 6")
        .execute()
    )
    expected = {i: i for i in range(20)}
    notes: dict[int, str | None] = dict.fromkeys(range(20))
    for i in (10, 15, 0, 1, 2):
        del expected[i], notes[i]
    updated = [i for i in range(13, 20) if i != 15]
    expected |= {i: 101 * i for i in updated}
    inserted = [i for i in range(20, 30) if i % 5]
    expected |= {i: 100 * i for i in inserted}
    notes |= dict.fromkeys(inserted) | dict.fromkeys(updated, "both") | dict.fromkeys((3, 4, 5), "alone")
    assert values(table) == expected and values(table, "note") == notes
    assert counts(result) == (len(inserted), len(updated) + 3, 5)
    assert result is not None and result.slot == 2 and table.refresh().slot == 2
    table.maintenance.compact()
    assert values(table) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_all_columns_of_the_source(kind: TableType) -> None:
    table = make(memory(), table_type=kind, key=["id"])
    source = pa.table({"id": pa.array([1, 50], pa.int32()), "city": ["q", "r"], "v": [-1, -2], "at": [6, 6], "other": [0, 0]})
    assert counts(table.merge(source).when_matched_update().when_not_matched_insert().execute()) == (1, 1, 0)
    assert values(table)[1] == -1 and values(table)[50] == -2 and values(table, "city")[1] == "q"


def test_the_first_clause_that_takes_a_row_counts() -> None:
    table = make(memory(), key=["id"])
    merge = table.merge([{"id": 1}, {"id": 2}]).when_matched_update({"v": "-1"}, where="source.id = 1").when_matched_update({"v": -2})
    assert counts(merge.when_matched_delete().execute()) == (0, 2, 0)
    assert values(table)[1] == -1 and values(table)[2] == -2


@pytest.mark.parametrize("kind", KINDS)
def test_two_rows_of_the_source_for_one_of_the_table(kind: TableType) -> None:
    table = make(memory(), table_type=kind, key=["id"])
    twice = [{"id": 7, "v": 1}, {"id": 7, "v": 2}]
    with pytest.raises(InvalidBatch, match=r"one row \(id=7\)"):
        table.merge(twice).when_matched_update({"v": "source.v"}).execute()
    new = [{"id": 77, "city": "a", "at": 1}] * 2
    with pytest.raises(InvalidBatch, match=r"one row \(id=77\)"):
        table.merge(new).when_not_matched_insert().execute()
    assert table.refresh().slot == 1
    # A condition may leave one of them.
    table.merge(twice).when_matched_update({"v": "source.v"}, where="source.v > 1").execute()
    assert values(table)[7] == 2
    ordered = make(memory(), table_type=kind, key=["id"], ordering="at")
    late = [{"id": 7, "v": 1, "at": 8}, {"id": 7, "v": 2, "at": 7}, {"id": 8, "v": 3, "at": 4}]
    merge = ordered.merge(late).when_matched_update({"v": "source.v", "at": "source.at"})
    assert counts(merge.execute()) == (0, 1, 0)
    assert values(ordered)[7] == 1 and values(ordered)[8] == 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_delete_by_a_merge_keeps_older_rows_out(kind: TableType) -> None:
    table = make(memory(), table_type=kind, key=["id"], ordering="at")
    table.merge([{"id": 7, "at": 9}]).when_matched_delete().execute()
    table.upsert(pa.Table.from_pylist([row(7, at=8)], SCHEMA))
    assert 7 not in values(table)
    table.upsert(pa.Table.from_pylist([row(7, at=10)], SCHEMA))
    assert 7 in values(table)


def test_what_a_merge_refuses() -> None:
    table = make(memory(), key=["id"], partition_by=["city"], key_scope="partition")
    rows = [{"id": 1, "city": "b", "v": 1, "at": 1}]

    def refused(merge: Any, match: str, error: type[Exception] = InvalidInput) -> None:
        with pytest.raises(error, match=match):
            merge.execute()

    refused(table.merge(rows), "no clause")
    refused(table.merge([{"id": 1}]).when_matched_delete(), "lacks the column 'city'")
    refused(table.merge(rows).when_matched_update({"v": "v"}), "both sides have", InvalidPredicate)
    refused(table.merge(rows).when_matched_update({"id": "source.v"}), "key column")
    refused(table.merge(rows).when_not_matched_insert({"id": "source.v", "city": "source.city"}), "has to set the key column 'id'")
    refused(table.merge(rows).when_not_matched_insert({"id": "target.id"}), "no row of the target", InvalidPredicate)
    refused(table.merge(rows).when_not_matched_by_source_delete(where="source.v = 1"), "no row of the source", InvalidPredicate)
    refused(table.merge(rows).when_matched_update({"city": "'z'"}), "another partition")
    said = r"holds 'source.v > target.id', but rows are matched by the key"
    refused(table.merge(rows, on="source.id = target.id and source.v > target.id").when_matched_delete(), said, InvalidPredicate)
    refused(table.merge(rows, on="source.city = target.city").when_matched_delete(), "does not say", InvalidPredicate)
    refused(table.merge(rows, source_alias="x", target_alias="X").when_matched_delete(), "different aliases")
    refused(table.merge([{"id": None, "city": "b"}]).when_matched_delete(), "null", InvalidInput)
    refused(make(memory(), key=None).merge(rows).when_matched_delete(), "no key")
    assert table.refresh().slot == 1
    lake = objcat.Lake(memory())
    times = pa.schema([pa.field("id", pa.int64()), pa.field("t", pa.timestamp("us", "UTC"))])
    late = lake.create_table("late", times, key=["id"], ordering="t", allowed_lateness="1 day")
    refused(late.merge(rows).when_matched_delete(), "lateness")


def test_a_merge_counts_once() -> None:
    table = make(memory(), key=["id"])
    merge = table.merge([{"id": 1}]).when_matched_update({"v": "target.v + 1"})
    once = merge.execute(app=objcat.AppVersion(app="job", version=3))
    again = merge.execute(app=objcat.AppVersion(app="job", version=3))
    assert once is not None and again is not None and again.already_applied and again.slot == once.slot
    assert values(table)[1] == 2
    assert not list(table._context.fileio.list_keys("intents/"))


@pytest.mark.parametrize("settings", TABLES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_columns_that_came(kind: TableType, settings: dict[str, Any]) -> None:
    table = make(memory(), table_type=kind, **settings)
    place = {"city": "b"} if table.spec.partition_columns else {}
    own = {} if table.spec.ordering_column is None else {"at": 5}
    assert counts(table.upsert_partial([{"id": 1, "note": "new", **place, **own}])) == (0, 1, 0)
    assert values(table)[1] == 1 and values(table, "note")[1] == "new" and values(table, "city")[1] == "b"
    result = table.upsert_partial([{"id": 1, "v": -1, "city": "b", "at": 6}, {"id": 70, "v": -2, "city": "b", "at": 6}])
    assert counts(result) == (1, 1, 0) and values(table, "note")[1] == "new" and values(table, "note")[70] is None
    with pytest.raises(InvalidBatch, match="did you mean 'note'"):
        table.upsert_partial([{"id": 1, "city": "b", "notes": "x"}])
    with pytest.raises(InvalidBatch, match="null"):
        table.upsert_partial([{"id": 80, "city": "b", "v": 1}])
    assert table.refresh().slot == 3


@pytest.mark.parametrize("settings", [*TABLES, *WITHOUT_KEY], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_a_soft_delete_keeps_the_row(kind: TableType, settings: dict[str, Any]) -> None:
    lake = objcat.Lake(memory())
    schema = pa.schema([("id", pa.int64()), ("city", pa.string()), ("at", pa.int64()), ("v", pa.int64()), ("gone", pa.bool_())])
    table = lake.create_table("soft", schema, table_type=kind, **settings)
    table.insert(pa.table({"id": [1, 2, 3], "city": ["a", "a", "b"], "at": [5, 5, 5], "v": [1, 2, 3], "gone": [False] * 3}))
    assert counts(table.soft_delete("v = 2")) == (0, 1, 0)
    assert counts(table.soft_delete("v = 3", flag="gone")) == (0, 1, 0)
    empty = 2 if table.spec.has_key else None
    assert values(table) == {1: 1, empty: None, 3: 3} and values(table, "gone") == {1: False, empty: None, 3: True}
    assert values(table, "city") == {1: "a", empty: "a" if table.spec.partition_columns else None, 3: "b"}
    assert table.soft_delete("v = 100") is None
    with pytest.raises(InvalidInput, match="Cast it"):
        table.soft_delete("v = 1", flag="v")


# ---- what others do meanwhile


@pytest.mark.parametrize("settings", TABLES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_two_that_add_lose_nothing(kind: TableType, settings: dict[str, Any]) -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), table_type=kind, **settings)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    source = [{"id": i, "city": "abc"[i % 3], "n": 100} for i in (3, 4, 90)]

    def add(of: objcat.Table) -> objcat.CommitResult | None:
        key = {"id": "source.id", "city": "source.city", "at": 5}
        return of.merge(source).when_matched_update({"v": "v + n"}).when_not_matched_insert({**key, "v": "n"}).execute()

    backend.races = [lambda: add(other)]
    result = add(table)
    assert result is not None and result.attempts == 2 and counts(result) == (0, 3, 0)
    assert [values(table)[i] for i in (3, 4, 90)] == [203, 204, 200]
    backend.races = [lambda: other.update({"v": "v + 1"}, where="id = 3")]
    result = table.update({"v": "v * 2"}, where="id = 3")
    assert result is not None and result.attempts == 2 and values(table)[3] == 408
    backend.races = [lambda: other.update({"v": "v + 1"}, where="id = 5")]
    table.update({"v": "v * 2"}, where="id = 3")
    assert [values(table)[i] for i in (3, 5)] == [816, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_an_upsert_that_comes_first_is_seen(kind: TableType) -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), table_type=kind, key=["id"])
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    backend.races = [lambda: other.upsert(pa.Table.from_pylist([row(3, v=50), row(70, v=1)], SCHEMA))]
    result = table.merge([{"id": 3}, {"id": 70}]).when_matched_update({"v": "v + 1"}).execute()
    assert counts(result) == (0, 2, 0) and values(table)[3] == 51 and values(table)[70] == 2
    backend.races = [other.maintenance.compact]
    assert counts(table.update({"v": "v + 1"}, where="id = 3")) == (0, 1, 0)
    assert values(table)[3] == 52


def test_an_update_without_a_key_beside_an_insert_and_an_update() -> None:
    backend = RacingBackend("race")
    table = make(FileIO(backend, env=FakeEnv(5)), key=None)
    other = objcat.Lake(FileIO(backend, env=FakeEnv(6))).table("t")
    backend.races = [lambda: other.update({"v": "v + 1"}, where="id = 3")]
    result = table.update({"v": "v * 2"}, where="id = 3")
    assert result is not None and result.attempts == 2 and values(table)[3] == 8


# ---- beside a dict

Model = dict[int, tuple[int, int]]
"""By key, value and ordering."""


def said(merge: Any, clauses: list[str], bound: int) -> Any:
    for name in clauses:
        match name:
            case "update":
                merge = merge.when_matched_update(where=f"source.v < {bound}")
            case "delete":
                merge = merge.when_matched_delete(where=f"source.v > {bound}")
            case "insert":
                merge = merge.when_not_matched_insert(where=f"v <= {bound}")
            case "alone":
                merge = merge.when_not_matched_by_source_update({"v": "v + 100"}, where=f"v < {bound}")
            case "gone":
                merge = merge.when_not_matched_by_source_delete(where=f"v > {bound}")
    return merge


def taken_by(clauses: list[str], bound: int, old: tuple[int, int] | None, new: tuple[int, int] | None) -> str | None:
    """The clause that is about a row."""
    fits = {
        "update": old is not None and new is not None and new[0] < bound,
        "delete": old is not None and new is not None and new[0] > bound,
        "insert": old is None and new is not None and new[0] <= bound,
        "alone": new is None and old is not None and old[0] < bound,
        "gone": new is None and old is not None and old[0] > bound,
    }
    return next((name for name in clauses if fits[name]), None)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    table=st.sampled_from(TABLES),
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 15), st.tuples(st.integers(0, 9), st.integers(3, 7)), min_size=1),
            st.lists(st.sampled_from(["update", "delete", "insert", "alone", "gone"]), min_size=1, max_size=4),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_merges_beside_a_dict(kind: TableType, table: dict[str, Any], steps: Any) -> None:
    made = make(memory(), count=8, table_type=kind, **table)
    ordered = "ordering" in table
    model: Model = {i: (i, 5) for i in range(8)}
    ended: dict[int, int] = {}
    for source, clauses, bound in steps:
        rows = [{"id": i, "city": "abc"[i % 3], "v": v, "at": at} for i, (v, at) in source.items()]
        inserted = updated = deleted = 0
        for i in {*model, *source}:
            old: Any = model.get(i)
            new: Any = source.get(i)
            clause = taken_by(clauses, bound, old, new)
            if clause == "update" and (not ordered or new[1] >= old[1]):
                model[i], updated = new, updated + 1
            elif clause == "alone":
                model[i], updated = (old[0] + 100, old[1]), updated + 1
            elif clause in ("delete", "gone"):
                del model[i]
                ended[i], deleted = max(old[1], 0 if new is None else new[1]), deleted + 1
            elif clause == "insert" and (not ordered or new[1] >= ended.get(i, 0)):
                model[i], inserted = new, inserted + 1
        result = said(made.merge(pa.Table.from_pylist(rows)), clauses, bound).execute()
        assert values(made) == {i: v for i, (v, _) in model.items()}
        if result is None:
            assert not inserted + updated + deleted
        elif not ordered or kind == "copy_on_write":
            assert (result.inserted, result.updated, result.deleted) == (inserted, updated, deleted)
