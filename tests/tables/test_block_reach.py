"""Blocks with filters beside others: bounds of files decide whether others can have changed what a block has read, and never wrongly."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import objcat
from fileio.contract import Buffer, ByteRange, GetResult, NotModified, PutMode, PutOutcome, Version
from fileio.store import FileIO
from objcat.planning.scan import parse_filter
from objcat.write.block_writer import BlockWriter
from tests.effort import effort, few
from tests.tables.racing import RacingBackend
from tests.tables.test_block_calls import DAYS, KINDS, SCHEMA, Row

KEYS = 24
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Call = tuple[str, Any]


class CountingBackend(RacingBackend):
    """It counts the data files that the one who is raced writes and reads."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.counts: Counter[str] = Counter()

    def put(self, key: str, data: Buffer, mode: PutMode, metadata: Mapping[str, str]) -> PutOutcome:
        self._count("put", key)
        return super().put(key, data, mode, metadata)

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        self._count("get", key)
        return super().get(key, byte_range, if_none_match)

    def _count(self, kind: str, key: str) -> None:
        if not self._running and "/data/" in key:
            self.counts[kind] += 1


def rows(*keys: int, value: int = 0, day: str | None = None, text: str | None = None) -> list[Row]:
    return [{"id": key, "day": day or DAYS[key % 3], "at": START, "value": value, "text": text} for key in keys]


def create(fileio: FileIO, kind: str) -> objcat.Lake:
    lake = objcat.Lake(fileio)
    lake.create_table("t", SCHEMA, shared_log="shop", **{"key": ["id"], **KINDS[kind]}).insert(
        [row for key in range(KEYS) for row in rows(key, value=key % 5)]
    )
    return lake


def found(lake: objcat.Lake) -> list[Row]:
    return sorted(lake.table("t").scan().to_arrow().to_pylist(), key=repr)


def run_block(lake: objcat.Lake, *calls: Call) -> objcat.CommitResult | None:
    with lake.transaction() as tx:
        for call in calls:
            do(tx["t"], call)
    return tx.result


def do(table: Any, call: Call) -> None:
    name, given = call
    if name == "replace_range":
        table.replace_range(given[0], where=given[1])
    elif name == "delete_where" and isinstance(table, objcat.Table):
        table.delete(given)
    elif name == "compact":
        table.maintenance.compact()
    else:
        getattr(table, name)(given)


def raced(kind: str, calls: list[Call], other: Callable[[objcat.Lake], object]) -> tuple[objcat.CommitResult, list[Row], Counter[str]]:
    """A block during whose commit somebody else commits: the result, the rows, and its requests for data files."""
    backend = CountingBackend("reach")
    lake = create(FileIO(backend), kind)
    backend.races = [lambda: other(objcat.Lake(FileIO(backend)))]
    backend.counts.clear()
    result = run_block(lake, *calls)
    assert result is not None and not backend.races and result.slots_lost == 1
    counts = Counter(backend.counts)
    return result, found(lake), counts


def undisturbed(kind: str, calls: list[Call], *earlier: Callable[[objcat.Lake], object]) -> tuple[list[Row], Counter[str]]:
    """The same block after the others."""
    backend = CountingBackend("reach")
    lake = create(FileIO(backend), kind)
    for other in earlier:
        other(objcat.Lake(FileIO(backend)))
    backend.counts.clear()
    run_block(lake, *calls)
    counts = Counter(backend.counts)
    return found(lake), counts


# ---- the budget


DISJOINT: dict[str, tuple[str, list[Call], list[Call]]] = {
    "partitions": (
        "partitioned",
        [("replace_range", (rows(0, 3, value=7, day="mo"), "day = 'mo'"))],
        [("replace_range", (rows(1, 4, value=8, day="tu"), "day = 'tu'"))],
    ),
    "a range of partitions": (
        "partitioned",
        [("delete_where", "day >= 'ma' AND day < 'n'")],
        [("delete_where", "day > 't'"), ("upsert", rows(1, value=8, day="tu"))],
    ),
    "partitions, copy-on-write": (
        "copy-on-write, keys that move",
        [("delete_where", "day = 'mo' AND value < 3")],
        [("delete_where", "day = 'tu' AND value < 3")],
    ),
    "key ranges": (
        "merge-on-read",
        [("replace_range", (rows(2, 3, 4, value=7), "id BETWEEN 0 AND 9"))],
        [("replace_range", (rows(12, 13, 14, value=8), "id BETWEEN 10 AND 19")), ("upsert", rows(100, 101))],
    ),
    "key ranges by event time": (
        "by event time",
        [("replace_range", (rows(2, 3, 4, value=7), "id BETWEEN 0 AND 9"))],
        [("replace_range", (rows(12, 13, 14, value=8), "id BETWEEN 10 AND 19"))],
    ),
    "key ranges and other calls": (
        "merge-on-read",
        [("upsert", rows(50, value=1)), ("delete_where", "id < 10 AND value > 1"), ("upsert", rows(2, value=9))],
        [("delete_where", "id >= 10 AND id < 20"), ("upsert", rows(60))],
    ),
}


