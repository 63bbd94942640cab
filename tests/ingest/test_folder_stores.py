"""A landing folder in each object store: files come late, are overwritten, and each version is taken once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.errors import BucketNotFound
from fileio.registry import open_store
from objcat.errors import IngestStopped, SourceUnfit
from tests.ingest.landing import Landing, parquet_bytes


@pytest.mark.parametrize("server", ["versitygw", "azurite", "fake-gcs-server"])
def test_a_folder_in_a_store(server: ServerName, servers: Callable[[ServerName], ServerHandle], tmp_path: Path) -> None:
    handle = servers(server)
    landing = Landing(tmp_path)
    url = f"{handle.url}/landing-{server}"
    options = ", ".join(f"{name} = {json.dumps(str(value))}" for name, value in handle.options.items())
    landing.configure(folder=url, source=f"options = {{ {options} }}", files='[[source.files]]\ncolumns = { id = "bigint", n = "bigint" }')
    text = landing.config_path.read_text().replace("settle_s = 0\n", "")
    landing.config_path.write_text(text)
    store = open_store(url, handle.options)
    store.put("orders/5.parquet", parquet_bytes([{"id": 1, "n": 1}, {"id": 2, "n": 1}]))
    store.put("orders/7.csv", b"id,n\n3,1\nx,1\n")
    assert landing.once().dead == 1
    store.put("orders/1.json", b'{"id": 4, "n": 1}\n')
    store.put("orders/7.csv", b"id,n\n3,2\n")
    with store.open_write("orders/8.parquet") as file:
        file.write(parquet_bytes([{"id": 5, "n": 1}]))
    for _ in range(2):
        state = landing.once()
        assert {row["id"]: row["n"] for row in landing.rows("orders")} == {1: 1, 2: 1, 3: 2, 4: 1, 5: 1}
        assert state.transactions == 5 and state.dead == 1
    landing.configure(folder=f"{handle.scheme}://no-such-bucket-{server}/x", source=f"options = {{ {options} }}")
    with pytest.raises((SourceUnfit, IngestStopped, BucketNotFound), match="no-such-bucket"):
        landing.once()
