"""What a transaction counts in the queue: also rows that wait on disk, or a disk would fill while a bucket is slow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio.env import default_env
from objcat.ingest.routes import Router
from objcat.ingest.sources import open_source
from objcat.ingest.stream_reader import StreamReader
from tests.ingest.landing import Landing
from tests.ingest.two_lakes import TwoLakes

ROWS = pa.table({"id": pa.array(range(20_000), pa.int64()), "n": pa.array([7] * 20_000, pa.int64())})


@pytest.fixture(params=["folder", "objcat"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Landing | TwoLakes:
    if request.param == "folder":
        landing = Landing(tmp_path)
        landing.configure(run="transaction_bytes = 1024")
        for number in range(6):
            landing.parquet(f"items/{number}.parquet", ROWS)
        return landing
    lakes = TwoLakes(tmp_path)
    lakes.configure(run="transaction_bytes = 1024")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    for number in range(6):
        lakes.source.create_table(f"shop.items{number}", schema, key=["id"], index=objcat.BucketIndex(1)).upsert(ROWS)
    return lakes


def test_rows_on_disk_count_in_the_queue(made: Landing | TwoLakes) -> None:
    source = open_source(made.config(), Router(made.config()), default_env())
    position = source.begin([table.name for table in source.describe_tables()])
    large = (one for one in source.transactions(position) if one.count >= 20_000)
    assert all(next(large).size_bytes >= ROWS.nbytes for _ in range(6))
    source.close()
    source = open_source(made.config(), Router(made.config()), default_env())
    reader = StreamReader(
        source, source.begin([]) if isinstance(made, Landing) else position, bytes_max=ROWS.nbytes // 2, env=default_env()
    )
    default_env().sleep(1.0)
    assert 0 < reader.queued_changes < 60_000, "the reader waits while so much is not committed"
    reader.stop()
    source.close()
    assert reader.join(10)
