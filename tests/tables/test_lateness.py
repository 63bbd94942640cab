"""The lateness horizon: what came too late counts for nothing, whoever replays it and whenever; and deletes are not remembered for ever."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.datafile.bucket_hash import bucket_of
from objcat.errors import InvalidInput
from tests.effort import seeds

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEYS = 8
_names = itertools.count()


@dataclass(frozen=True)
class Seen:
    """The newest known of a key. value: None for a delete."""

    order: int
    value: int | None


class Late:
    """A table with a horizon of `days` beside a dict that never forgets a delete. Ordering values are milliseconds, or days."""

    def __init__(self, *, days: int = 7, ordering: pa.DataType | None = None, buckets: int = 2) -> None:
        self.env = FakeEnv(4, now_ms=1_790_000_000_000)
        self.backend = MemoryBackend(f"late-{next(_names)}")
        self.type = ordering or pa.timestamp("us", tz="UTC")
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), pa.field("o", self.type, nullable=False)])
        lake = objcat.Lake(FileIO(self.backend, env=self.env))
        self.table = lake.create_table(
            "t", schema, key=["id"], ordering="o", allowed_lateness=f"{days} days", index=objcat.BucketIndex(buckets)
        )
        self.horizon_ms = days * DAY_MS
        self.buckets = buckets
        self.live: set[int] = set()
        self.values = itertools.count(1)
        self.slots: list[dict[int, Seen]] = [{}]

    def pass_days(self, days: float) -> None:
        self.env.advance(days * 86400)

    def order(self, days_ago: float) -> int:
        """An ordering value as milliseconds; of a date, its first moment."""
        now = self.env.now_ms() - int(days_ago * DAY_MS)
        return now // DAY_MS * DAY_MS if self.type == pa.date32() else now

    def write(self, how: str, rows: list[tuple[int, int | None]]) -> Any:
        """rows: key and order, the order None for a delete without one."""
        valued = [(key, None if how == "delete" else next(self.values), order) for key, order in rows]
        columns: dict[str, Any] = {"id": pa.array([key for key, _, _ in valued], pa.int64())}
        if how != "delete":
            columns["v"] = pa.array([value for _, value, _ in valued], pa.int64())
        if all(order is not None for _, _, order in valued):
            columns["o"] = self._orders([order for _, _, order in valued if order is not None])
        done = getattr(self.table, how)(pa.table(columns))
        self.replay(how, valued, done.committed_at_ms)
        return done

    def _orders(self, orders: list[int]) -> pa.Array:
        if self.type == pa.date32():
            return pa.array([order // DAY_MS for order in orders], pa.int32()).cast(self.type)
        return pa.array([order * 1000 for order in orders], pa.int64()).cast(self.type)

    def replay(self, how: str, rows: list[tuple[int, int | None, int | None]], committed_at_ms: int) -> None:
        now = dict(self.slots[-1])
        began = set(self.live)
        for key, value, order in rows:
            bucket = int(bucket_of([pa.array([key])], self.buckets)[0])
            self.live.add(bucket)
            exempt = how == "insert" and bucket not in began
            if order is None:
                now.pop(key, None)
            elif (exempt or order >= committed_at_ms - self.horizon_ms) and (key not in now or order >= now[key].order):
                now[key] = Seen(order, value)
        self.slots.append(now)

    def compact(self) -> None:
        if self.table.maintenance.compact() is not None:
            self.slots.append(self.slots[-1])

    def expected(self, slot: int = -1) -> dict[int, int]:
        return {key: seen.value for key, seen in self.slots[slot].items() if seen.value is not None}

    def read(self, slot: int | None = None) -> dict[int, int]:
        rows = self.table.scan(as_of=slot, columns=["id", "v"]).to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
        return {row["id"]: row["v"] for row in rows}

    def tombstones(self) -> int:
        """Deletes that are kept above base files."""
        groups = self.table.refresh().file_groups(self.table._context.manifests)
        return sum(rows.rows for group in groups for rows in group.logs)


@pytest.mark.parametrize("ordering", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
@pytest.mark.parametrize("seed", seeds(2, with_all=4))
def test_the_rows_are_those_of_a_dict_however_often_and_whenever_it_is_compacted(ordering: pa.DataType, seed: int) -> None:
    chance = random.Random(seed)
    late = Late(days=3, ordering=ordering)
    for _ in range(45):
        late.pass_days(chance.choice((0, 0.01, 0.5, 1, 2)))
        rows: list[tuple[int, int | None]] = [
            (key, late.order(chance.choice((0, 0.5, 1, 2, 2.9, 3.1, 4, 6)))) for key in chance.sample(range(KEYS), chance.randint(1, 3))
        ]
        match chance.choices(("upsert", "insert", "delete", "barrier", "compact"), (10, 2, 6, 1, 5))[0]:
            case "compact":
                late.compact()
            case "barrier":
                late.write("delete", [(key, None) for key, _ in rows])
            case how:
                late.write(how, rows)
        assert late.read() == late.expected(), f"seed {seed}, slot {len(late.slots) - 1}"
    for slot in range(len(late.slots)):
        assert late.read(slot) == late.expected(slot), f"seed {seed}, slot {slot}"
    for since in range(0, len(late.slots), 7):
        before, now = late.expected(since), late.expected()
        found = {row["id"]: row["v"] for row in late.table.incremental(since=since).to_arrow().to_pylist()}
        assert found == {key: value for key, value in now.items() if before.get(key) != value}
        told = late.table.changes(since=since, net=True).to_arrow().to_pylist()
        assert {row["id"]: row["v"] for row in told if row["_change_type"] in ("insert", "update_after")} == found
        assert {row["id"] for row in told if row["_change_type"] == "delete"} == before.keys() - now.keys()


def test_a_delete_is_forgotten_once_nothing_that_it_keeps_out_could_count() -> None:
    late = Late(days=7, buckets=1)
    late.write("upsert", [(1, late.order(0)), (2, late.order(0))])
    deleted = late.order(0)
    late.write("delete", [(1, deleted)])
    late.compact()
    assert late.tombstones() == 1
    late.pass_days(6.9)
    late.write("upsert", [(1, deleted - 1)])
    assert late.read() == late.expected() and 1 not in late.read(), "late by less than the horizon: the delete keeps it out"
    late.compact()
    assert late.tombstones() == 1
    late.pass_days(0.2)
    late.write("upsert", [(3, late.order(0))])
    late.compact()
    assert late.tombstones() == 0
    late.write("upsert", [(1, deleted - 1)])
    assert 1 not in late.read(), "late by more: it counts for nothing"
    late.compact()
    assert late.read() == late.expected()


def test_late_deletes_count_for_nothing_too_and_barriers_are_never_late() -> None:
    late = Late(days=1, buckets=1)
    late.write("insert", [(1, late.order(30)), (2, late.order(30))])
    late.write("delete", [(1, late.order(2))])
    assert set(late.read()) == {1, 2}
    late.write("delete", [(1, None)])
    assert set(late.read()) == {2}
    assert late.read() == late.expected()


@pytest.mark.parametrize("ordering", [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()], ids=str)
def test_a_delete_by_a_filter_ends_rows_that_are_older_than_the_horizon_by_now(ordering: pa.DataType) -> None:
    late = Late(days=7, ordering=ordering)
    late.write("upsert", [(key, late.order(6 - key)) for key in range(6)])
    late.pass_days(3)
    assert late.read().keys() == set(range(6))
    done = late.table.delete("v > 0")
    assert done is not None and done.deleted == 6
    assert late.read() == {}
    assert late.table.changes(since=1).to_arrow().column("_change_type").to_pylist() == ["delete"] * 6
    before = late.table.snapshot.slot
    late.table.upsert(pa.table({"id": [5], "v": [9], "o": late._orders([late.order(5.5)])}))
    assert late.read() == {}, "older than the row that was deleted, and not late: the delete keeps it out"
    assert late.table.incremental(since=before).to_arrow().num_rows == 0
    assert late.table.maintenance.compact() is not None
    assert late.read() == {} and late.table.scan(as_of=1).count() == 6
    late.pass_days(10)
    late.table.upsert(pa.table({"id": [5], "v": [9], "o": late._orders([late.order(1)])}))
    assert late.read() == {5: 9}


def test_an_erasure_reaches_rows_that_are_older_than_the_horizon() -> None:
    late = Late(days=7)
    late.write("insert", [(key, late.order(300)) for key in range(3)])
    certificate = late.table.erase("id < 2")
    assert (certificate.deleted, certificate.found, set(late.read())) == (2, 0, {2})


def test_a_first_load_keeps_its_history_and_later_writes_are_measured() -> None:
    late = Late(days=1, buckets=1)
    late.write("insert", [(key, late.order(400 + key)) for key in range(5)])
    late.write("upsert", [(1, late.order(2)), (7, late.order(2))])
    late.write("insert", [(8, late.order(2)), (9, late.order(0.5))])
    assert set(late.read()) == {0, 1, 2, 3, 4, 9}
    assert late.read() == late.expected()
    late.compact()
    late.pass_days(100)
    late.write("upsert", [(1, late.order(0))])
    assert late.read() == late.expected(), "rows grow old without being late"


def test_checkpoints_remember_when_log_rows_were_committed() -> None:
    late = Late(days=1, buckets=1)
    late.write("upsert", [(1, late.order(0)), (2, late.order(5))])
    for _ in range(70):
        late.pass_days(0.1)
        late.write("upsert", [(3, late.order(0))])
    opened = objcat.Lake(FileIO(late.backend, env=FakeEnv(5, now_ms=late.env.now_ms()))).table("t")
    assert opened._context.latest.view.checkpoint > 2
    assert {row["id"] for row in opened.scan().to_arrow().to_pylist()} == {1, 3} == set(late.expected())


def create(**options: Any) -> objcat.Table:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))]
    )
    return objcat.Lake(FileIO(MemoryBackend(f"late-{next(_names)}"))).create_table(
        "t", schema, **{"key": ["id"], "ordering": "at", **options}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allowed_lateness": "7"}, "allowed_lateness='7' is not a time span"),
        ({"allowed_lateness": "7 fortnights"}, "is not a time span"),
        ({"allowed_lateness": 7}, "is not a time span"),
        ({"allowed_lateness": dt.timedelta(0)}, "is not a time span"),
        ({"allowed_lateness": "7 days", "ordering": None}, "has none"),
        ({"allowed_lateness": "7 days", "ordering": "n"}, "'n' is bigint"),
        ({"allowed_lateness": "7 days", "table_type": "copy_on_write"}, "merge_on_read"),
        ({"allowed_lateness": "7 days", "key": None, "ordering": None}, "has none"),
    ],
)
def test_what_is_no_horizon_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        create(**options)


@pytest.mark.parametrize(
    ("lateness", "ms"),
    [("7 days", 7 * DAY_MS), ("1 week", 7 * DAY_MS), ("1.5 Hours", 5_400_000), ("30seconds", 30_000), (dt.timedelta(minutes=2), 120_000)],
)
def test_spans_are_text_or_timedeltas(lateness: Any, ms: int) -> None:
    assert create(allowed_lateness=lateness).spec.lateness_ms == ms


def test_a_table_without_a_horizon_remembers_deletes_for_ever() -> None:
    table = create()
    at = dt.datetime(2001, 1, 1, tzinfo=dt.UTC)
    table.upsert([{"id": 1, "n": 1, "at": at}])
    table.delete([{"id": 1, "at": at}])
    table.maintenance.compact()
    table.upsert([{"id": 1, "n": 2, "at": at - dt.timedelta(1)}])
    assert table.scan().to_arrow().num_rows == 0
