"""Scans in event-time order: ordering values of base files are compared only where a log row may lose against them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.datafile import open_files, parquet, verification
from objcat.datafile.merge import OP_COLUMN
from objcat.datafile.ordering_bounds import are_later, ordering_bounds
from objcat.metadata.ordering import OrderingBounds
from objcat.metadata.schema import schema_from_arrow
from objcat.planning.event_time import UNKNOWN, LogOrder
from objcat.table import verified_files
from objcat.table.verified_files import verified
from objcat.tasks import scan as scan_tasks
from tests.effort import effort, few
from tests.tables.published import until_published

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TYPES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "whole": (pa.int32(), lambda n: n),
    "day": (pa.date32(), lambda n: dt.date(2026, 1, 1) + dt.timedelta(n)),
    "time": (pa.timestamp("us", tz="UTC"), lambda n: EPOCH + dt.timedelta(microseconds=n)),
    "text": (pa.string(), lambda n: f"{n:03d}é" * 30),
    "digits": (pa.decimal128(20, 3), lambda n: Decimal(n) / 1000),
    "real": (pa.float64(), lambda n: n / 4 if n else -0.0),
}
ORDERINGS = [("whole",), ("day", "whole"), ("time",), ("text",), ("digits",), ("real",), ("day",), ("whole", "real"), ("real", "whole")]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int64()),
        *(pa.field(name, data_type) for name, (data_type, _) in TYPES.items()),
    ]
)
OPERATIONS = ["upsert", "upsert", "upsert", "insert", "delete", "compact", "split", "cluster", "barrier"]
changes = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=12)
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), changes), min_size=2, max_size=9)
Model = dict[int, tuple[Any, int | None]]
"""Of each key, the ordering value and the value of the row; None for a delete."""


def values_of(number: int, ordering: Iterable[str], second: int) -> dict[str, Any]:
    """Values of the ordering columns, of which the first ascends with a number."""
    return {name: TYPES[name][1](second if at else number) for at, name in enumerate(ordering)}


@pytest.mark.parametrize("late", ["never", "seldom", "always"])
@pytest.mark.parametrize("ordering", few(ORDERINGS, 2, integration=len(ORDERINGS)), ids="-".join)
@given(steps=steps)
@settings(max_examples=effort(4, with_all=60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scans_are_what_a_model_says(
    monkeypatch: pytest.MonkeyPatch, ordering: tuple[str, ...], late: str, steps: list[tuple[str, list[tuple[int, int, int]]]]
) -> None:
    monkeypatch.setattr(parquet, "BASE_ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(parquet, "LOG_ROW_GROUP_ROWS", 3)
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", SCHEMA, key=["k"], ordering=list(ordering), index=objcat.BucketIndex(2))
    model: Model = {}
    clock = 100
    for operation, batch in steps:
        # Some batches have the same values as the one before.
        clock += batch[0][2] % 2
        rows: list[dict[str, Any]] = []
        for k, second, back in batch:
            number = clock - {"never": 0, "seldom": 2 * (back == 0), "always": back}[late]
            rows.append({"k": k, "v": clock * 100 + len(rows), **values_of(number, ordering, second)})
        if operation == "compact":
            table.maintenance.compact()
        elif operation == "split":
            table.maintenance.split_buckets(count=4)
        elif operation == "cluster":
            table.maintenance.cluster(by=["v"])
        elif operation == "barrier":
            table.delete([{"k": row["k"]} for row in rows])
            for row in rows:
                model.pop(row["k"], None)
        else:
            getattr(table, operation)(rows)
            for row in rows:
                _apply(model, row, ordering, is_delete=operation == "delete")
        expected = {k: v for k, (_, v) in model.items() if v is not None}
        for columns in (["k", "v"], ["v", "k", *ordering]):
            found = table.scan(columns=columns).to_arrow().to_pylist()
            assert {row["k"]: row["v"] for row in found} == expected
            assert len(found) == len(expected)
        some = [v for v in expected.values() if v % 2]
        where = f"v in ({', '.join(map(str, [*some, -1]))})"
        assert sorted(row["v"] for row in table.scan(where=where, columns=["v"]).to_arrow().to_pylist()) == sorted(some)


def _apply(model: Model, row: dict[str, Any], ordering: tuple[str, ...], *, is_delete: bool) -> None:
    mine = tuple(row[name].encode() if name == "text" else row[name] for name in ordering)
    there = model.get(row["k"])
    if there is None or mine >= there[0]:
        model[row["k"]] = (mine, None if is_delete else row["v"])


class Counted:
    """Counts the file groups of which keys alone decided, and the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settled = self.compared = 0
        decide = scan_tasks._GroupReader._are_settled

        def counted(*arguments: Any) -> bool:
            settled = decide(*arguments)
            self.settled += settled
            self.compared += not settled
            return settled

        monkeypatch.setattr(scan_tasks._GroupReader, "_are_settled", counted)


