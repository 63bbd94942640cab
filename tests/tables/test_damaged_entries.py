"""Entries that do not make sense: who reads one is told which object and which field, and nothing of it is replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import objcat
from fileio.contract import Overwrite
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import CorruptTable, ObjcatError
from objcat.timeline.checkpoint import HINT_KEY
from objcat.timeline.entry import log_key

SCHEMA = {"id": "bigint", "at": "date", "value": "string"}
Change = Callable[[dict[str, Any], str], None]


def table_of_four() -> objcat.Table:
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.date32()), pa.field("value", pa.string())])
    lake = objcat.Lake(FileIO(MemoryBackend("damaged", env=FakeEnv(0)), env=FakeEnv(1)))
    table = lake.create_table("t", schema, key=["id"], index=objcat.BucketIndex(2), partition_by=["truncate(id, 100)"])
    for number in range(3):
        table.upsert([{"id": n, "at": None, "value": f"{number}"} for n in range(8)])
    return table


@pytest.fixture(scope="module")
def pristine() -> objcat.Table:
    return table_of_four()


@pytest.fixture
def table(pristine: objcat.Table) -> objcat.Table:
    """A copy of its own, without the hint, which may carry its entries."""
    copied = FileIO(MemoryBackend("copied", env=FakeEnv(0)), env=FakeEnv(2))
    for key in pristine._context.fileio.list_keys():
        if key != HINT_KEY:
            copied.put(key, pristine._context.fileio.read(key))
    return objcat.table_at(copied)


def rewrite(table: objcat.Table, slot: int, change: Change, *, keep_digest: bool = False) -> None:
    """Change an entry as its owner may, who can leave the digest out. The hint, which may carry it, goes."""
    entry = json.loads(table._context.fileio.read(log_key(slot)))
    if not keep_digest:
        del entry["digest"]
    change(entry, table.id)
    table._context.fileio.put(log_key(slot), json.dumps(entry).encode(), Overwrite())
    table._context.fileio.delete([HINT_KEY])


def log_of(entry: dict[str, Any], table: str) -> dict[str, Any]:
    found: dict[str, Any] = entry["changes"][table]["logs"][0]
    return found


def put(path: str, value: Any) -> Change:
    """Set a field; numbers are places in lists, `T` is the table."""

    def change(entry: dict[str, Any], table: str) -> None:
        at: Any = entry
        *parents, last = [table if name == "T" else int(name) if name.lstrip("-").isdigit() else name for name in path.split(".")]
        for name in parents:
            at = at[name]
        at[last] = value

    return change


def drop(path: str) -> Change:
    def change(entry: dict[str, Any], table: str) -> None:
        at: Any = entry
        *parents, last = [table if name == "T" else name for name in path.split(".")]
        for name in parents:
            at = at[name]
        del at[last]

    return change


def swap_ranges(entry: dict[str, Any], table: str) -> None:
    group_ids = log_of(entry, table)["homes"]
    group_ids[0], group_ids[1] = group_ids[1], group_ids[0]


LOG = "changes.T.logs.0"
DAMAGES: dict[str, tuple[int, Change, str]] = {
    "changes are missing": (2, drop("changes"), r"changes\..* its footprint names appends"),
    "a change of another table": (2, put("changes", {"0123456789abcdef": {}}), r"changes\..* its footprint names appends"),
    "the footprint is missing": (2, drop("footprint"), r"footprint\..*the file groups that `changes` write to"),
    "a file group of the footprint is missing": (
        2,
        lambda e, t: e["footprint"][t]["appends"].pop(),
        r"footprint\..*the file groups that `changes` write",
    ),
    "negative bytes": (2, put(f"{LOG}.bytes", -1), r"`int` >= 0.*logs\[0\]\.bytes"),
    "negative rows": (2, put(f"{LOG}.rows", -8), r"`int` >= 0.*logs\[0\]\.rows"),
    "no rows of a row group": (2, put(f"{LOG}.row_group_rows", 0), r"`int` >= 1.*row_group_rows"),
    "a negative bucket": (2, put(f"{LOG}.homes.0.0.1", -1), r"`int` >= 0.*homes"),
    "a bucket beyond the count": (2, put(f"{LOG}.homes.1.0.1", 2), r"file groups of data/.*bucket 2/2"),
    "no buckets": (2, put(f"{LOG}.homes.0.0.2", 0), r"`int` >= 1.*homes"),
    "rows beyond the file": (2, put(f"{LOG}.homes.1.2", 9), r"rows \d+ to 9.*within the 8 rows"),
    "a range that ends before it begins": (2, put(f"{LOG}.homes.0.2", 0), r"rows 0 to 0"),
    "ranges out of order": (2, swap_ranges, r"one after another"),
    "a negative start": (2, put(f"{LOG}.homes.0.1", -1), r"`int` >= 0"),
    "a path out of the table": (2, put(f"{LOG}.path", "../other/data/x.log.parquet"), r"path of a file says '\.\./other"),
    "an absolute path": (2, put(f"{LOG}.path", "/etc/passwd"), r"'/etc/passwd'"),
    "a path with a scheme": (2, put(f"{LOG}.path", "s3://bucket/key"), r"'s3://bucket/key'"),
    "a path of another transaction": (2, put(f"{LOG}.path", "data/20260101T000000000Z-0123456789abcdef/a.log.parquet"), r"below data/"),
    "more nulls than rows": (2, put(f"{LOG}.bounds.1", [0, 7, 9]), r"9 nulls.*8 rows"),
    "an unknown type of a field": (2, put(f"{LOG}.bytes", "many"), r"Expected `int`.*bytes"),
    "a base above the slot": (2, put("base", 2), r"base = 2.*below its slot"),
    "no id of a transaction": (2, put("txn", "../data"), r"txn = '\.\./data'"),
    "a time beyond all calendars": (2, put("committed_at_ms", 10**17), r"committed_at_ms"),
    "a slot of another place": (2, put("slot", 3), r"holds the entry of slot 3"),
    "a bound above the slot": (2, put("footprint.T.bound", 9), r"footprint\..*bound = 9"),
    "digests that are no base64": (2, put("footprint.T.keys", {"placed": {"count": 1, "inline": "?"}}), r"keys\.placed\.inline.*base64"),
    "digests that are too few": (2, put("footprint.T.keys", {"placed": {"count": 2, "inline": "AAAAAAAAAAA="}}), r"2 digests of 8 bytes"),
    "two columns of one id": (0, put("changes.T.spec.table_schema.columns.1.id", 1), r"2 columns with the id 1"),
    "an id above the last one": (0, put("changes.T.spec.table_schema.last_id", 2), r"id 3.*last_id"),
    "a key that is no column": (0, put("changes.T.spec.key", [9]), r"spec\.key says 9"),
    "an ordering that is no column": (0, put("changes.T.spec.ordering", 9), r"spec\.ordering says 9"),
    "more ordering columns than none": (0, put("changes.T.spec.ordering_more", [1]), r"spec\.ordering_more says \(1,\)"),
    "a bucket column outside the key": (0, put("changes.T.spec.index.columns", [2]), r"index\.columns"),
    "no buckets at all": (0, put("changes.T.spec.index.count", 0), r"`int` >= 1.*index\.count"),
    "an unknown kind": (0, put("changes.T.spec.kind", "merge"), r"spec\.kind says 'merge'"),
    "an unknown key scope": (0, put("changes.T.spec.key_scope", "lake"), r"spec\.key_scope says 'lake'"),
    "two columns of one name": (0, put("changes.T.spec.table_schema.columns.1.name", "id"), r"name names of columns"),
    "a partition of no column": (0, put("changes.T.spec.partitioning.fields.0.column", 7), r"spec\.partitioning says 7"),
    "a width of nothing": (0, put("changes.T.spec.partitioning.fields.0.width", 0), r"width"),
    "a transform that does not fit": (0, put("changes.T.spec.partitioning.fields.0.transform", "hour"), r"a transform of a bigint"),
    "the spec of another table": (0, put("changes.T.spec.table", "0123456789abcdef"), r"spec\.table says"),
    "a property of no value": (0, put("changes.T.spec.properties", {"target_file_bytes": "large"}), r"properties.*'large'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_entry_that_makes_no_sense_is_refused(table: objcat.Table, damage: str) -> None:
    slot, change, says = DAMAGES[damage]
    rewrite(table, slot, change)
    with pytest.raises(CorruptTable, match=says) as caught:
        objcat.table_at(table._context.fileio).scan().to_arrow()
    assert log_key(slot) in str(caught.value), "the object is named"


@pytest.mark.parametrize("slot", range(4))
def test_an_entry_of_before_has_no_digest_and_is_read(table: objcat.Table, slot: int) -> None:
    rewrite(table, slot, lambda entry, table: None)
    assert objcat.table_at(table._context.fileio).scan().to_arrow().num_rows == 8


@pytest.mark.parametrize("slot", range(4))
def test_an_entry_that_is_not_what_was_written_is_refused(table: objcat.Table, slot: int) -> None:
    rewrite(table, slot, put("writer", "another"), keep_digest=True)
    with pytest.raises(CorruptTable, match=r"000\d\.json is not what was written.*`digest`"):
        objcat.table_at(table._context.fileio).scan()


@pytest.mark.parametrize("slot", range(4))
def test_every_bit_of_an_entry_matters_or_means_nothing(table: objcat.Table, slot: int) -> None:
    expected = table.scan().to_arrow().sort_by("id")
    data = table._context.fileio.read(log_key(slot))
    refused = 0
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        table._context.fileio.put(log_key(slot), bytes(damaged), Overwrite())
        with suppress(ObjcatError):
            assert objcat.table_at(table._context.fileio).scan().to_arrow().sort_by("id") == expected
            continue
        refused += 1
        with pytest.raises(ObjcatError, match=log_key(slot)):
            objcat.table_at(table._context.fileio).scan().to_arrow()
    assert refused > len(data) / 7 * 0.9


NULLS = ("writer", "features", "writer_features", "side", "plan", "rollback_of", "summary", "apps", "positions", "metadata", "history")


def test_a_null_is_as_good_as_nothing(table: objcat.Table) -> None:
    expected = table.scan().to_arrow().sort_by("id")

    def nulls(entry: dict[str, Any], table: str) -> None:
        entry |= dict.fromkeys(NULLS) | {"digest": None}
        entry["changes"][table] |= {
            name: entry["changes"][table].get(name) for name in ("spec", "bases", "as_of", "splits", "removes", "index")
        }
        entry["footprint"][table] |= dict.fromkeys(("creates", "replaces", "keys", "schema", "bound", "splits", "overwrites"))
        for log in entry["changes"][table].get("logs", ()):
            log["bounds"] = None
        spec = entry["changes"][table]["spec"]
        if spec is not None:
            spec |= {"properties": None, "former": None, "lateness_ms": None}
            spec["partitioning"]["mark"] = None
            spec["table_schema"]["columns"][1]["nullable"] = None

    for slot in range(4):
        rewrite(table, slot, nulls)
    assert objcat.table_at(table._context.fileio).scan().to_arrow().sort_by("id") == expected


def test_fields_at_their_default_may_be_left_out(table: objcat.Table) -> None:
    expected = table.scan().to_arrow().sort_by("id")

    def bare(entry: dict[str, Any], table: str) -> None:
        spec = entry["changes"][table]["spec"]
        for name in ("ordering", "kind", "key_scope", "former", "properties", "lateness_ms"):
            spec.pop(name, None)
        spec["table_schema"]["columns"][1].pop("nullable")

    rewrite(table, 0, bare)
    assert objcat.table_at(table._context.fileio).scan().to_arrow().sort_by("id") == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff" * 40, b'{"format": 1, "slot": 2, "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"[" * 200_000],
    ids=["empty", "cut", "a list", "null", "no UTF-8", "nested", "nested without an end"],
)
@pytest.mark.parametrize("slot", [0, 2])
def test_what_is_no_entry_is_named(table: objcat.Table, data: bytes, slot: int) -> None:
    table._context.fileio.put(log_key(slot), data, Overwrite())
    with pytest.raises(CorruptTable, match=rf"{log_key(slot)} is not a log entry of objcat"):
        objcat.table_at(table._context.fileio)
