"""Tables that follow another one by its changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing import FakeEnv
from objcat.errors import InvalidInput

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("more", pa.string())])


def rows(table: objcat.Table) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("net", [True, False])
@pytest.mark.parametrize("kind", ["merge_on_read", "copy_on_write"])
def test_a_derived_table_is_its_source_once(kind: str, net: bool) -> None:
    lake = objcat.Lake(FileIO(MemoryBackend("derived"), env=FakeEnv(3)))
    source = lake.create_table("s", SCHEMA, key=["id"])
    derived = lake.create_table("d", pa.schema([SCHEMA.field("id"), SCHEMA.field("v")]), key=["id"], kind=kind)
    assert derived.applied("job") is None

    def follow() -> Any:
        reached = derived.applied("job")
        return derived.upsert_from(source.changes(since=-1 if reached is None else reached, net=net), app_id="job")

    assert follow() is None
    source.insert([{"id": i, "v": i, "more": "x"} for i in range(6)])
    first = source.changes(since=-1, net=net)
    once, again = (derived.upsert_from(first, app_id="job") for _ in range(2))
    assert once is not None and once.slot == 1 and derived.applied("job") == 1
    assert again is not None and again.already_applied and derived.refresh().slot == 1
    source.upsert([{"id": 1, "v": 10, "more": "y"}])
    source.upsert([{"id": 1, "v": 11, "more": "y"}, {"id": 9, "v": 9, "more": "y"}])
    source.delete([{"id": 2}])
    late = source.changes(since=3, net=net)
    with pytest.raises(InvalidInput, match=r"changes\(since=1"):
        derived.upsert_from(late, app_id="job")
    follow()
    assert rows(derived) == rows(source) == {0: 0, 1: 11, 3: 3, 4: 4, 5: 5, 9: 9}
    # Changes that overlap those that are there are written once more, to the same end.
    source.delete("id = 0")
    derived.upsert_from(source.changes(since=1, net=net), app_id="job")
    assert rows(derived) == rows(source) and derived.applied("job") == 5
    assert follow() is None
    with pytest.raises(InvalidInput, match="incremental"):
        derived.upsert_from(source.incremental(since=1), app_id="job")
    with pytest.raises(InvalidInput, match="changes"):
        derived.upsert_from([{"id": 1}], app_id="job")  # type: ignore[arg-type]