def of(clock: int, keys: Iterable[int], **more: Any) -> list[dict[str, Any]]:
    return [{"k": k, "v": clock, "whole": clock, **more} for k in keys]


def created(**options: Any) -> objcat.Table:
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    return lake.create_table("t", SCHEMA, key=["k"], **{"ordering": "whole", "index": objcat.BucketIndex(1), **options})


def test_keys_alone_decide_where_changes_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    table = created()
    table.insert(of(10, range(100)))
    table.upsert(of(10, range(5)))
    table.delete(of(11, [7]))
    table.delete([{"k": 8}])
    table.upsert(of(12, [8, 200]))
    rows = table.scan(columns=["k", "v"]).to_arrow()
    assert (counted.settled, counted.compared) == (1, 0)
    assert rows.num_rows == 100
    table.maintenance.compact()
    table.upsert(of(12, range(3)))
    # The delete of 11 is retained, below the greatest value of the base file.
    table.scan(columns=["k", "v"]).to_arrow()
    assert (counted.settled, counted.compared) == (2, 0)
    table.upsert(of(11, [9]))
    late = table.scan(columns=["k", "v"]).to_arrow()
    assert (counted.settled, counted.compared) == (2, 1)
    assert {row["k"]: row["v"] for row in late.to_pylist()}[9] == 11


@pytest.mark.parametrize(
    "options",
    [{"ordering": "real"}, {"properties": {"statistics.whole": "none"}}],
    ids=["numbers-with-nan", "without-statistics"],
)
def test_what_bounds_do_not_tell_is_compared(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    counted = Counted(monkeypatch)
    table = created(**options)
    table.insert(of(10, range(10), real=1.0))
    table.upsert(of(11, range(5), real=2.0))
    assert table.scan().to_arrow().num_rows == 10
    assert (counted.settled, counted.compared) == (0, 1)


def test_ordering_values_of_base_files_are_read_where_one_may_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "WHOLE_BYTES_MAX", 1024)
    lake = objcat.Lake(FileIO(MemoryBackend("lake")))
    table = lake.create_table("t", SCHEMA, key=["k"], ordering="digits", index=objcat.BucketIndex(1))
    count = 100_000
    spread = [Decimal(n * 7919 % 999_983) / 1000 for n in range(count)]
    table.insert(pa.table({"k": range(count), "v": [0] * count, "digits": pa.array(spread, pa.decimal128(20, 3))}, schema=_with("digits")))
    table.upsert([{"k": 3, "v": 1, "digits": Decimal(1000)}])

    def read() -> int:
        until_published(table)
        before = table._context.fileio.metrics.snapshot()
        assert table.scan(columns=["v"]).count() == count
        table.scan(columns=["v"]).to_arrow()
        return (table._context.fileio.metrics.snapshot() - before).bytes_read

    in_order = read()
    table.upsert([{"k": 4, "v": 1, "digits": Decimal(0)}])
    # As many different values of 20 bits.
    assert read() - in_order > 2 * count


def _with(*names: str) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in ("k", "v", *names)])


@pytest.mark.parametrize("name", TYPES)
@given(below=st.lists(st.integers(0, 20) | st.none(), max_size=8), above=st.lists(st.integers(0, 25), max_size=5), is_barrier=st.booleans())
@settings(max_examples=effort(40, with_all=400), deadline=None)
def test_bounds_of_footers_never_tell_too_much(name: str, below: list[int | None], above: list[int], is_barrier: bool) -> None:
    data_type, value_of = TYPES[name]
    columns = list(schema_from_arrow(pa.schema([("id", pa.int64()), (name, data_type)])).columns)[1:]
    values = [None if n is None else value_of(n) for n in below]
    field = pa.field(name, data_type, metadata={"PARQUET:field_id": str(columns[0].id)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(values, data_type)], schema=pa.schema([field])), sink, row_group_size=3, store_schema=False)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    bounds = ordering_bounds(file.metadata, file.schema_arrow, columns)
    later = [value_of(n) for n in above] + ([None] if is_barrier else [])
    ops = pa.array([0] * len(above) + [1] * is_barrier, pa.int8())
    found = bounds is not None and are_later(pa.table({name: pa.array(later, data_type), OP_COLUMN: ops}), columns, bounds)
    known = [n for n in below if n is not None]
    right = len(known) == len(below) and all(n >= max(known, default=0) for n in above)
    assert found == (right and (name != "real" or not known))


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0])
def test_bounds_of_floating_point_numbers_are_not_known(value: float) -> None:
    columns = list(schema_from_arrow(pa.schema([("real", pa.float64())])).columns)
    field = pa.field("real", pa.float64(), metadata={"PARQUET:field_id": str(columns[0].id)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([[value, 1.0]], schema=pa.schema([field])), sink)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    assert ordering_bounds(file.metadata, file.schema_arrow, columns) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "follow"),
    [
        ((5, 1), (5, 1), True),
        ((5, 0), (5, 1), False),
        ((6, 0), (5, 9), True),
        ((5,), (5, 1), False),
        ((6,), (5, 1), True),
        ((5, 1), (5,), False),
        (None, (5, 1), True),
        ((5, 1), None, True),
    ],
)
def test_bounds_compare_as_tuples(mine: tuple[int, ...] | None, theirs: tuple[int, ...] | None, follow: bool) -> None:
    def bounds(values: tuple[int, ...] | None) -> OrderingBounds:
        return OrderingBounds(values, values, is_whole=values is None or len(values) == 2, has_nulls=False)

    assert bounds(mine).follow(bounds(theirs)) is follow


