"""A gateway that sends the put of a slot on, loses the answer, and gives one of its own: what it refuses may be committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

import objcat
from devkit.fault_proxy import Fault, FaultProxy
from devkit.handle import ServerHandle
from devkit.servers import ServerName
from fileio.registry import open_store
from fileio.write_outcomes import RetryPolicy

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])
QUICK = RetryPolicy(attempts_max=3, backoff_ms_first=1, backoff_ms_max=2)
PAGE = b"<html><body>default backend<br></body></html>"
GONE = b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>"


def slot(method: str, path: str, query: str, _headers: Mapping[str, str]) -> bool:
    """Matches the put of a slot: GCS names it in the body."""
    return (method == "PUT" and "/log/" in path) or (method == "POST" and "ifGenerationMatch=0" in query)


@pytest.mark.parametrize("server", ["versitygw", "azurite", "fake-gcs-server"])
def test_a_commit_that_the_gateway_refuses_afterwards_is_kept(
    servers: Callable[[ServerName], ServerHandle],
    fault_proxy: Callable[[ServerHandle], tuple[FaultProxy, ServerHandle]],
    server: ServerName,
) -> None:
    proxy, through = fault_proxy(servers(server).fresh_bucket())
    with open_store(through.url + "/lake", through.options, policy=QUICK) as store:
        table = objcat.Lake(store).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
        expected: list[dict[str, float]] = []
        for code, body in ((404, PAGE), (403, PAGE), (400, b""), *([(404, GONE)] if server == "versitygw" else [])):
            for times in (1, 100):
                # The data file of GCS is a create as well, and comes first.
                proxy.plan(Fault("status_after", slot, nth=1 + (server == "fake-gcs-server"), times=times, code=code, body=body))
                row = {"id": len(expected), "v": float(code)}
                table.upsert([row])
                assert any(exchange.fault for exchange in proxy.exchanges)
                proxy.clear()
                expected.append(row)
                assert table.scan().to_arrow().sort_by("id").to_pylist() == expected
