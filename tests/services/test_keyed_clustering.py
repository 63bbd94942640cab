"""Clustering of tables with a key: files in an order of other columns are merged as ever, each row is there once, and no writer loses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.datafile import local_disk, open_files, parquet
from objcat.datafile.statistics import row_groups_that_may_match
from objcat.errors import InvalidInput, UnsupportedFormat
from objcat.inspection.doctor import examine
from objcat.metadata.files import Order, decode_delta, encode_delta
from objcat.predicate.parse import Predicate
from objcat.tasks import row_order as order
from objcat.tasks.merged_rows import split_by_group
from objcat.tasks.model import WriteResult
from objcat.timeline import entry as entries
from tests.services.world import once

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("o", pa.int64()),
        ("word", pa.string()),
    ]
)
BUCKET = objcat.BucketIndex(2)
LOCATED = [objcat.SimpleIndex(), objcat.BloomIndex(), objcat.MemoryIndex(), objcat.RecordIndex(2)]
KINDS = ["merge_on_read", "copy_on_write"]
clustering: Any = import_module("objcat.maintenance.cluster")
relocation: Any = import_module("objcat.maintenance.cluster_rows")
changes: Any = import_module("objcat.planning.changes")
compaction: Any = import_module("objcat.maintenance.compact")
_stores = itertools.count()
Row = dict[str, Any]


class Keyed:
    """A table with a key on a store of its own, which several processes open, beside a dict. rows: by key. ended: deletes with an ordering
    value, by which older rows are measured."""

    def __init__(self, *, ordered: bool = False, **settings: Any) -> None:
        self.backend = MemoryBackend(f"keyed-{next(_stores)}")
        self._seeds = itertools.count(1)
        self.random = random.Random(1)
        self.ordered = ordered
        chosen: dict[str, Any] = {"index": BUCKET, "properties": {"target_file_bytes": "6000"}, **settings}
        objcat.Lake(self.store()).create_table("t", SCHEMA, key=["id"], ordering="o" if ordered else None, **chosen)
        self.rows: dict[int, Row] = {}
        self.ended: dict[int, int] = {}

    def store(self, before: Callable[[Request], None] | None = None) -> FileIO:
        backend = self.backend if before is None else FaultyBackend(self.backend, before=before)
        return FileIO(backend, env=FakeEnv(next(self._seeds)))

    def table(self, before: Callable[[Request], None] | None = None) -> objcat.Table:
        return objcat.Lake(self.store(before)).table("t")

    def row(self, key: int, *, o: int = 5) -> Row:
        a = self.random.choice([None, *range(0, 1000, 3)])
        b = self.random.choice([None, float("nan"), -0.0, 0.0, self.random.random()])
        return {"id": key, "part": "xy"[key % 2], "a": a, "b": b, "o": o, "word": self.random.choice([None, f"w{key * 7 % 90:02}"])}

    def put(self, rows: list[Row]) -> None:
        for row in rows:
            least = max(self.ended.get(row["id"], -1), self.rows.get(row["id"], row)["o"] if self.ordered else -1)
            if not self.ordered or row["o"] >= least:
                self.rows[row["id"]] = row
                self.ended.pop(row["id"], None)

    def upsert(self, keys: Any, *, o: int = 5, table: objcat.Table | None = None) -> Any:
        rows = [self.row(key, o=o) for key in keys]
        done = (table or self.table()).upsert(rows)
        self.put(rows)
        return done

    def delete(self, keys: list[int], *, o: int | None = None) -> None:
        partitioned = self.table().spec.partitioning.fields
        rows = [{"id": key} | ({"part": "xy"[key % 2]} if partitioned else {}) | ({} if o is None else {"o": o}) for key in keys]
        self.table().delete(rows)
        for key in keys:
            if o is None or not self.ordered or key not in self.rows or o >= self.rows[key]["o"]:
                self.rows.pop(key, None)
                if o is not None and self.ordered:
                    self.ended[key] = max(o, self.ended.get(key, -1))

    def check(self) -> None:
        table = self.table()
        assert same(table.scan(), self.rows)
        low = {key: row for key, row in self.rows.items() if row["a"] is not None and row["a"] < 40}
        assert same(table.scan(where="a < 40"), low)
        words = {key: row for key, row in self.rows.items() if row["word"] == "w14"}
        assert same(table.scan(where="word = 'w14'"), words)
        report = examine(table._context.timeline, deep=True)
        assert report.healthy, report.findings

    def orders(self) -> set[Order | None]:
        return {group.base.order for group in self.table().scan().plan.groups if group.base is not None}


def same(scan: Any, expected: dict[int, Row]) -> bool:
    found = sorted(map(str, scan.to_arrow().to_pylist()))
    return found == sorted(map(str, expected.values()))


BY_A = Order(columns=(3,))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few rows, and sorts that go through local disk."""
    monkeypatch.setattr(parquet, "BASE_ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(open_files, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(order, "SORTED_BYTES_MAX", 2000)
    monkeypatch.setattr(local_disk, "PIECE_ROWS", 8)


# ---- within file groups


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("by", "zorder"), [(["a"], False), (["word", "b", "a"], False), (["b", "word"], True)], ids=str)
def test_rows_in_any_order_are_merged_as_ever(small_pieces: None, kind: str, ordered: bool, by: list[str], zorder: bool) -> None:
    keyed = Keyed(table_type=kind, ordered=ordered)
    keyed.upsert(range(150))
    done = keyed.table().maintenance.cluster(by=by, zorder=zorder)
    assert done is not None and (done.groups_before, done.groups, done.rows) == (2, 2, 150)
    keyed.check()
    assert keyed.table().maintenance.cluster(by=by, zorder=zorder) is None
    keyed.upsert(range(140, 165), o=6)
    keyed.delete(list(range(0, 40, 3)), o=7)
    keyed.delete([41, 42])
    keyed.upsert(range(20), o=4)
    keyed.check()
    keyed.table().maintenance.compact()
    keyed.upsert(range(20), o=5)
    keyed.check()
    # A compaction keeps the order, a copy-on-write upsert does not.
    assert all((order is None) == (kind == "copy_on_write") for order in keyed.orders())
    keyed.table().maintenance.split_buckets()
    keyed.upsert(range(100, 120), o=8)
    keyed.check()
    assert keyed.table().maintenance.cluster(by=["o", *by]) is not None
    keyed.check()


