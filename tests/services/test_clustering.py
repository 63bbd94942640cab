"""Clustering moves rows without a key to file groups of a good size and order, and changes nothing else."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.errors import InvalidInput
from objcat.inspection.doctor import examine
from objcat.timeline import conflicts
from objcat.timeline.entry import Action
from tests.services.world import once

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("word", pa.string())])
_stores = itertools.count()


def at_random(number: int) -> int:
    """Between 0 and a million, as a hash deals it; with bits that no file makes smaller."""
    return int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:8]) % 10**6


class Log:
    """A table without a key on a store of its own, which several processes open. rows: what it holds, as often as it does."""

    def __init__(self, **settings: Any) -> None:
        self.backend = MemoryBackend(f"clustering-{next(_stores)}")
        self._seeds = itertools.count(1)
        properties = {"target_file_bytes": "6000"}
        objcat.Lake(self.store()).create_table("t", SCHEMA, key=None, properties=properties, **settings)
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def store(self, before: Callable[[Request], None] | None = None) -> FileIO:
        backend = self.backend if before is None else FaultyBackend(self.backend, before=before)
        return FileIO(backend, env=FakeEnv(next(self._seeds)))

    def table(self, before: Callable[[Request], None] | None = None) -> objcat.Table:
        return objcat.Lake(self.store(before)).table("t")

    def fill(self, parts: int = 12, rows: int = 150) -> None:
        """Groups of their own, whose values overlap."""
        table = self.table()
        for part in range(parts):
            numbers = range(part, part + parts * rows, parts)
            self.insert([{"a": n, "b": at_random(n), "word": f"word {n % 5}"} for n in numbers], table.bulk_insert)

    def insert(self, rows: list[dict[str, Any]], write: Callable[..., Any] | None = None) -> Any:
        done = (write or self.table().insert)(rows)
        self.rows.update(tuple(row.values()) for row in rows)
        return done

    def check(self) -> None:
        table = self.table()
        assert Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist()) == self.rows
        report = examine(table._context.timeline, deep=True)
        assert report.healthy, report.findings

    def groups(self, where: str | None = None) -> int:
        return len(self.table().scan(where=where).plan.groups)


def test_small_groups_become_few_and_nothing_else_changes() -> None:
    log = Log()
    log.fill()
    before = log.groups()
    done = log.table().maintenance.cluster()
    assert done is not None and done.groups_before == before and done.groups == log.groups() < before
    assert done.rows == sum(log.rows.values()) and done.as_of == done.slot - 1
    log.check()
    assert log.table().maintenance.cluster() is None
    old = log.table().scan(as_of=done.as_of).to_arrow()
    assert Counter(tuple(row.values()) for row in old.to_pylist()) == log.rows
    assert log.table().maintenance.clean(keep_slots=1).files == before
    log.check()


@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_rows_in_order_are_left_out_by_their_bounds(kind: str) -> None:
    log = Log(table_type=kind)
    log.fill()
    assert log.groups("a < 20") == log.groups()
    done = log.table().maintenance.cluster(by=["a"])
    assert done is not None and done.groups > 1 and log.groups("a < 20") == 1
    log.check()
    # What is in order is not done again; what comes out of order is.
    assert log.table().maintenance.cluster(by=["a"]) is None
    log.insert([{"a": n, "b": 0, "word": None} for n in (0, 900, 1700)])
    assert log.table().maintenance.cluster(by=["a"]) is not None
    log.check()


def test_a_zorder_serves_filters_on_each_of_its_columns() -> None:
    log = Log()
    log.fill(parts=24, rows=200)
    assert log.table().maintenance.cluster(by=["a", "b"], zorder=True) is not None
    everything = log.groups()
    assert everything >= 4
    assert log.groups("a < 200") < everything and log.groups("b < 100000") < everything
    log.check()


def test_partitions_and_filters_and_bounds_of_bytes() -> None:
    log = Log(partition_by=["word"])
    log.fill(parts=6, rows=60)
    groups = log.groups()
    one = log.table().maintenance.cluster(where="word = 'word 1'")
    assert one is not None and log.groups() == groups - one.groups_before + one.groups
    # Of four partitions that are left, one after the other.
    for left in (4, 3, 2, 1):
        assert log.table().maintenance.cluster(io_bytes_max=1) is not None, left
    assert log.table().maintenance.cluster(io_bytes_max=1) is None
    log.check()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"by": ["c"]}, "not a column"),
        ({"by": "a"}, "list of names"),
        ({"by": ["a"], "zorder": True}, "two to four"),
        ({"io_bytes_max": 0}, "io_"),
    ],
    ids=str,
)
def test_what_cannot_be_clustered_by(wrong: dict[str, Any], says: str) -> None:
    log = Log()
    log.insert([{"a": 1, "b": 1, "word": "x"}])
    with pytest.raises(InvalidInput, match=says):
        log.table().maintenance.cluster(**wrong)


# ---- others at the same time


def test_a_writer_never_conflicts_with_a_clustering() -> None:
    """Its rows were meant for a group that has ended: they go to another one, whenever the clustering comes."""
    for at in range(1, 40):
        log = Log()
        log.fill(parts=4, rows=20)
        acted: list[int] = []

        def act(request: Request, at: int = at, acted: list[int] = acted, log: Log = log) -> None:
            if request.number == at and not acted:
                acted.append(at)
                log.table().maintenance.cluster()

        log.insert([{"a": -1, "b": at, "word": "late"}], log.table(act).insert)
        log.check()
        if not acted:
            break
    else:
        pytest.fail("an insert sends fewer requests than that")


def test_rows_that_come_during_a_clustering_are_there_after_it() -> None:
    log = Log()
    log.fill(parts=4, rows=20)
    late = log.table(once("put", "log/", lambda: log.insert([{"a": -1, "b": -1, "word": "late"}])))
    done = late.maintenance.cluster()
    assert done is not None and done.slot == 6
    log.check()
    # Two at once: the second has nothing to do.
    log.fill(parts=3, rows=20)
    slow = log.table(once("put", "log/", lambda: log.table().maintenance.cluster()))  # noqa: PLW0108 - a handle of the moment
    assert slow.maintenance.cluster() is None
    log.check()
    table = log.table()
    for _ in range(2):
        table.maintenance.clean(keep_slots=1)
    assert len([key for key in table._context.fileio.list_keys("data/") if key.endswith(".parquet")]) == table.inspect.stats().base_files


def test_a_clustering_leaves_the_partition_in_which_somebody_was_faster() -> None:
    log = Log(partition_by=["word"])
    log.fill(parts=4, rows=20)
    late = log.table(once("put", "log/", lambda: log.insert([{"a": -1, "b": -1, "word": "word 1"}])))
    done = late.maintenance.cluster()
    assert done is not None and done.groups == 4
    log.check()


def test_changes_do_not_see_a_clustering() -> None:
    """Beside a table to which the same happened, but for clusterings."""
    one, other = Log(), Log()
    saved = 0
    for step in range(8):
        for log in (one, other):
            table = log.table()
            table.bulk_insert([{"a": step * 10 + n, "b": step, "word": "x"} for n in range(10)])
            if step % 3 == 2:
                table.delete(f"a = {step * 10 + 3} or b = {step - 2}")
            if step == 6:
                table.restore(to=saved if log is one else 4)
        if step % 2:
            assert one.table().maintenance.cluster(by=["a"] if step > 3 else []) is not None
        if step == 3:
            # Before the next clusterings, which the RESTORE takes back.
            saved = 4 + 1
    for net in (False, True):
        for since in (-1, 0, 3):
            assert told(one, since, net=net) == told(other, since, net=net), (net, since)
    rows = one.table().incremental(since=2).to_arrow().select(SCHEMA.names)
    assert sorted(map(str, rows.to_pylist())) == sorted(
        map(str, other.table().incremental(since=2).to_arrow().select(SCHEMA.names).to_pylist())
    )


@pytest.mark.parametrize("bug", ["clusterings are not looked for", "log rows that came meanwhile are no matter"])
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "clusterings are not looked for":
        monkeypatch.setattr("objcat.table.change_feed.clusterings_of", lambda _entries, _table: [])
        scenario = test_changes_do_not_see_a_clustering
    else:
        rules = {sentence: rule for sentence, rule in conflicts.RULES.items() if rule is not conflicts.rewrote_appended}
        monkeypatch.setattr(conflicts, "RULES", rules)
        scenario = test_rows_that_come_during_a_clustering_are_there_after_it
    with pytest.raises(AssertionError):
        scenario()


def test_a_round_of_maintenance_joins_many_small_groups() -> None:
    log = Log()
    log.fill(parts=15, rows=10)
    assert log.table().maintenance.run().did == ()
    log.fill(parts=1, rows=10)
    assert [step.service for step in log.table().maintenance.run().did] == ["cluster"]
    assert log.groups() < 8
    log.check()


def told(log: Log, since: int, *, net: bool) -> list[tuple[Any, ...]]:
    """The changes, with the number of the commit among those that are no clusterings."""
    table = log.table()
    slots = [entry.slot for entry in table.inspect.history() if entry.action is not Action.COMPACTION]
    found = table.changes(since=since if since < 0 else slots[since], net=net).to_arrow().to_pylist()
    return sorted((slots.index(row["_commit_slot"]), row["_change_type"], row["a"], row["b"], row["word"]) for row in found)
