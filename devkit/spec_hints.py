"""The tables of `spec/tables/` whose hint carries entries: one without a checkpoint, one with a root, one of another log."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa

import objcat
from devkit.spec_tables import Maker
from fileio.contract import GetResult, Update
from objcat.timeline.checkpoint import HINT_KEY, decode_carried, encode_carried, read_hint
from objcat.timeline.entry import new_txn

COUNTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("count", pa.int64())])


def hint_without_checkpoint(maker: Maker) -> None:
    """A young log: its hint carries every entry up to its slot, and two slots are above."""
    table = _counted(maker, rounds=4)
    _put_hint(table)
    _count(maker, table, range(4, 6))


def hint_with_root(maker: Maker) -> None:
    """A hint with the root of a checkpoint and the entries above it, and three slots above the hint."""
    table = _counted(maker, rounds=20)
    timeline = table._context.timeline
    timeline.publish(timeline.at(16))
    _count(maker, table, range(20, 22))
    _put_hint(table)
    _count(maker, table, range(22, 25))


def hint_of_another_log(maker: Maker) -> None:
    """A hint with a right digest, whose last entry is of another transaction than its slot: a reader goes on without what it carries."""
    table = _counted(maker, rounds=4)
    _put_hint(table)
    fileio = table._context.fileio
    found, version = read_hint(fileio)
    assert found is not None and version is not None
    carried = decode_carried(found)
    assert carried is not None
    root, entries = carried
    other = msgspec.structs.replace(entries[-1], txn=new_txn(maker.env), changes={})
    wrong = msgspec.structs.replace(found, carried=msgspec.Raw(encode_carried(root, [*entries[:-1], other], slot=found.slot)))
    fileio.put(HINT_KEY, msgspec.json.encode(wrong), Update(version))
    _count(maker, table, range(4, 6))


def _counted(maker: Maker, *, rounds: int) -> objcat.Table:
    """A table with some upserts."""
    table = maker.table("counts", COUNTS, key=["id"], index=objcat.BucketIndex(1))
    _count(maker, table, range(rounds))
    return table


def _count(maker: Maker, table: objcat.Table, rounds: range) -> None:
    for number in rounds:
        maker.tick()
        table.upsert([{"id": number % 3, "count": number}])


def _put_hint(table: objcat.Table) -> None:
    """Put the hint of the newest slot."""
    timeline = table._context.timeline
    timeline.publish_hint(timeline.open())
    found = table._context.fileio.get(HINT_KEY)
    assert isinstance(found, GetResult) and json.loads(found.data)["carried"]["entries"]