@pytest.mark.parametrize("case", DISJOINT)
def test_two_blocks_that_are_apart_commit_without_computing_anything_again(case: str) -> None:
    kind, mine, theirs = DISJOINT[case]
    result, after, counts = raced(kind, mine, lambda lake: run_block(lake, *theirs))
    expected, budget = undisturbed(kind, mine, lambda lake: run_block(lake, *theirs))
    assert (result.attempts, after) == (1, expected)
    alone = undisturbed(kind, mine)[1]
    assert counts == alone, f"no data file is read or written for the other block; after it, these are {budget}"


MEETING: dict[str, tuple[str, list[Call], list[Call]]] = {
    "a new row of the range": ("merge-on-read", [("delete_where", "id > 20")], [("upsert", rows(30))]),
    "a new row of the range in a table without a key": ("without a key", [("delete_where", "id > 20")], [("insert", rows(30))]),
    "a row whose value now passes": ("record index", [("delete_where", "value = 4")], [("upsert", rows(3, value=4))]),
    "a row whose value passes no more": ("merge-on-read", [("delete_where", "value = 3")], [("upsert", rows(3, value=4))]),
    "a delete": ("merge-on-read", [("replace_range", (rows(3), "id = 3 OR value = 4"))], [("delete", [{"id": 4}])]),
    "a null": ("merge-on-read", [("delete_where", "text IS NULL AND id < 5")], [("upsert", rows(2, text=None, value=7))]),
    "a row that moves into the partition": ("keys that move", [("delete_where", "day = 'mo'")], [("upsert", rows(1, day="mo"))]),
    # The rest of the row would be inserted, now that no newer one is there.
    "the newer row of a partial one": (
        "record index, by event time",
        [("upsert_partial", [{"id": 3, "at": START - dt.timedelta(hours=1), "day": "mo"}]), ("upsert", rows(10, value=1))],
        [("delete", [{"id": 3}])],
    ),
    "a row in the middle of two others": ("merge-on-read", [("delete_where", "id = 5 OR id = 7")], [("upsert", rows(4, 7, 9, value=8))]),
}


@pytest.mark.parametrize("case", MEETING)
def test_a_block_that_met_others_is_computed_again(case: str) -> None:
    kind, mine, theirs = MEETING[case]
    result, after, _ = raced(kind, mine, lambda lake: run_block(lake, *theirs))
    assert (result.attempts, after) == (2, undisturbed(kind, mine, lambda lake: run_block(lake, *theirs))[0])


def test_a_stream_of_writers_elsewhere_does_not_hold_a_block_up() -> None:
    """Each round only reads the slots that were lost; the limit of repeated work is not touched."""
    backend = CountingBackend("reach")
    lake = create(FileIO(backend), "merge-on-read")
    other = objcat.Lake(FileIO(backend)).table("t")
    backend.races = [lambda key=key: other.upsert(rows(100 + key)) for key in range(150)]  # type: ignore[misc]
    before = backend.counts["put"]
    result = run_block(lake, ("replace_range", (rows(1, value=9), "id < 20")))
    assert result is not None and (result.attempts, result.slots_lost) == (1, 150)
    assert backend.counts["put"] - before == result.files
    assert {row["id"]: row["value"] for row in found(lake) if row["id"] < 20} == {1: 9}


# ---- soundness


