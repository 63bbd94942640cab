"""A mirror on a server of S3, read by pyiceberg from its `s3://` paths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table import StaticTable

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from objcat.mirror.model import MirrorSlotTaken
from tests.mirror.iceberg.worlds import World, rows_of


@pytest.mark.parametrize("version", [2, 3])
def test_each_slot_reads_exactly_from_s3(servers: Callable[[ServerName], ServerHandle], version: int) -> None:
    handle = servers("versitygw").fresh_bucket()
    world = World(f"{handle.url}/lake/a%20b", options=handle.options)
    first, second = world.mirror(format_version=version), world.mirror(format_version=version)
    first.write(world.step(add=[world.file(world.rows(*range(20)), name="city=Z%C3%BCrich.parquet")], restarts=True))
    assert second.newest() == first.newest()
    change = world.upsert(1, 2, text="b", deletes=[3])
    first.write(change)
    with pytest.raises(MirrorSlotTaken):
        second.write(change)
    assert second.newest() == first.newest()
    second.write(world.restore(0))
    second.write(world.upsert(4, text="c"))
    properties = {
        "s3.endpoint": handle.endpoint,
        "s3.access-key-id": handle.options["access_key"],
        "s3.secret-access-key": handle.options["secret_key"],
        "s3.region": handle.options["region"],
    }
    for slot, truth in world.truth.items():
        uri = f"{handle.url}/lake/a b/metadata/v{slot + 1}.metadata.json"
        table = StaticTable.from_metadata(uri, properties=properties)
        assert table.location() == f"{handle.url}/lake/a b"
        assert rows_of(table.scan().to_arrow()) == rows_of(truth), slot
    assert second.expire(modified_before_ms=1 << 60) == 0
