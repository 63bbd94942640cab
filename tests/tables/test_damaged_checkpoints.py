"""A checkpoint is a cache: one that is damaged is named and passed over, for an older one or the log, and the next one takes its place."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import objcat
from fileio.contract import Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import FaultyBackend, Request
from objcat.errors import CorruptTable
from objcat.inspection.doctor import examine
from objcat.inspection.findings import Severity
from objcat.metadata.snapshot import snapshot_of
from objcat.timeline import txn_outcomes
from objcat.timeline.checkpoint import HINT_KEY, Hint, Root, VoidRoot, read_hint, read_root, root_key
from objcat.timeline.checkpoint_expiry import collect_checkpoints
from objcat.timeline.commit import Committer
from objcat.timeline.entry import log_key, new_txn

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
COMMITS = 70
Damage = Callable[[bytes], bytes | None]


def grown(name: str, index: objcat.BucketIndex | objcat.RecordIndex, commits: int = COMMITS, seed: int = 1) -> FileIO:
    """A table with a checkpoint every 16 slots or so. seed: of its ids and times."""
    store = FileIO(MemoryBackend(name, env=FakeEnv(0, now_ms=1_700_000_000_000 + seed)), env=FakeEnv(seed))
    table = objcat.create_table_at(store, SCHEMA, key=["k"], index=index)
    for number in range(commits):
        table.upsert([{"k": number % 9, "v": number}])
        if number % 16 == 15:
            table._context.timeline.publish(table._context.timeline.open())
    return store


def opened(store: FileIO, seed: int = 2) -> objcat.Table:
    """As another process opens it."""
    return objcat.table_at(FileIO(store._bare, env=FakeEnv(seed)))


def rows(table: objcat.Table, slot: int | None = None) -> pa.Table:
    return table.scan(as_of=slot).to_arrow().sort_by("k")


def rows_at(slot: int) -> dict[int, int]:
    return {number % 9: number for number in range(slot)}


def assert_same(store: FileIO) -> None:
    """Every way of reading gives the rows of the log."""
    newest = len(list(store.list_keys("log/"))) - 1
    for slot in (None, newest, newest // 2, 3):
        found = rows(opened(store), slot)
        assert dict(zip(*(found.column(name).to_pylist() for name in ("k", "v")), strict=True)) == rows_at(newest if slot is None else slot)
    table = opened(store)
    assert table.scan(where="k = 4").to_arrow().num_rows == 1
    assert {row["_commit_slot"] for row in table.scan(columns=["k", "_commit_slot"]).to_arrow().to_pylist()} <= set(range(newest + 1))
    assert table.changes(since=2).to_arrow().num_rows > 0


def objects(store: FileIO, kind: str) -> list[str]:
    keys = [key for key in store.list_keys("checkpoints/") if kind in key.rpartition("/")[2]]
    assert keys, f"there is no {kind}"
    return keys


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]


DAMAGES: dict[str, Damage] = {
    "a flipped bit": flipped,
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "nested": lambda _: b"[" * 100_000,
    "no UTF-8": lambda data: b"\xff" + data[1:],
    "more bytes": lambda data: data + b"x",
    "gone": lambda _: None,
}


@pytest.fixture(scope="module")
def pristine() -> dict[str, FileIO]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(txn_outcomes, "INLINE_MAX", 8)
        return {"bucket": grown("bucket", objcat.BucketIndex(2)), "record": grown("record", objcat.RecordIndex(buckets=2))}


def copied(store: FileIO) -> FileIO:
    """A copy whose hint carries nothing: who opens it reads the root of a checkpoint."""
    copy = FileIO(MemoryBackend("copied", env=FakeEnv(0)), env=FakeEnv(3))
    for key in store.list_keys():
        copy.put(key, store.read(key))
    hint, _ = read_hint(copy)
    assert hint is not None
    copy.put(HINT_KEY, msgspec.json.encode(Hint(slot=hint.slot, checkpoint=hint.checkpoint)), Overwrite())
    return copy


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["root.json", "base-", "outcomes-"])
@pytest.mark.parametrize("index", ["bucket", "record"])
def test_rows_are_the_same_without_it(
    pristine: dict[str, FileIO], index: str, kind: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = copied(pristine[index])
    for key in objects(store, kind):
        changed = DAMAGES[damage](store.read(key))
        if changed is None:
            store.delete([key])
        else:
            store.put(key, changed, Overwrite())
    with caplog.at_level(logging.WARNING, logger="objcat.timeline"):
        assert_same(store)
    gone_root = damage == "gone" and kind == "root.json"
    is_told = any("passed over" in record.message for record in caplog.records)
    assert is_told or damage == "gone" or (kind == "outcomes-" and damage == "more bytes")
    report = examine(opened(store)._context.timeline, deep=True)
    assert report.healthy == (gone_root or (kind == "outcomes-" and damage == "more bytes"))
    assert all("checkpoints/" in finding.subject for finding in report.findings if finding.severity is Severity.BROKEN)

    table = opened(store, seed=5)
    assert table.upsert([{"k": COMMITS % 9, "v": COMMITS}]).rows == 1
    assert_same(store)


@pytest.mark.parametrize("kind", ["root.json", "base-"])
def test_the_next_publisher_replaces_it(pristine: dict[str, FileIO], kind: str) -> None:
    store = copied(pristine["bucket"])
    newest = max(int(key.split("/")[1]) for key in objects(store, "root.json"))
    for key in objects(store, kind):
        store.put(key, flipped(store.read(key)), Overwrite())
    table = opened(store)
    rows(table)
    view = table._context.latest.view
    assert view.checkpoint == -1, "none of them can be read"
    assert table._context.timeline.publish(view).checkpoint == newest
    found = read_root(store, newest)
    assert found is not None and isinstance(found.root, Root)
    assert opened(store)._context.timeline.open().checkpoint == newest, "the next one stands on it"
    assert_same(store)


def test_two_publishers_replace_it_at_once(pristine: dict[str, FileIO]) -> None:
    store = copied(pristine["bucket"])
    newest = max(objects(store, "root.json"))
    slot = int(newest.split("/")[1])
    store.put(newest, b"broken", Overwrite())
    other = opened(store, seed=7)
    view = other._context.timeline.open()
    before = {path.split("/")[2] for path in store.list_keys(f"checkpoints/{slot:020d}/")}
    raced: list[int] = []

    def race(request: Request) -> None:
        if request.kind == "put" and request.key == newest and not raced:
            raced.append(slot)
            assert other._context.timeline.publish(view).checkpoint == slot

    table = objcat.table_at(FileIO(FaultyBackend(store._bare, before=race), env=FakeEnv(8)))
    assert table._context.timeline.publish(table._context.timeline.open()).checkpoint == slot and raced
    found = read_root(store, slot)
    assert found is not None and isinstance(found.root, Root)
    folders = {path.split("/")[2] for path in store.list_keys(f"checkpoints/{slot:020d}/")} - before
    assert len(folders) == 1, "the loser has tidied up"
    assert_same(store)


def test_a_collection_makes_it_void(pristine: dict[str, FileIO]) -> None:
    store = copied(pristine["bucket"])
    roots = sorted(objects(store, "root.json"))
    store.put(roots[0], b"broken", Overwrite())
    table = opened(store)
    done = collect_checkpoints(table._context.timeline, Committer(table._context.fileio), keep=1)
    assert done.slot is not None
    first = read_root(store, int(roots[0].split("/")[1]))
    assert first is not None and isinstance(first.root, VoidRoot)
    assert dict(zip(*(rows(opened(store)).column(name).to_pylist() for name in ("k", "v")), strict=True)) == rows_at(COMMITS)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_publisher_that_replaces_one_beside_a_collection_changes_no_row(pristine: dict[str, FileIO], *, is_late: bool) -> None:
    """One that looks at the log finds the collection; a late one, whose request has been under way since before, finds its root void."""
    store = copied(pristine["bucket"])
    roots = sorted(objects(store, "root.json"))
    first, whole = int(roots[0].split("/")[1]), store.read(roots[0])
    store.put(roots[0], b"broken", Overwrite())
    stalled = opened(store, seed=9)
    view = stalled._context.timeline.at(first + 3)
    raced: list[str] = []

    def race(request: Request) -> None:
        if request.kind == "put" and request.key == roots[0] and not raced:
            raced.append(request.key)
            if is_late:
                store.put(roots[0], whole, Overwrite())
            else:
                assert stalled._context.timeline.publish(view).checkpoint == -1

    table = objcat.table_at(FileIO(FaultyBackend(store._bare, before=race), env=FakeEnv(10)))
    collect_checkpoints(table._context.timeline, Committer(table._context.fileio), keep=1)
    now = read_root(store, first)
    assert raced and now is not None and isinstance(now.root, VoidRoot)
    assert dict(zip(*(rows(opened(store)).column(name).to_pylist() for name in ("k", "v")), strict=True)) == rows_at(COMMITS)
    assert rows(opened(store), 10).num_rows == 9


@pytest.mark.parametrize(
    "hint", [b"", b"{", b"[]", b"\xff", b'{"slot": -1, "checkpoint": 16}', b'{"slot": 9999, "checkpoint": 9984}', b"[" * 9999]
)
def test_a_hint_is_only_a_hint(pristine: dict[str, FileIO], hint: bytes) -> None:
    store = copied(pristine["bucket"])
    store.put(HINT_KEY, hint, Overwrite())
    assert_same(store)


TAILS: dict[str, Callable[[objcat.Table], object]] = {
    "rows": lambda table: table.upsert([{"k": 1, "v": 1}]),
    "nothing": lambda _: None,
    "a savepoint": lambda table: table.maintenance.savepoint(name="kept"),
    "a rollback": lambda table: table.resolve(str(new_txn(table._context.fileio.env))),
}


@pytest.fixture(scope="module")
def another() -> FileIO:
    return grown("another", objcat.BucketIndex(1), seed=99)


@pytest.mark.parametrize("tail", TAILS)
def test_the_root_of_another_table_is_named(pristine: dict[str, FileIO], another: FileIO, tail: str) -> None:
    store, key = copied(pristine["bucket"]), root_key(64)
    store.delete([log_key(at) for at in range(65, COMMITS + 1)])
    TAILS[tail](opened(store, seed=4))
    table = objcat.table_at(store)
    store.put(key, another.read(key), Overwrite())
    with pytest.raises(CorruptTable, match=key):
        snapshot_of(table._context.timeline.open(), table.id, where=store.url)


@pytest.mark.parametrize("slot", [32, 40])
def test_the_root_of_another_table_is_named_by_time_travel(pristine: dict[str, FileIO], another: FileIO, slot: int) -> None:
    store, key = copied(pristine["bucket"]), root_key(32)
    store.put(key, another.read(key), Overwrite())
    with pytest.raises(CorruptTable, match=key):
        rows(opened(store), slot)


def test_where_no_way_is_left_the_error_says_what_to_restore(pristine: dict[str, FileIO]) -> None:
    store = copied(pristine["bucket"])
    for key in objects(store, "root.json"):
        store.put(key, b"broken", Overwrite())
    store.delete([log_key(5)])
    with pytest.raises(CorruptTable, match=rf"{log_key(5)} is missing.*Restore one of the two\. checkpoints/\d+/root\.json"):
        opened(store)


def rewritten(store: FileIO, change: Callable[[pa.Table], pa.Table]) -> FileIO:
    """The store with its shards as another writer may write them, and roots that say so."""
    import hashlib
    import json

    for key in objects(store, "root.json"):
        root = json.loads(store.read(key))
        for table in root["payload"]["tables"].values():
            for ref in table["shards"]:
                sink = io.BytesIO()
                pq.write_table(change(pq.read_table(io.BytesIO(store.read(ref["path"])))), sink)
                store.put(ref["path"], sink.getvalue(), Overwrite())
                ref |= {"bytes": len(sink.getvalue()), "sha256": hashlib.sha256(sink.getvalue()).hexdigest()}
        del root["digest"]
        store.put(key, json.dumps(root).encode(), Overwrite())
    return store


def wider(table: pa.Table) -> pa.Table:
    """All integers of 64 bits, those of slices too."""
    for number, field in enumerate(table.schema):
        if pa.types.is_int32(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(pa.int64()))
    logs = table.column("logs").combine_chunks()
    fields = {field.name: logs.values.field(field.name) for field in logs.type.value_type}
    values = [array.cast(pa.int64()) if pa.types.is_int32(array.type) else array for array in fields.values()]
    lists = pa.ListArray.from_arrays(logs.offsets, pa.StructArray.from_arrays(values, list(fields)))
    return table.set_column(table.schema.get_field_index("logs"), "logs", lists)


def unknowing(table: pa.Table) -> pa.Table:
    """Nothing is known of how many rows there are, and of bounds."""
    for number, field in enumerate(table.schema):
        if field.name == "rows" or field.name.startswith(("nulls_", "lower_", "upper_")):
            table = table.set_column(number, field.name, pa.nulls(table.num_rows, field.type))
    return table


@pytest.mark.parametrize("change", [wider, unknowing])
def test_a_shard_may_have_other_integers_and_nulls(pristine: dict[str, FileIO], change: Callable[[pa.Table], pa.Table]) -> None:
    store = rewritten(copied(pristine["bucket"]), change)
    assert_same(store)
    table = opened(store)
    assert table._context.latest.view.checkpoint > 0, "it stands on that checkpoint"
    for number in range(COMMITS, COMMITS + 40):
        table.upsert([{"k": number % 9, "v": number}])
    published = table._context.timeline.publish(table._context.timeline.open())
    assert published.checkpoint >= COMMITS
    assert_same(store)


NONSENSE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a bucket beyond the count": lambda t: t.set_column(t.schema.get_field_index("bucket"), "bucket", pc.add(t.column("bucket"), 2)),
    "a negative bucket": lambda t: t.set_column(t.schema.get_field_index("bucket"), "bucket", pc.negate(pc.add(t.column("bucket"), 1))),
    "no partition": lambda t: t.set_column(t.schema.get_field_index("partition"), "partition", pa.nulls(t.num_rows, pa.string())),
    "a column is missing": lambda t: t.drop_columns(["as_of"]),
    "logs are missing": lambda t: t.drop_columns(["logs"]),
    "text for numbers": lambda t: t.set_column(t.schema.get_field_index("slot"), "slot", pa.array(["x"] * t.num_rows)),
    "beyond 32 bits": lambda t: t.set_column(t.schema.get_field_index("bucket"), "bucket", pa.array([2**40] * t.num_rows)),
    "fewer rows": lambda t: t.slice(0, t.num_rows - 1),
}


@pytest.mark.parametrize("damage", NONSENSE)
def test_a_shard_that_makes_no_sense_is_passed_over(pristine: dict[str, FileIO], damage: str) -> None:
    assert_same(rewritten(copied(pristine["bucket"]), NONSENSE[damage]))