class Drawn:
    """Calls on a table, drawn at random. Filters look at keys, partitions and values; rows are near each other, so files have bounds."""

    def __init__(self, kind: str, seed: int) -> None:
        self.has_key = "key" not in KINDS[kind] or KINDS[kind]["key"] is not None
        self.key = KINDS[kind].get("key", ["id"])
        self.by_day = "partition_by" in KINDS[kind]
        self.chance = random.Random(seed)
        self.first = 0
        self.schema = create(FileIO(RacingBackend("schema")), kind).table("t").spec.table_schema

    def call(self, *, in_block: bool) -> Call:
        # Mostly in a half of the keys for each side, so that bounds tell them apart, and sometimes anywhere.
        apart = self.chance.random() < 0.7
        self.first = (0 if in_block else KEYS // 2) if apart else self.chance.randrange(KEYS // 2)
        names = ["upsert", "delete", "delete_where", "upsert_partial" if in_block else "upsert", "replace_range" if in_block else "upsert"]
        name = self.chance.choice([*names, *([] if in_block else ["compact"])])
        if not self.has_key and name in ("upsert", "delete", "upsert_partial"):
            return "insert", self.rows()
        match name:
            case "delete":
                # Without an ordering value a delete ends the row whatever its time.
                named = self.chance.choice([("id", "day", "at"), ("id", "day")])
                return name, [{column: row[column] for column in named} for row in self.rows()]
            case "delete_where":
                return name, self.filter()
            case "upsert_partial":
                return name, [{"id": row["id"], "day": row["day"], "at": row["at"], "value": row["value"]} for row in self.rows()]
            case "replace_range":
                where = self.filter()
                return name, (self.inside(self.rows(), where), where)
            case _:
                return name, self.rows() if name == "upsert" else None

    def rows(self) -> list[Row]:
        first, count = self.first + self.chance.randrange(KEYS // 2), self.chance.randint(1, 4)
        keys = {min(KEYS + 4, first + self.chance.randint(0, 4)) for _ in range(count)}
        value, day = self.chance.randrange(6), self.chance.choice([None, *DAYS])
        at = START + dt.timedelta(hours=self.chance.randint(-2, 2))
        found = [row for key in sorted(keys) for row in rows(key, value=value, day=day, text=self.chance.choice([None, "x", "y"]))]
        return [row | {"at": at} for row in found]

    def filter(self) -> str:
        low = self.first + self.chance.randrange(KEYS // 2)
        high = low + self.chance.randrange(6)
        value, day = self.chance.randrange(6), self.chance.choice(DAYS)
        return self.chance.choice(
            [
                f"id BETWEEN {low} AND {high}",
                f"id >= {low}",
                f"NOT (id < {low}) AND value <> {value}",
                f"id IN ({low}, {high}, {low + 3})",
                f"value = {value}",
                f"value < {value} AND id < {high}",
                f"day = '{day}'",
                f"day >= '{day}' AND id > {low}",
                f"id = {low} OR value = {value}",
                f"text IS NULL AND id <= {high}",
                f"id >= {low} AND id < {high + 1} AND value < {value}",
                f"id BETWEEN {low} AND {high} AND day <> '{day}'",
                f"text = 'x' OR (day = '{day}' AND id < {high})",
            ]
        )

    def inside(self, given: list[Row], where: str) -> list[Row]:
        predicate = parse_filter(where, self.schema)
        assert predicate is not None
        passing: list[Row] = pa.Table.from_pylist(given, schema=SCHEMA).filter(predicate.to_arrow()).to_pylist()
        return passing


SOUND = (
    *("merge-on-read", "copy-on-write", "record index", "without a key", "by event time", "partitioned", "keys that move"),
    *("keys of partitions", "bloom index", "copy-on-write, by event time", "record index, by event time"),
)


@pytest.mark.parametrize("kind", few(SOUND, 1, integration=6))
def test_a_block_is_as_if_it_came_after_the_others(kind: str) -> None:
    @settings(max_examples=effort(8, with_all=300), deadline=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        check_drawn(kind, seed)

    holds()


def test_drawn_blocks_are_told_apart_and_not_only_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Counter[bool] = Counter()
    may_disturb = BlockWriter._may_disturb

    def counted(block: BlockWriter, met: Any) -> bool:
        told[may_disturb(block, met)] += 1
        return may_disturb(block, met)

    monkeypatch.setattr(BlockWriter, "_may_disturb", counted)
    for seed in range(1000, 1012):
        check_drawn("partitioned", seed)
    assert told[True] > 2 and told[False] > 0, told


def check_drawn(kind: str, seed: int) -> None:
    """A block during whose commit others commit, and the same block after them."""
    drawn = Drawn(kind, seed)
    mine = [drawn.call(in_block=True) for _ in range(drawn.chance.randint(1, 3))]
    theirs = [drawn.call(in_block=False) for _ in range(drawn.chance.randint(1, 2))]

    def other(call: Call) -> Callable[[objcat.Lake], object]:
        return lambda lake: do(lake.table("t"), call)

    backend = CountingBackend("reach")
    lake = create(FileIO(backend), kind)
    backend.races = [lambda call=call: other(call)(objcat.Lake(FileIO(backend))) for call in theirs]  # type: ignore[misc]
    result = run_block(lake, *mine)
    if result is not None and result.slots_lost == len(theirs):
        assert found(lake) == undisturbed(kind, mine, *map(other, theirs))[0], (mine, theirs)
