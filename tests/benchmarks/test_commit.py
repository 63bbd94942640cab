"""The suite `commit`: the proxy counts, both sides keep every row, and a run in which something is lost has no figures."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from benchmarks.commit_bench import _result, run, wrong_with
from benchmarks.commit_threads import run_threads
from benchmarks.slow_proxy import SlowProxy
from benchmarks.writers import KEYS, SIDES, Deltalake, Did, Keys, Objcat, Put, Wrote, batch, wrong_rows
from devkit.handle import s3_client

WRITERS, COMMITS = 3, 4


def right(keys: Keys) -> pa.Table:
    """The rows after all commits, writer after writer."""
    rows: dict[tuple[int, int], Any] = {}
    for writer in range(WRITERS):
        for number in range(COMMITS):
            rows |= {(row["part"], row["id"]): row for row in batch(keys, writer, number).to_pylist()}
    return pa.Table.from_pylist(list(rows.values()))


def wrong(keys: Keys, rows: pa.Table) -> list[str]:
    return wrong_rows(keys, rows, writers=WRITERS, commits=COMMITS)


@pytest.mark.parametrize("keys", KEYS)
def test_rows_that_are_all_there_are_right_and_a_lost_one_is_not(keys):
    rows = right(keys)
    assert wrong(keys, rows) == []
    assert wrong(keys, rows.slice(1)) != []
    assert wrong(keys, rows.slice(0, rows.num_rows - 1)) != []
    assert wrong(keys, pa.concat_tables([rows, rows.slice(0, 1)])) != []


def test_a_commit_that_was_lost_or_torn_is_found():
    rows = right("disjoint").to_pylist()
    stale = [row | {"number": 0} if row["part"] == 1 else row for row in rows]
    assert "are lost" in wrong("disjoint", pa.Table.from_pylist(stale))[0]
    torn = [row | {"writer": 0} if row["id"] == 5 else row for row in right("overlapping").to_pylist()]
    assert wrong("overlapping", pa.Table.from_pylist(torn)) == ["rows of 2 commits are in what one commit wrote last"]


class Held(Objcat):
    """A side that says what it was told to."""

    def __init__(self, rows: pa.Table, commits: int) -> None:
        self.keys = "append"
        self._rows, self._commits = rows, commits

    def rows(self) -> pa.Table:
        return self._rows

    def commits(self) -> int:
        return self._commits


def test_a_run_in_which_something_is_wrong_has_no_figures():
    did = [Did(1, version) for version in range(1, 1 + WRITERS * COMMITS)]
    wrote = [Wrote(writer, [0.1] * COMMITS, did[COMMITS * writer :][:COMMITS]) for writer in range(WRITERS)]
    rows = right("append")
    assert wrong_with(Held(rows, len(did)), wrote, did, commits=COMMITS) == []
    assert "has 11 commits" in wrong_with(Held(rows, 11), wrote, did, commits=COMMITS)[0]
    assert "have only 11 versions" in wrong_with(Held(rows, len(did)), wrote, [*did[1:], did[1]], commits=COMMITS)[0]
    found = _result(Held(rows.slice(1), len(did)), wrote, {"PUT": 24}, 1.0, commits=COMMITS, latency_ms=0)
    assert found.wrong
    assert found.commits_per_s == 0
    assert found.requests is None


def test_a_writer_that_fails_is_told(servers):
    found = run(Objcat, servers("versitygw").fresh_bucket(), "no such keys", writers=1, commits=1, latency_ms=0)  # type: ignore[arg-type]
    assert found.wrong == ("writer 0 failed: KeyError: 'no such keys'",)


def test_the_proxy_counts_requests_and_passes_on_what_is_sent(servers):
    bucket = servers("versitygw").fresh_bucket()
    body = b"0123456789" * 100_000
    with SlowProxy(bucket.endpoint, latency_ms=1) as proxy:
        client, where = s3_client(bucket.through(proxy.url)), {"Bucket": bucket.url.removeprefix("s3://"), "Key": "one"}
        client.put_object(**where, Body=body)
        assert client.get_object(**where)["Body"].read() == body
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            client.put_object(**where, Body=b"", IfNoneMatch="*")
        assert proxy.requests == {"PUT": 2, "GET": 1}
        assert client.list_objects_v2(Bucket=where["Bucket"])["KeyCount"] == 1
        assert proxy.requests == {"PUT": 2, "GET": 1, "LIST": 1}


def test_the_proxy_passes_on_bodies_of_which_nobody_knew_the_length(servers):
    bucket = servers("versitygw").fresh_bucket()
    body = b"0123456789" * 100_000
    with SlowProxy(bucket.endpoint) as proxy:
        reached = bucket.through(proxy.url)
        options = {"access_key": reached.options["access_key"], "secret_key": reached.options["secret_key"]}
        store = pafs.S3FileSystem(endpoint_override=reached.endpoint, region=reached.options["region"], **options)
        path = f"{bucket.url.removeprefix('s3://')}/one"
        with store.open_output_stream(path) as stream:
            stream.write(body)
        assert store.open_input_file(path).read() == body


@pytest.mark.parametrize(
    ("side", "keys"),
    [(Objcat.name, "overlapping"), pytest.param(Deltalake.name, "overlapping", marks=pytest.mark.tier("all")), (Put.name, "append")],
)
def test_processes_that_write_at_once_lose_nothing(servers, side, keys):
    found = run(SIDES[side], servers("versitygw").fresh_bucket(), keys, writers=2, commits=2, latency_ms=1)
    assert found.wrong == ()
    assert found.commits_per_s > 0
    assert (found.requests or {})["PUT"] >= (1 if side == Put.name else 2)
    assert found.orphaned_bytes >= 0


@pytest.mark.parametrize("own", [False, True])
def test_threads_of_one_process_have_figures_and_lose_no_slot(own: bool) -> None:
    found = run_threads(threads=3, own=own, commits=6)
    assert found.wrong == ()
    assert (found.commits, found.slots_lost) == (6, 0)
    assert found.commits_per_s > 0
    assert found.requests is not None
    assert found.requests["put_create"] >= 2
