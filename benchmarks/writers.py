"""The writers of `./dev bench commit`: what each commits, how a side commits it, and what must exist at the end."""

from __future__ import annotations

import io
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any, Literal

import deltalake
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

import objcat
from devkit.handle import ServerHandle, s3_client

Keys = Literal["disjoint", "overlapping", "append"]
KEYS: tuple[Keys, ...] = ("disjoint", "overlapping", "append")
ROWS = 100
SHARED = ROWS - 1
"""The rows of an overlapping batch with shared keys. The last row has its own key, which proves that the commit exists."""
ATTEMPTS_MAX = 1000
SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("part", "id", "writer", "number")])


def batch(keys: Keys, writer: int, number: int) -> pa.Table:
    """The rows that a writer commits.

    `disjoint`: half of the keys are of its previous commit, all in its own partition. `overlapping`: keys of all writers and one more.
    `append`: new rows.
    """
    ids = {
        "disjoint": number * ROWS // 2 + np.arange(ROWS),
        "overlapping": np.append(np.arange(SHARED), own_id(writer, number)),
        "append": own_id(writer, number) + np.arange(ROWS),
    }[keys]
    columns = {"part": writer if keys == "disjoint" else 0, "writer": writer, "number": number}
    return pa.table({"id": ids, **{name: np.full(ROWS, value) for name, value in columns.items()}}).select(SCHEMA.names).cast(SCHEMA)


def own_id(writer: int, number: int) -> int:
    """The first of some keys that no other commit has."""
    return (writer * 100_000 + number + 1) * ROWS


def wrong_rows(keys: Keys, found: pa.Table, *, writers: int, commits: int) -> list[str]:
    """What is wrong with the rows of a table after each of so many writers made so many commits."""
    rows = sorted(zip(*(found.column(name).to_pylist() for name in SCHEMA.names), strict=True))
    last: dict[tuple[int, int], tuple[int, ...]] = {}
    for number in range(commits):
        for writer in range(writers):
            last |= {(row[0], row[1]): row for row in zip(*(column.to_pylist() for column in batch(keys, writer, number)), strict=True)}
    shared = [row for row in rows if keys == "overlapping" and row[1] < SHARED]
    right = sorted(row for row in last.values() if keys != "overlapping" or row[1] >= SHARED)
    wrong = []
    if len({row[2:] for row in shared}) > 1:
        wrong.append(f"rows of {len({row[2:] for row in shared})} commits are in what one commit wrote last")
    if keys == "overlapping" and len(shared) != SHARED:
        wrong.append(f"{len(shared)} rows of keys that all write instead of {SHARED}")
    own = [row for row in rows if row not in set(shared)]
    if own != right:
        lost, more = set(right) - set(own), set(own) - set(right)
        wrong.append(
            f"{len(own):,} rows instead of {len(right):,}: {len(lost)} are lost, {len(more)} are others, for instance {[*lost, *more][:1]}"
        )
    return wrong


@dataclass(frozen=True, slots=True)
class Did:
    """A commit that counts. `attempts`: 1 without a repetition. `version`: the slot, or Delta's version."""

    attempts: int
    version: int
    bytes: int = 0


class Side(ABC):
    """One table of a side, at a server. It is picklable, and each process opens it. `does`: the kinds of keys it supports."""

    name: str
    does: tuple[Keys, ...] = KEYS

    def __init__(self, server: ServerHandle, keys: Keys) -> None:
        self.server = server
        self.keys = keys

    @abstractmethod
    def make(self) -> None:
        """Create the empty table."""

    @abstractmethod
    def open(self) -> Any:
        """A handle on the table."""

    @abstractmethod
    def commit(self, handle: Any, rows: pa.Table) -> Did:
        """Commit once, with as many attempts as that takes."""

    @abstractmethod
    def rows(self) -> pa.Table:
        """All rows of the table."""

    @abstractmethod
    def commits(self) -> int:
        """The number of commits of the table, after the one that created it."""

    @abstractmethod
    def named_bytes(self, did: Sequence[Did]) -> int:
        """The bytes of data files that commits name."""

    @abstractmethod
    def is_data(self, path: str) -> bool:
        """Whether a key is a data file."""

    def orphaned_bytes(self, did: Sequence[Did]) -> int:
        """The bytes of data files that no commit names: they were written for nothing and still exist."""
        return sum(size for path, size in self.objects() if self.is_data(path)) - self.named_bytes(did)

    def objects(self) -> list[tuple[str, int]]:
        """All objects of the table."""
        pages = s3_client(self.server).get_paginator("list_objects_v2").paginate(Bucket=self.server.url.removeprefix("s3://"))
        return [(one["Key"], one["Size"]) for page in pages for one in page.get("Contents", ())]