def test_the_second_column_decides_where_the_first_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    table = created(ordering=["whole", "day"])
    day = TYPES["day"][1]
    table.insert([{"k": 1, "v": 1, "whole": 5, "day": day(3)}, {"k": 2, "v": 2, "whole": 4, "day": day(9)}])
    table.upsert([{"k": 1, "v": 10, "whole": 5, "day": day(2)}])
    assert {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == {1: 1, 2: 2}
    assert (counted.settled, counted.compared) == (0, 1)
    table.upsert([{"k": 1, "v": 11, "whole": 5, "day": day(9)}, {"k": 2, "v": 12, "whole": 4, "day": day(10)}])
    assert {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == {1: 11, 2: 12}
    table.maintenance.compact()
    table.upsert([{"k": 1, "v": 13, "whole": 5, "day": day(10)}, {"k": 2, "v": 14, "whole": 6, "day": day(0)}])
    assert {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == {1: 13, 2: 14}
    assert (counted.settled, counted.compared) == (1, 2)


@pytest.mark.parametrize(
    ("wider", "expected"),
    [
        ("decimal(12,2)", UNKNOWN),
        ("double", UNKNOWN),
        ("bigint", LogOrder(limit=OrderingBounds((10,), (10,), is_whole=True, has_nulls=False))),
    ],
)
def test_what_a_handle_knows_of_files_ends_with_the_type_of_the_column(
    monkeypatch: pytest.MonkeyPatch, wider: str, expected: LogOrder
) -> None:
    table = created(ordering=["whole"], index=objcat.BucketIndex(1))
    monkeypatch.setattr(verified_files, "stale_rows", lambda *_: None)

    def order() -> LogOrder:
        """What Spark plans by."""
        return verified(table._context.fileio, table._context.manifests, table.scan().plan)

    table.insert([{"k": 1, "v": 1, "whole": 10}])
    table.upsert([{"k": 2, "v": 2, "whole": 11}])
    assert order().is_commit_order
    table.alter.widen_column("whole", wider)
    # Late. As a decimal its bound is 500 hundredths.
    table.upsert([{"k": 1, "v": 3, "whole": 5}])
    with monkeypatch.context() as patch:
        # The base file is beyond those that are read again.
        patch.setattr(verification, "FOOTERS_MAX", 1)
        assert order() == UNKNOWN
    assert order() == expected


@pytest.mark.parametrize("ordering", [None, "whole"])
def test_bounds_of_ordering_values_cost_no_request_and_no_byte(ordering: str | None) -> None:
    table = created(ordering=ordering)
    table.insert(of(10, range(100)))
    table.upsert(of(11, range(5)))
    scan = table.scan()
    (group,) = scan.plan.groups
    assert group.base is not None
    size = group.base.bytes + sum(part.object.bytes for part in group.logs)
    fileio, manifests = table._context.fileio, table._context.manifests

    def cost(read: Callable[[], Any]) -> tuple[dict[str, int], int]:
        until_published(table)
        before = fileio.metrics.snapshot()
        read()
        sent = fileio.metrics.snapshot() - before
        return {kind: count for kind, count in sent.requests.items() if count}, sent.bytes_read

    # Files that are so small are read whole.
    assert cost(lambda: verified(fileio, manifests, scan.plan)) == ({"get": 2}, size)
    assert cost(lambda: verified(fileio, manifests, scan.plan)) == ({}, 0)
    assert cost(scan.to_arrow) == ({"get": 2}, size)
    assert verified(fileio, manifests, scan.plan).is_commit_order is (ordering is not None)