def test_files_in_order_are_read_in_part(small_pieces: None) -> None:
    """By the row groups that a filter leaves, also below log rows; and never where an ordering value lets a left out row win."""
    counted: list[int] = []

    def counting(*given: Any) -> list[int]:
        found = list(row_groups_that_may_match(*given))
        counted.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "row_groups_that_may_match", counting)
        keyed, ordered = Keyed(index=objcat.BucketIndex(1)), Keyed(index=objcat.BucketIndex(1), ordered=True)
        for one in (keyed, ordered):
            one.upsert(range(800))
            one.table().maintenance.compact()

        def read(one: Keyed) -> int:
            counted.clear()
            one.table().scan(where="a between 100 and 120").to_arrow()
            return sum(counted)

        assert read(keyed) > 30
        for one in (keyed, ordered):
            assert one.table().maintenance.cluster(by=["a"]) is not None
        assert read(keyed) <= 3
        for one in (keyed, ordered):
            one.upsert(range(790, 800), o=9)
            one.check()
            assert read(one) <= 3
        for one in (keyed, ordered):
            one.upsert(range(780, 790), o=-1)
            one.check()
        assert read(keyed) <= 3
        assert read(ordered) > 40
        assert keyed.table().maintenance.cluster(by=["a", "b"], zorder=True) is not None
        assert read(keyed) < 25