class Objcat(Side):
    """objcat: buckets, merge-on-read. Appends go to a table without a key."""

    name = "objcat"
    properties: Mapping[str, str] = {}

    def _lake(self) -> Any:
        return objcat.connect(f"{self.server.url}/lake", options=dict(self.server.options))

    def make(self) -> None:
        """As `Side.make`."""
        if self.keys == "append":
            self._lake().create_table("t", SCHEMA, key=None)
            return
        layout: dict[str, Any] = {"index": objcat.BucketIndex(16), "partition_by": ["part"], "key_scope": "partition"}
        layout["properties"] = self.properties
        self._lake().create_table("t", SCHEMA, key=["id"], **layout)

    def open(self) -> Any:
        """As `Side.open`."""
        return self._lake().table("t")

    def commit(self, handle: Any, rows: pa.Table) -> Did:
        """As `Side.commit`."""
        done = (handle.insert if self.keys == "append" else handle.upsert)(rows)
        return Did(done.attempts, done.slot, done.bytes)

    def rows(self) -> pa.Table:
        """As `Side.rows`."""
        return self.open().scan().to_arrow()

    def commits(self) -> int:
        """As `Side.commits`."""
        return int(self.open().snapshot.slot)

    def named_bytes(self, did: Sequence[Did]) -> int:
        """As `Side.named_bytes`."""
        return sum(one.bytes for one in did)

    def is_data(self, path: str) -> bool:
        """As `Side.is_data`."""
        return "/data/" in path


class ObjcatTogether(Objcat):
    """objcat with `group_commit`. A commit's version is the number in its transaction id, as several share a slot."""

    name = "objcat-together"
    does = ("disjoint", "overlapping")
    properties: Mapping[str, str] = {"group_commit": "on"}

    def commit(self, handle: Any, rows: pa.Table) -> Did:
        """As `Side.commit`."""
        done = handle.upsert(rows)
        return Did(done.attempts, int(done.txn.rpartition("-")[2], 16), done.bytes)

    def commits(self) -> int:
        """As `Side.commits`."""
        return sum(len(entry.txns) for entry in self.open().inspect.history()[1:])


