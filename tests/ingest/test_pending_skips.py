"""Transactions that are to be left out and do not come: how long they wait, whether they can still come, and how that is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import InvalidInput
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.handover import IngestState
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition
from objcat.ingest.requests import add_request, pending_skips, requests_after, take_skip, withdraw_skip

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
HOUR_S = 3600.0


def kafka(offset: int) -> Mapping[str, Any]:
    return KafkaPosition(at="beginning", topics={"shop.items": TopicPosition(next={"0": offset})}).stored()


PASSED: dict[str, tuple[dict[str, Any], Mapping[str, Any], str, Mapping[str, Any]]] = {
    "postgres": ({}, {"lsn": "0/100", "server": "x"}, "00000000/00000200", {"lsn": "0/300", "server": "x"}),
    "mariadb": ({}, {"gtids": "0-1-100"}, "0-1-101", {"gtids": "0-1-102"}),
    "mysql": ({}, {"gtids": f"{SERVER}:1-7"}, f"{SERVER}:1-8", {"gtids": f"{SERVER}:1-9"}),
    "kafka": ({"brokers": "b:9092", "topics": r"shop\..*"}, kafka(5), "shop.items/0@7", kafka(8)),
}
"""By the kind of a source: a position, a transaction that is to come, and a position behind it."""


def config(kind: str, **source: Any) -> IngestConfig:
    given = {"lake": {"url": "memory:"}, "source": {"name": "shop", "kind": kind, **source}, "route": [{"tables": "(.*)", "to": "\\1"}]}
    return parse_config(given, path="my shop.toml", environment={})


def lake_of(env: FakeEnv) -> objcat.Lake:
    lake = objcat.Lake(FileIO(MemoryBackend("skips"), env=env))
    lake.create_table("first", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"], shared_log="shop")
    return lake


def take(lake: objcat.Lake, read: IngestConfig, state: IngestState) -> None:
    for request in requests_after(lake, read, state.requests):
        take_skip(lake, read, state, request)
        state.requests = request.number


@pytest.mark.parametrize("kind", PASSED)
def test_a_request_that_waits_in_vain_is_told_and_taken_back(kind: str) -> None:
    source, at, skipped, behind = PASSED[kind]
    env = FakeEnv(1)
    lake, read, state = lake_of(env), config(kind, **source), IngestState(position=dict(at))
    add_request(lake, read, "skip", skipped)
    take(lake, read, state)
    env.advance(3 * HOUR_S)
    (pending,) = pending_skips(lake, read, state)
    assert pending.passed is None
    assert (
        pending.text(env.now_ms(), config=read.path) == f"leave out the transaction at {skipped}, asked 3 h ago, which has not come so far"
    )

    state.position = dict(behind)
    (pending,) = pending_skips(lake, read, state)
    said = pending.text(env.now_ms(), config=read.path)
    assert pending.passed is not None and "in the lake" in pending.passed
    assert "it will not come" in said and f"objcat ingest skip 'my shop.toml' {skipped} --withdraw" in said

    with pytest.raises(InvalidInput, match=r"These wait: .*Nothing was asked"):
        withdraw_skip(lake, read, state, "0/999")
    withdraw_skip(lake, read, state, skipped)
    take(lake, read, state)
    assert state.skips == [] and pending_skips(lake, read, state) == []
    with pytest.raises(InvalidInput, match="None waits to be left out"):
        withdraw_skip(lake, read, state, skipped)


def test_a_request_that_no_run_has_taken_yet_is_taken_back() -> None:
    env = FakeEnv(1)
    lake, read = lake_of(env), config("postgres")
    state = IngestState(position={"lsn": "0/100", "server": "x"})
    add_request(lake, read, "skip", "00000000/00000200")
    add_request(lake, read, "skip", "00000000/00000300")
    withdraw_skip(lake, read, state, "00000000/00000200")
    take(lake, read, state)
    assert state.skips == ["00000000/00000300"]


def test_a_request_of_an_earlier_version_has_no_age() -> None:
    lake, read = lake_of(FakeEnv(1)), config("postgres")
    state = IngestState(position={"lsn": "0/100", "server": "x"}, skips=["00000000/00000200"])
    (pending,) = pending_skips(lake, read, state)
    assert pending.asked_at_ms is None
    assert pending.text(0, config=read.path) == "leave out the transaction at 00000000/00000200, which has not come so far"