@pytest.mark.parametrize("index", [BUCKET, objcat.BloomIndex(), objcat.RecordIndex(2)], ids=lambda index: type(index).__name__)
def test_time_travel_incremental_reads_and_changes_do_not_see_it(index: Any) -> None:
    keyed, other = Keyed(ordered=True, index=index), Keyed(ordered=True, index=index)
    before = 0
    for step in range(6):
        for one in (keyed, other):
            one.upsert(range(step * 20, step * 20 + 40), o=step)
            one.delete(list(range(step, 100, 17)), o=step)
        if step % 2:
            assert keyed.table().maintenance.cluster(by=["word", "a", "o"][step // 2 :]) is not None
        if step == 3:
            before = keyed.table().refresh().slot
    for one in (keyed, other):
        one.check()
    assert same(keyed.table().scan(as_of=before), {row["id"]: row for row in keyed.table().scan(as_of=before - 1).to_arrow().to_pylist()})
    for net in (False, True):
        assert told(keyed, net=net) == told(other, net=net)
    slots = [[entry.slot for entry in one.table().inspect.history() if entry.action != "COMPACTION"] for one in (keyed, other)]
    assert len(slots[0]) < len(keyed.table().inspect.history())
    found = [one.table().incremental(since=of[4]).to_arrow().sort_by("id") for one, of in zip((keyed, other), slots, strict=True)]
    assert str(found[0].to_pylist()) == str(found[1].to_pylist())
    keyed.table().restore(to=before)
    keyed.table().maintenance.clean(keep_slots=1)
    assert examine(keyed.table()._context.timeline, deep=True).healthy


def told(one: Keyed, *, net: bool) -> list[tuple[Any, ...]]:
    table = one.table()
    slots = [entry.slot for entry in table.inspect.history() if entry.action != "COMPACTION"]
    found = table.changes(since=slots[2], net=net).to_arrow().to_pylist()
    return sorted((slots.index(row["_commit_slot"]), row["_change_type"], row["id"], row["o"], str(row["a"])) for row in found)


def test_the_order_outlives_checkpoints_and_falls_with_its_columns(small_pieces: None) -> None:
    keyed = Keyed()
    keyed.upsert(range(100))
    assert keyed.table().maintenance.cluster(by=["word", "a"]) is not None
    for number in range(40):
        keyed.upsert([number], o=number)
    table = keyed.table()
    assert any(key.endswith("root.json") for key in table._context.fileio.list_keys("checkpoints/"))
    assert keyed.orders() == {Order(columns=(6, 3))}
    keyed.check()
    table.alter.rename_column("a", "amount")
    assert table.scan(where="amount < 50").count() == sum(row["a"] is not None and row["a"] < 50 for row in keyed.rows.values())
    table.alter.drop_column("amount")
    table.maintenance.compact()
    assert keyed.orders() == {None}
    assert table.scan().count() == 100 and examine(table._context.timeline, deep=True).healthy


def test_what_cannot_be_asked_for() -> None:
    keyed = Keyed()
    keyed.upsert(range(4))
    for wrong, says in (
        ({}, "Name the columns that rows are sorted by within each group"),
        ({"by": ["c"]}, "not a column"),
        ({"by": ["a", "a"]}, "twice"),
        ({"by": ["a"], "zorder": True}, "two to four"),
        ({"by": ["a"], "io_bytes_max": 0}, "io_bytes_max"),
    ):
        with pytest.raises(InvalidInput, match=says):
            keyed.table().maintenance.cluster(**wrong)


def test_filters_and_bounds_of_bytes() -> None:
    keyed = Keyed(partition_by=["part"], key_scope="partition", index=objcat.BucketIndex(4))
    keyed.upsert(range(200))
    one = keyed.table().maintenance.cluster(by=["a"], where="part = 'x'")
    assert one is not None and one.groups == 4
    for left in (4, 3, 2, 1):
        done = keyed.table().maintenance.cluster(by=["a"], io_bytes_max=1)
        assert done is not None and done.groups == 1, left
    assert keyed.table().maintenance.cluster(by=["a"], io_bytes_max=1) is None
    keyed.check()
    assert keyed.orders() == {BY_A}
    # The order of the key is what files have that say nothing.
    assert keyed.table().maintenance.cluster(by=["id"]) is not None
    assert keyed.orders() == {None}
    keyed.check()


def test_an_older_reader_refuses_what_it_would_merge_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = Keyed()
    keyed.upsert(range(50))
    assert keyed.table().maintenance.cluster(by=["a"]) is not None
    for number in range(34):
        keyed.upsert([number])
    assert [entry.slot for entry in keyed.table().inspect.history() if entry.features] == [2]
    monkeypatch.setattr(entries, "READER_FEATURES", frozenset())
    with pytest.raises(UnsupportedFormat, match=r"root\.json needs the table feature 'base_order'.*objcat 0\.1\.0 or newer"):
        keyed.table()
    for key in list(keyed.store().list_keys("")):
        if "/checkpoints/" in key or key.endswith("head.json"):
            keyed.store().delete([key])
    with pytest.raises(UnsupportedFormat, match=r"00002\.json needs the table feature 'base_order'"):
        keyed.table()


@pytest.mark.parametrize("columns", [[], [3, 3], list(range(40))], ids=["none", "twice", "many"])
def test_an_order_that_is_none_is_refused(columns: list[int]) -> None:
    with pytest.raises(ValueError, match="an order has"):
        Order(columns=tuple(columns))


# ---- across file groups, where keys are looked up


def scattered(index: Any, *, groups: int = 6, rows: int = 30, **settings: Any) -> Keyed:
    """A table whose keys live in small groups, all of which hold the whole range of values."""
    keyed = Keyed(index=index, properties={"target_file_bytes": "1024"}, **settings)
    for number in range(groups):
        keyed.upsert(range(number, groups * rows, groups))
    keyed.table().set_properties({"target_file_bytes": "12000"})
    assert len(keyed.table().scan().plan.groups) >= groups
    return keyed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("index", LOCATED, ids=lambda index: type(index).__name__)
def test_small_groups_are_joined_and_every_key_is_found_where_it_went(kind: str, ordered: bool, index: Any) -> None:
    keyed = scattered(index, table_type=kind, ordered=ordered, partition_by=["part"], key_scope="partition")
    keyed.delete(list(range(0, 90, 7)), o=9)
    keyed.delete([5, 11])
    before = len(keyed.table().scan().plan.groups)
    done = keyed.table().maintenance.cluster()
    assert done is not None and done.groups_before == before and done.groups == len(keyed.table().scan().plan.groups) < before
    keyed.check()
    # A key that is written again is an update of its row, not a second one; what came late stays out.
    keyed.upsert(range(100), o=8)
    keyed.upsert([5, 7, 200, 201], o=9)
    keyed.check()
    assert keyed.table().maintenance.cluster(by=["a"]) is not None
    keyed.check()
    keyed.delete([14, 201])
    keyed.upsert([14, 21], o=10)
    assert keyed.table().maintenance.cluster(by=["a", "word"], zorder=True) is not None
    keyed.upsert(range(0, 200, 3), o=11)
    keyed.check()
    table = keyed.table()
    table.maintenance.compact()
    for _ in range(2):
        table.maintenance.clean(keep_slots=1)
    keyed.check()


def test_filters_leave_out_whole_groups() -> None:
    keyed = scattered(objcat.BloomIndex(), rows=200)
    assert len(keyed.table().scan(where="a between 100 and 120").plan.groups) >= 6
    done = keyed.table().maintenance.cluster(by=["a"])
    assert done is not None
    assert len(keyed.table().scan(where="a between 100 and 120").plan.groups) <= 2 < done.groups
    # Joined files are smaller than the sum of small ones, so it may take another turn until they are large enough.
    assert any(keyed.table().maintenance.cluster(by=["a"]) is None for _ in range(4))
    keyed.check()


@pytest.mark.parametrize("index", LOCATED, ids=lambda index: type(index).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_looked_before_a_clustering_looks_again(kind: str, index: Any) -> None:
    """Whenever the clustering comes: no key is there twice, and nobody is refused."""
    for at in itertools.chain(range(1, 14), range(14, 60, 5)):
        keyed = scattered(index, table_type=kind, groups=3, rows=10)
        acted: list[int] = []

        def act(request: Request, at: int = at, acted: list[int] = acted, keyed: Keyed = keyed) -> None:
            if request.number == at and not acted:
                acted.append(at)
                keyed.table().maintenance.cluster(by=["a"])

        keyed.upsert(range(20, 40), table=keyed.table(act))
        keyed.upsert(range(0, 50, 4))
        keyed.check()
        if not acted:
            break


@pytest.mark.parametrize("index", LOCATED, ids=lambda index: type(index).__name__)
def test_a_clustering_yields_to_whoever_wrote_to_its_groups(index: Any) -> None:
    keyed = scattered(index, groups=4, rows=10, partition_by=["part"], key_scope="partition")
    groups = len(keyed.table().scan(where="part = 'x'").plan.groups)
    late = keyed.table(once("put", "log/", lambda: keyed.upsert([1, 3, 101], o=6)))
    done = late.maintenance.cluster()
    assert done is not None
    keyed.check()
    if not isinstance(index, objcat.RecordIndex):
        # The other partition is done all the same.
        assert done.groups_before == groups
        assert keyed.table().maintenance.cluster() is not None
    keyed.upsert(range(0, 110, 2))
    keyed.upsert(range(1, 110, 2))
    keyed.check()
    slow = keyed.table(once("put", "log/", lambda: keyed.table().maintenance.cluster(by=["word"])))
    slow.maintenance.cluster(by=["word"])
    keyed.check()


def test_keys_that_move_between_partitions_are_clustered() -> None:
    keyed = scattered(objcat.RecordIndex(2), groups=4, rows=10, partition_by=["part"], key_scope="table", ordered=True)
    for number in range(3):
        rows = [{**keyed.row(key, o=6 + number), "part": "xyz"[(key + number) % 3]} for key in range(0, 40, number + 2)]
        keyed.table().upsert(rows)
        keyed.put(rows)
        assert keyed.table().maintenance.cluster(by=[["a"], ["word"], ["id"]][number]) is not None
        keyed.check()


# ---- others at the same time


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_never_conflicts_with_a_clustering(kind: str) -> None:
    for at in range(1, 40):
        keyed = Keyed(table_type=kind)
        keyed.upsert(range(60))
        acted: list[int] = []

        def act(request: Request, at: int = at, acted: list[int] = acted, keyed: Keyed = keyed) -> None:
            if request.number == at and not acted:
                acted.append(at)
                keyed.table().maintenance.cluster(by=["a"])

        keyed.upsert(range(50, 70), table=keyed.table(act))
        keyed.check()
        if not acted:
            break
    else:
        pytest.fail("an upsert sends fewer requests than that")


def test_rows_that_come_during_a_clustering_stay_on_top(small_pieces: None) -> None:
    keyed = Keyed()
    keyed.upsert(range(60))
    done = keyed.table(once("put", "log/", lambda: keyed.upsert(range(50, 70)))).maintenance.cluster(by=["a"])
    assert done is not None and (done.slot, done.as_of) == (3, 1)
    keyed.check()
    # Two at once: the second has nothing to do. A compaction that is faster leaves nothing of the plan, which is made anew.
    slow = keyed.table(once("put", "log/", lambda: keyed.table().maintenance.cluster(by=["b"])))
    assert slow.maintenance.cluster(by=["b"]) is None
    slow = keyed.table(once("put", "log/", lambda: keyed.table().maintenance.compact()))  # noqa: PLW0108 - a handle of the moment
    keyed.upsert(range(5))
    done = slow.maintenance.cluster(by=["word"])
    assert done is not None and keyed.orders() == {Order(columns=(6,))}
    keyed.check()


# ---- what the tests are worth


def reads_files_as_if_by_key(patch: pytest.MonkeyPatch) -> None:
    for name in ("merged_rows", "scan"):
        patch.setattr(import_module(f"objcat.tasks.{name}"), "lies_otherwise", lambda _group: False)


def forgets_orders_in_manifests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("objcat.metadata.manifest_rows.encode_order", lambda _order: None)


def forgets_orders_in_entries(patch: pytest.MonkeyPatch) -> None:
    finish = parquet.BaseWriter.finish
    patch.setattr(parquet.BaseWriter, "finish", lambda self: msgspec.structs.replace(finish(self), order=None))


def loses_a_run(patch: pytest.MonkeyPatch) -> None:
    gathered = order._gathered
    patch.setattr(order, "_gathered", lambda pieces: itertools.islice(gathered(pieces), 1))


def prunes_rows_that_may_win(patch: pytest.MonkeyPatch) -> None:
    to_pruning = Predicate.to_pruning

    def of_all(self: Predicate, *, only: object = None) -> Any:
        return to_pruning(self)

    patch.setattr(Predicate, "to_pruning", of_all)


def leaves_deletes_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relocation, "split_by_group", lambda rows: (split_by_group(rows)[0], rows.slice(0, 0)))


def tells_the_index_of_groups_that_never_begin(patch: pytest.MonkeyPatch) -> None:
    narrow, propose = clustering._narrow, clustering._proposal

    def keeping(proposal: Any, taken: Any) -> Any:
        delta = decode_delta(proposal.changes)
        bare = msgspec.structs.replace(delta, index=None)
        less = narrow(replace(proposal, changes=encode_delta(bare)), taken)
        if less is None or delta.index is None:
            return less
        left = decode_delta(less.changes)
        return propose(WriteResult(left.bases, left.logs, index=delta.index.logs), left.retires, as_of=left.as_of)

    patch.setattr(clustering, "_narrow", keeping)


def follows_no_keys(patch: pytest.MonkeyPatch) -> None:
    happened = changes._happened
    patch.setattr(changes, "_happened", lambda entry, within: None if entry.action == "COMPACTION" else happened(entry, within))


def names_no_feature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "features_of", lambda _delta: {})


def a_late_row_and_a_filter() -> None:
    keyed = Keyed(ordered=True, index=objcat.BucketIndex(1))
    keyed.upsert(range(64), o=5)
    keyed.table().maintenance.cluster(by=["a"])
    # Rows that lose against rows that a filter on their values leaves out.
    table = keyed.table()
    table.upsert([{**keyed.row(key, o=1), "a": 1} for key in range(64)])
    keyed.check()


@pytest.mark.parametrize(
    ("bug", "scenario"),
    [
        (reads_files_as_if_by_key, lambda: test_rows_in_any_order_are_merged_as_ever(None, "merge_on_read", False, ["a"], False)),
        (forgets_orders_in_manifests, lambda: test_the_order_outlives_checkpoints_and_falls_with_its_columns(None)),
        (forgets_orders_in_entries, lambda: test_rows_that_come_during_a_clustering_stay_on_top(None)),
        (loses_a_run, lambda: test_rows_that_come_during_a_clustering_stay_on_top(None)),
        (prunes_rows_that_may_win, a_late_row_and_a_filter),
        (
            leaves_deletes_behind,
            lambda: test_small_groups_are_joined_and_every_key_is_found_where_it_went("merge_on_read", True, objcat.SimpleIndex()),
        ),
        (
            tells_the_index_of_groups_that_never_begin,
            lambda: test_a_clustering_yields_to_whoever_wrote_to_its_groups(objcat.RecordIndex(2)),
        ),
        (follows_no_keys, lambda: test_time_travel_incremental_reads_and_changes_do_not_see_it(objcat.BloomIndex())),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_planted_bugs_are_found(
    small_pieces: None, bug: Callable[[pytest.MonkeyPatch], None], scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario()
    bug(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        scenario()


def test_a_clustering_that_names_no_feature_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    names_no_feature(monkeypatch)
    with pytest.raises(AssertionError):
        test_an_older_reader_refuses_what_it_would_merge_wrongly(monkeypatch)
