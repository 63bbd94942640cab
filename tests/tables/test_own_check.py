"""A writer holds what it is about to say against what readers check: an error in it fails that write, and not every read after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.timeline.entry import FileGroupId, Footprint
from objcat.write import service_commit
from objcat.write.table_writer import TableWriter

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ELSEWHERE = FileGroupId("", 1, 2)


@pytest.fixture
def table() -> objcat.Table:
    table = objcat.create_table_at(FileIO(MemoryBackend("own")), SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    table.upsert([{"id": 1, "v": 1}])
    table.upsert([{"id": 1, "v": 2}])
    return table


def wrong(footprint: Footprint) -> Footprint:
    return msgspec.structs.replace(footprint, appends=(*footprint.appends, ELSEWHERE))


def assert_untouched(table: objcat.Table) -> None:
    again = objcat.table_at(table._context.fileio)
    assert again.scan().to_arrow().to_pylist() == [{"id": 1, "v": 2}]
    assert [entry.slot for entry in again.inspect.history()] == [0, 1, 2]


def test_a_write_with_a_wrong_footprint_is_not_put(table: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TableWriter.footprint
    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "footprint", lambda *args, **named: wrong(right(*args, **named)))
        with pytest.raises(TypeError, match=r"what no reader takes \(log/0+3\.json: footprint\..*a bug in objcat"):
            table.upsert([{"id": 1, "v": 3}])
    assert_untouched(table)
    table.upsert([{"id": 1, "v": 4}])
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "v": 4}]


def test_a_service_with_a_wrong_footprint_is_not_put(table: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    right = service_commit._prepare

    def misled(service: Any, *rest: Any) -> Any:
        def run(plan: Any, txn: Any) -> Any:
            proposal = service.run(plan, txn)
            return replace(proposal, footprint=wrong(proposal.footprint))

        return right(replace(service, run=run), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(service_commit, "_prepare", misled)
        with pytest.raises(TypeError, match="a bug in objcat"):
            table.maintenance.compact()
    assert_untouched(table)
    assert table.maintenance.compact() is not None