class Deltalake(Side):
    """deltalake with conditional PUTs instead of a lock.

    Where keys are disjoint, merges name the writer's partition, so that they do not conflict. As the library expects, the caller repeats a
    merge that does conflict.
    """

    name = "deltalake"

    @property
    def _options(self) -> dict[str, str]:
        told = self.server.environment | {"AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}
        return told | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}

    @property
    def _url(self) -> str:
        return f"{self.server.url}/t"

    def make(self) -> None:
        """As `Side.make`."""
        DeltaTable.create(self._url, deltalake.Schema.from_arrow(SCHEMA), partition_by=["part"], storage_options=self._options)

    def open(self) -> Any:
        """As `Side.open`."""
        return DeltaTable(self._url, storage_options=self._options)

    def commit(self, handle: Any, rows: pa.Table) -> Did:
        """As `Side.commit`."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self._try(handle, rows)
            except CommitFailedError:
                handle.update_incremental()
            else:
                return Did(attempt, handle.version())
        raise TimeoutError(f"{ATTEMPTS_MAX} attempts at one commit failed.")

    def _try(self, handle: Any, rows: pa.Table) -> None:
        if self.keys == "append":
            write_deltalake(handle, rows, mode="append")
            return
        on = f"t.part = {rows.column('part')[0]} and s.part = t.part and s.id = t.id"
        merge = handle.merge(rows, on, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def rows(self) -> pa.Table:
        """As `Side.rows`."""
        return pa.table(self.open().to_pyarrow_table())

    def commits(self) -> int:
        """As `Side.commits`."""
        return int(self.open().version())

    def named_bytes(self, did: Sequence[Did]) -> int:  # noqa: ARG002 - its log tells
        """As `Side.named_bytes`."""
        client, bucket = s3_client(self.server), self.server.url.removeprefix("s3://")
        entries = [path for path, _ in self.objects() if "/_delta_log/" in path and path.endswith(".json")]
        texts = (client.get_object(Bucket=bucket, Key=path)["Body"].read() for path in entries)
        return sum(json.loads(line).get("add", {}).get("size", 0) for text in texts for line in text.splitlines())

    def is_data(self, path: str) -> bool:
        """As `Side.is_data`."""
        return path.endswith(".parquet") and "/_delta_log/" not in path


class Put(Side):
    """The floor: one conditional PUT of a small object per commit, by the vendor's SDK. The objects together are the appended rows."""

    name = "one PUT"
    does = ("append",)

    def make(self) -> None:
        """Does nothing: there are only objects."""

    def open(self) -> Any:
        """As `Side.open`."""
        return s3_client(self.server)

    def commit(self, handle: Any, rows: pa.Table) -> Did:
        """As `Side.commit`."""
        body = io.BytesIO()
        with pa.ipc.new_stream(body, SCHEMA) as stream:
            stream.write_table(rows)
        first = rows.column("id")[0].as_py()
        where = {"Bucket": self.server.url.removeprefix("s3://"), "Key": f"rows/{first:020}"}
        handle.put_object(**where, Body=body.getvalue(), IfNoneMatch="*")
        return Did(1, first, body.tell())

    def rows(self) -> pa.Table:
        """As `Side.rows`."""
        client, bucket = self.open(), self.server.url.removeprefix("s3://")
        bodies = [client.get_object(Bucket=bucket, Key=path)["Body"].read() for path, _ in self.objects()]
        return pa.concat_tables([pa.ipc.open_stream(body).read_all() for body in bodies])

    def commits(self) -> int:
        """As `Side.commits`."""
        return len(self.objects())

    def named_bytes(self, did: Sequence[Did]) -> int:
        """As `Side.named_bytes`."""
        return sum(one.bytes for one in did)

    def is_data(self, path: str) -> bool:
        """As `Side.is_data`."""
        return path.startswith("rows/")


SIDES: Mapping[str, type[Side]] = {side.name: side for side in (Objcat, ObjcatTogether, Deltalake, Put)}


@dataclass(slots=True)
class Wrote:
    """What one writer did. `seconds`: of each commit, from the first attempt on. `error`: what ended it early."""

    writer: int
    seconds: list[float] = field(default_factory=list)
    did: list[Did] = field(default_factory=list)
    error: str = ""


def write(side: Side, writer: int, commits: int, ready: Barrier, results: Any) -> None:
    """Run one writer in its own process. It reports twice that it is ready: once opened, and once counted. Then it waits for the start."""
    wrote = Wrote(writer)
    try:
        handle = side.open()
        batches = [batch(side.keys, writer, number) for number in range(commits)]
        ready.wait()
        ready.wait()
        for rows in batches:
            began_s = time.perf_counter()
            wrote.did.append(side.commit(handle, rows))
            wrote.seconds.append(time.perf_counter() - began_s)
    except Exception as error:  # noqa: BLE001 - the waiting process must know any error
        wrote.error = f"{type(error).__name__}: {error}"
        ready.abort()
    results.put(wrote)
